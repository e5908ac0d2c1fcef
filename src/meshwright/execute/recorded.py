"""A rank's whole step recorded as one CUDA graph and replayed: no Python stands between kernels.

For ranks that neither talk to others nor draw random numbers: all that they do in a step is then
the same kernels on the same memory, but for the rows of the batch, which are copied to one place.
"""

from collections.abc import Callable, Mapping

import torch

from meshwright.execute.item import Key, Part, RunSegment
from meshwright.execute.steps import TracedSteps

Run = Callable[[Mapping[Key, torch.Tensor]], torch.Tensor]
"""Takes a step on the rows of a batch, and returns its loss."""
_WARM_UP = 2
"""Steps before recording: libraries choose kernels and take workspace in the first ones."""


def may_record(part: Part, steps: TracedSteps, device: torch.device) -> bool:
    """Whether what a rank does can be recorded."""
    if device.type != "cuda" or part.receives:
        return False
    segments = [item.segment for item in part.items if isinstance(item, RunSegment)]
    lines = [line for segment in segments if segment is not None for line in segment.lines]
    is_alone = len(segments) == len(part.items)
    return is_alone and not any(line.op in steps.draws(line.samples) for line in lines)


class Recorded:
    """A step that is run at first, then recorded, and replayed from there on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.count = 0
        self.given: dict[Key, torch.Tensor] = {}
        """The rows of the batch, where the recorded kernels read them."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss = torch.zeros(())
        self.settings: object = None
        """What was recorded with the step besides tensors."""

    def __call__(self, inputs: Mapping[Key, torch.Tensor], settings: object) -> torch.Tensor:
        """Take a step; `settings`: numbers that are part of it, which it is recorded anew for."""
        self.count += 1
        if self.count <= _WARM_UP:
            return self.run(inputs)
        if self.graph is None or settings != self.settings:
            self._record(inputs, settings)
        assert self.graph is not None
        for key, tensor in inputs.items():
            self.given[key].copy_(tensor)
        self.graph.replay()
        return self.loss.clone()

    def _record(self, inputs: Mapping[Key, torch.Tensor], settings: object) -> None:
        self.graph = None  # its memory is taken by the next
        self.given = {key: torch.empty_like(tensor) for key, tensor in inputs.items()}
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.loss = self.run(self.given)
        self.graph, self.settings = graph, settings
