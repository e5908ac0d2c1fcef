"""A rank's whole step recorded as one CUDA graph and replayed: no Python stands between kernels.

For ranks that do not talk to others: all that they do in a step is then the same kernels on the
same memory, but for the rows of the batch and the keys of random numbers, which are copied to one
place unless they come in one.
"""

from collections.abc import Callable, Mapping

import torch

from meshwright.capture.torch_private import clear_workspaces
from meshwright.execute.draw import is_repeatable
from meshwright.execute.item import Key, RankPart
from meshwright.execute.steps import TracedSteps
from meshwright.program.program import Program

Run = Callable[[Mapping[Key, torch.Tensor]], torch.Tensor]
"""Takes a step on the rows of a batch, and returns its loss."""
Replay = Callable[[], object]
"""Does again on the device what was recorded."""
Record = Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]
"""Records what a function does, without doing it; its result is where a replay writes it."""

_WARM_UP = 2
"""Steps before recording: libraries choose kernels and take workspace in the first ones."""
_FEW, _OFTEN = 2, 100
"""Recording more than so few times pays after so many steps each: it takes as long as some steps,
and memory."""


def may_record(program: Program, part: RankPart, steps: TracedSteps, device: torch.device) -> bool:
    """Whether what a rank does can be recorded."""
    if device.type != "cuda" or part.receives:
        return False
    is_alone = all(each.group >= 0 and len(program.groups[each.group]) == 1 for each in part.starts)
    drawing = (each for each in part.lines if each.op in steps.draws(each.samples))
    nodes = (steps[each.samples].ledger.kernels[each.op].node for each in drawing)
    return is_alone and all(map(is_repeatable, nodes))  # others seed a generator in every step


def record_graph(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
    """Record a CUDA graph."""
    torch.cuda.synchronize()
    # The graph has memory of its own, for what libraries work in, too.
    clear_workspaces()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run()
    return graph.replay, made


class Recorded:
    """A step that is run at first, then recorded, and replayed from there on."""

    def __init__(
        self,
        run: Run,
        forget: Callable[[], None],
        show: Callable[[str], None],
        record: Record = record_graph,
    ) -> None:
        """`forget` clears what a step leaves that ended halfway, as one does that cannot be
        recorded because it waits for the device; `show` is told why it cannot."""
        self.run, self.forget, self.show, self.record = run, forget, show, record
        self.count = self.records = 0
        self.given: dict[Key, torch.Tensor] = {}
        """The rows of the batch, where the recorded kernels read them."""
        self.shared: frozenset[Key] = frozenset()
        """Of these, what the caller gave in the same memory in the steps before: not copied."""
        self.seen: Mapping[Key, torch.Tensor] = {}
        """What was given in the step before recording, held so that no other takes its place."""
        self.replay: Replay | None = None
        self.loss = torch.zeros(())
        self.settings: object = None
        """What was recorded with the step besides tensors."""
        self.fails = False

    def __call__(self, inputs: Mapping[Key, torch.Tensor], settings: object) -> torch.Tensor:
        """Take a step; `settings`: numbers that are part of it, which it is recorded anew for."""
        self.count += 1
        if self.count == _WARM_UP:
            self.seen = inputs
        elif self.count > _WARM_UP and not self.fails:
            # What is read where the caller had it must be there again.
            are_shared = all(_is_same(inputs[key], self.given[key]) for key in self.shared)
            if self.replay is not None and not are_shared:
                self._record(inputs, settings)  # batches are copied from here on
            elif self.replay is None or settings != self.settings:
                self._record_or_leave(inputs, settings)
        if self.replay is None:
            return self.run(inputs)
        for key, tensor in inputs.items():
            if key not in self.shared:
                self.given[key].copy_(tensor)
        self.replay()
        return self.loss.clone()

    def _record_or_leave(self, inputs: Mapping[Key, torch.Tensor], settings: object) -> None:
        """Record, unless settings change too often for that to pay, as those of a scheduler do."""
        self.records += 1
        if self.records > _FEW and self.count < _OFTEN * self.records:
            self.replay, self.given, self.fails = None, {}, True
            self.show("not recorded as a CUDA graph, steps are run: the optimizer's numbers change")
            return
        self._record(inputs, settings)

    def _record(self, inputs: Mapping[Key, torch.Tensor], settings: object) -> None:
        self.replay = None  # its memory is taken by the next
        before = self.given or self.seen
        self.shared = frozenset(key for key in inputs if _is_same(inputs[key], before[key]))
        self.given = {
            key: tensor if key in self.shared else torch.empty_like(tensor)
            for key, tensor in inputs.items()
        }
        self.seen = {}
        try:
            self.replay, self.loss = self.record(lambda: self.run(self.given))
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            self.show(f"not recorded as a CUDA graph, steps are run: {reason}")
            self.fails = True
            self.forget()
        self.settings = settings


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same numbers in the same memory."""
    return (
        tensor.data_ptr() == other.data_ptr()
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.dtype == other.dtype
    )
