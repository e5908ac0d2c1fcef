"""Opens the compiler of regions: its import takes seconds, which only those pay who compile."""

from collections.abc import Callable

import torch

from meshwright.execute.region.recipe import Compiler


def make_compiler(device: torch.device, show: Callable[[str], None]) -> Compiler:
    """Inductor for a device; `show` is told what is compiled, and what cannot be."""
    from meshwright.execute.region.inductor import Inductor

    return Inductor(device, show)
