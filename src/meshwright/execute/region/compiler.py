"""What compiles regions: a function from a recipe to a function on tensors."""

from collections.abc import Callable, Sequence

import torch

from meshwright.execute.region.recipe import Recipe

RegionFunction = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""From a list of a region's inputs, which it empties, to its outputs."""
Compiler = Callable[[Recipe], RegionFunction]


def make_compiler(device: torch.device, show: Callable[[str], None]) -> Compiler:
    """Inductor for a device; `show` is told what is compiled, and what cannot be."""
    # Takes seconds to import, which only those wait for who compile.
    from meshwright.execute.region.inductor import Inductor

    return Inductor(device, show)
