"""Compiles the regions of a segment by a compiler that may refuse some of them."""

from collections.abc import Callable, Sequence

import torch

from meshwright.execute.item import Segment
from meshwright.execute.region.again import find_again
from meshwright.execute.region.find import find_stretches
from meshwright.execute.region.recipe import Compiler, Region, RegionFunction, write_regions
from meshwright.execute.steps import TracedSteps


def make_compiler(device: torch.device, show: Callable[[str], None]) -> Compiler:
    """Inductor for a device; `show` is told what is compiled, and what cannot be."""
    # Its import takes seconds, which only those pay who compile.
    from meshwright.execute.region.inductor import Inductor

    return Inductor(device, show)


def compile_regions(
    segment: Segment, steps: TracedSteps, compiler: Compiler
) -> list[tuple[Region, RegionFunction]]:
    """The regions of a segment and their functions; lines that are in none run as they are."""
    return _compile(segment, steps, compiler, find_stretches(segment, steps))


def _compile(
    segment: Segment, steps: TracedSteps, compiler: Compiler, stretches: Sequence[range]
) -> list[tuple[Region, RegionFunction]]:
    again = find_again(segment, steps, stretches)
    found: list[tuple[Region, RegionFunction]] = []
    for region in write_regions(segment, steps, stretches, again):
        function = compiler(region.recipe)
        if function is not None:
            found.append((region, function))
    if len(found) == len(stretches):
        return found
    # What is left reads and returns something else without those that were refused.
    return _compile(segment, steps, compiler, [region.lines for region, _ in found])
