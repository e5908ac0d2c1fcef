"""Turns ops that run one after the other on one device into a segment to be compiled.

Finds where each version that an op reads comes from: an earlier op of the segment, a buffer, state
or an input of the step.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.execute.item import Key, OpLine, Piece, RunSegment, Segment, state_name
from meshwright.execute.lookup import Lookup, held_name
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Phase, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """One device: the order in which it runs, and what its segments turn out to need."""

    place: Mapping[int, int]
    """The place of each instruction that its main thread runs, in their order."""
    last_user: Mapping[int, int]
    """For each buffer the last instruction that reads it."""
    state: dict[str, int] = field(default_factory=dict)
    """Names of what is held from step to step, and their places."""
    sums: dict[int, int] = field(default_factory=dict)
    """Buffers of gradients that add up, and their places."""
    inputs: dict[Key, tuple[int, int, int]] = field(default_factory=dict)
    """The step's inputs that it reads: number, first row of the batch, how many."""


def bind_segment(
    lookup: Lookup, here: Here, run: Sequence[int], waits: tuple[int, ...]
) -> RunSegment:
    """The segment of these instructions."""
    return _SegmentBinder(lookup, here, run).item(waits)


class _SegmentBinder:
    """One segment on its way."""

    def __init__(self, lookup: Lookup, here: Here, run: Sequence[int]) -> None:
        self.lookup, self.here, self.run = lookup, here, run
        self.program, self.rows = lookup.program, lookup.program.instructions
        self.line_of = {instruction: k for k, instruction in enumerate(run)}
        self.names: dict[Key, tuple[str, int]] = {}
        """Name of each input by its key."""
        self.copied: set[tuple[int, int]] = set()

    def item(self, waits: tuple[int, ...]) -> RunSegment:
        lines = tuple(self._line(k, instruction) for k, instruction in enumerate(self.run))
        outputs, buffers = self._outputs()
        sums, complete = self._sums()
        first = self.rows[self.run[0]]
        keys = list(self.names)
        segment = Segment(
            lines=lines,
            inputs=tuple(self.names.values()),
            last=tuple(self._is_last(key) for key in keys),
            outputs=outputs,
            sums=sums,
            copied=frozenset(self.copied),
            weight=self._weight(first),
            loss_weight=self._weight(first) / self._copies(),
            is_scaled=self.lookup.is_scaled,
        )
        return RunSegment(
            segment=segment,
            instructions=tuple(self.run),
            microbatch=int(first["microbatch"]),
            inputs=tuple(keys),
            outputs=buffers,
            sums=complete,
            waits=waits,
            drops=tuple(
                dict.fromkeys(
                    key.buffer
                    for key in keys
                    if isinstance(key, Piece)
                    and self.here.last_user.get(key.buffer) in self.line_of
                )
            ),
        )

    def _weight(self, row: np.void) -> float:
        if not self.lookup.is_mean:
            return 1.0
        rows = self.lookup.rows
        return rows.count(row["rows_from"], row["rows_to"]) / rows.batch

    def _copies(self) -> int:
        """How many replicas make the same loss."""
        for instruction in self.run:
            step = self.lookup.step_of(instruction)
            kernel = step.ledger.kernels[int(self.rows["op"][instruction])]
            if step.loss_version in kernel.made:
                return self.lookup.copies_of(instruction)
        return 1

    def _is_last(self, key: Key) -> bool:
        is_own = isinstance(key, int) and self.here.last_user.get(key) in self.line_of
        return is_own or isinstance(key, Piece)

    def _line(self, number: int, instruction: int) -> OpLine:
        step = self.lookup.step_of(instruction)
        op = int(self.rows["op"][instruction])
        kernel = step.ledger.kernels[op]
        buffers = {
            int(self.program.buffers["tensor"][b]): b
            for b in self.lookup.read_by.get(instruction, ())
            if not self.lookup.adds_to(instruction, b)
        }
        reads = tuple(
            (version, self._name(step, version, instruction, buffers))
            for version in dict.fromkeys(kernel.reads.values())
        )
        for version in kernel.made:
            old = step.ledger.versions[version].replaces
            if old >= 0 and self._is_shared(step, old, instruction, buffers):
                self.copied.add((number, version))
        return OpLine(op, step.samples, reads)

    def _name(
        self, step: TracedStep, version: int, instruction: int, buffers: Mapping[int, int]
    ) -> Hashable:
        held = held_name(step, version)
        if held is not None:
            return state_name(self.here.state.setdefault(held, len(self.here.state)))
        root = step.held.get(version)
        if root is not None:  # an input of the step
            return self._input_name(step, int(root.removeprefix("input ")), instruction)
        tensor = step.tensor_of[version]
        if tensor not in buffers:
            assert self._adds_nothing(tensor, instruction), "what is read was brought here"
            nothing = Piece(buffer=-1, tensor=tensor, samples=0, start=0, count=0, has_rows=False)
            return self.names.setdefault(nothing, ("input", len(self.names)))
        buffer = buffers[tensor]
        writer = int(self.program.buffers["writer"][buffer])
        if writer in self.line_of and not self.lookup.is_gathered[buffer]:
            return "made", self.line_of[writer], version
        taken = self.lookup.taken_by(instruction, buffer)
        key = buffer if taken.is_whole and taken.factor == 1.0 else taken
        return self.names.setdefault(key, ("input", len(self.names)))

    def _adds_nothing(self, tensor: int, instruction: int) -> bool:
        """Whether an op may add zeros in place of its share of a gradient: others add it all."""
        graph = self.program.graph
        op = self.rows["op"][instruction]
        is_gradient = graph.phase[graph.tensor_source[tensor]] == Phase.BACKWARD
        return bool(
            is_gradient
            and graph.tensor_partial[tensor]
            and self.lookup.lowered.split[op] == Split.SUM
        )

    def _input_name(self, step: TracedStep, number: int, instruction: int) -> Hashable:
        row = self.rows[instruction]
        first = int(row["microbatch"]) * self.lookup.rows.samples
        if step.samples != self.lookup.rows.samples:
            first += self.lookup.rows.bound(row["rows_from"])
        key = ("input", number, first, step.samples)
        self.here.inputs[key] = (number, first, step.samples)
        return self.names.setdefault(key, ("input", len(self.names)))

    def _is_shared(
        self, step: TracedStep, old: int, instruction: int, buffers: Mapping[int, int]
    ) -> bool:
        """Whether what an op overwrites is still read, or being sent, by anyone else."""
        if held_name(step, old) is not None:
            return False
        if old in step.held:
            return True  # an input of the step, which is the caller's
        buffer = buffers.get(step.tensor_of[old], -1)
        place = self.here.place[instruction]
        return any(
            other not in self.here.place or self.here.place[other] > place
            for other in self.lookup.readers.get(buffer, ())
            if other != instruction
        )

    def _outputs(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """What others than this segment read."""
        found, buffers = [], []
        for number, instruction in enumerate(self.run):
            step = self.lookup.step_of(instruction)
            for buffer in self.lookup.written_by.get(instruction, ()):
                tensor = int(self.program.buffers["tensor"][buffer])
                if self.lookup.is_gathered[buffer] or tensor < 0 or step.versions[tensor] < 0:
                    continue
                if any(r not in self.line_of for r in self.lookup.readers.get(buffer, ())):
                    found.append((number, step.versions[tensor]))
                    buffers.append(buffer)
        return tuple(found), tuple(buffers)

    def _sums(
        self,
    ) -> tuple[tuple[tuple[int, int, int, bool], ...], tuple[tuple[int, int], ...]]:
        """The gradients that this segment adds to, and those that are complete with it."""
        found, complete = [], []
        for number, instruction in enumerate(self.run):
            step = self.lookup.step_of(instruction)
            touched = [
                *self.lookup.written_by.get(instruction, ()),
                *(
                    b
                    for b in self.lookup.read_by.get(instruction, ())
                    if self.lookup.adds_to(instruction, b)
                ),
            ]
            for buffer in touched:
                if not self.lookup.is_gathered[buffer]:
                    continue
                tensor = int(self.program.buffers["tensor"][buffer])
                place = self.here.sums.setdefault(buffer, len(self.here.sums))
                found.append((number, step.versions[tensor], place, self._is_read_now(tensor)))
                if self.rows["microbatch"][instruction] == self.program.microbatches - 1:
                    complete.append((place, buffer))
        return tuple(found), tuple(complete)

    def _is_read_now(self, tensor: int) -> bool:
        """Whether ops of the same microbatch read a gradient, besides updates."""
        graph = self.program.graph
        readers = graph.readers[tensor]
        return bool((graph.phase[readers] != Phase.UPDATE).any())
