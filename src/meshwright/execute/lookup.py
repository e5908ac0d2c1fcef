"""What the buffers and instructions of a program mean for those who run them on tensors.

How many samples an instruction sees, which rows a buffer has, which buffers are sums of gradients.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.execute.item import Piece
from meshwright.execute.rows import Rows
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Split
from meshwright.program.program import Kind, Program

_JOINS = (Kind.CONCATENATE, Kind.SUM)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lookup:
    """A program to be bound to ranks; what is the same for all of them is worked out once."""

    program: Program
    rows: Rows
    split: npt.NDArray[np.int8]
    """Of each op, as the plan has it: NONE where replicas duplicate it."""
    steps: Mapping[int, TracedStep] | None
    """The traced steps by samples; None: compute is emulated."""
    start: npt.NDArray[np.float64]
    """When the simulation has every instruction start."""
    is_mean: bool = True
    """Whether the loss is a mean over samples, else a sum."""

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The instructions that read each buffer."""
        found: dict[int, list[int]] = defaultdict(list)
        for instruction, buffer in self.program.reads.tolist():
            found[buffer].append(instruction)
        return found

    @cached_property
    def read_by(self) -> dict[int, list[int]]:
        """The buffers that each instruction reads."""
        found: dict[int, list[int]] = defaultdict(list)
        for instruction, buffer in self.program.reads.tolist():
            found[instruction].append(buffer)
        return found

    @cached_property
    def written_by(self) -> dict[int, list[int]]:
        """The buffers that each instruction writes."""
        found: dict[int, list[int]] = defaultdict(list)
        buffers = self.program.buffers
        saved = (buffers["tensor"] < 0) & np.isin(
            self.program.instructions["kind"][buffers["writer"]], (Kind.COMPUTE,)
        )
        for buffer in np.flatnonzero(~saved).tolist():
            found[int(buffers["writer"][buffer])].append(buffer)
        return found

    @cached_property
    def before(self) -> dict[int, list[int]]:
        """The instructions that each waits for by order."""
        found: dict[int, list[int]] = defaultdict(list)
        for first, second in self.program.orders.tolist():
            found[second].append(first)
        return found

    @cached_property
    def is_fixed(self) -> npt.NDArray[np.bool_]:
        """Whether a tensor is as large for any number of samples."""
        graph = self.program.graph
        is_fixed: npt.NDArray[np.bool_] = graph.fixed_tensor_bytes == graph.tensor_bytes
        return is_fixed

    @cached_property
    def is_gathered(self) -> npt.NDArray[np.bool_]:
        """Whether a buffer is a gradient that adds up over microbatches or replicas."""
        rows, buffers, reads = (
            self.program.instructions,
            self.program.buffers,
            self.program.reads,
        )
        found = np.zeros(len(buffers), dtype=np.bool_)
        tensor = buffers["tensor"][reads["second"]]
        source = self.program.graph.tensor_source[tensor]
        kind, op = rows["kind"][reads["first"]], rows["op"][reads["first"]]
        adds = (kind == Kind.COMPUTE) & (op == source) & (tensor >= 0)
        in_bucket = (kind != Kind.COMPUTE) & (rows["tensor"][reads["first"]] < 0) & (tensor >= 0)
        found[reads["second"][adds | in_bucket]] = True
        return found

    def samples_of(self, instruction: int) -> int:
        """How many samples an op is run on."""
        row = self.program.instructions[instruction]
        if self.split[row["op"]] == Split.NONE and self.needs_whole[row["op"]]:
            return self.rows.samples
        return self.rows.count(row["rows_from"], row["rows_to"])

    @cached_property
    def needs_whole(self) -> npt.NDArray[np.bool_]:
        """Of ops that are not split: whether they touch tensors that grow with the batch."""
        graph = self.program.graph
        found = np.zeros(graph.num_ops, dtype=np.bool_)
        grows = ~self.is_fixed
        found[graph.tensor_source[grows]] = True
        found[graph.use_op[grows[graph.use_tensor]]] = True
        return found

    def piece_of(self, buffer: int) -> Piece:
        """All of a buffer."""
        record = self.program.buffers[buffer]
        writer, tensor = int(record["writer"]), int(record["tensor"])
        row = self.program.instructions[writer]
        samples = self.rows.samples
        if row["kind"] == Kind.COMPUTE:
            samples = self.samples_of(writer)
        elif row["kind"] in (Kind.RECEIVE, *_JOINS) and tensor >= 0:
            source = int(self.program.graph.tensor_source[tensor])
            if self.split[source] != Split.NONE:
                samples = self.rows.count(row["rows_from"], row["rows_to"])
        if tensor < 0 or self.is_fixed[tensor]:
            samples = 0
        return Piece(buffer=buffer, tensor=tensor, samples=samples, start=0, count=samples)

    def first_row(self, buffer: int) -> int:
        """The first sample that a buffer has."""
        row = self.program.instructions[self.program.buffers["writer"][buffer]]
        if row["kind"] == Kind.COMPUTE and self.split[row["op"]] == Split.NONE:
            return 0
        return self.rows.bound(row["rows_from"])

    def step_of(self, instruction: int) -> TracedStep:
        """The traced step that an op is run from; one that never grows is the same in all."""
        assert self.steps is not None
        op = int(self.program.instructions["op"][instruction])
        if self.split[op] == Split.NONE and not self.needs_whole[op] and self.steps:
            return next(iter(self.steps.values()))
        return self.steps[self.samples_of(instruction)]

    def adds_to(self, instruction: int, buffer: int) -> bool:
        """Whether an op reads a buffer only to add its own result."""
        tensor = int(self.program.buffers["tensor"][buffer])
        source = self.program.graph.tensor_source[tensor]
        return tensor >= 0 and bool(source == self.program.instructions["op"][instruction])


def held_name(step: TracedStep, version: int) -> str | None:
    """The name of the state that a version is in; None: in none."""
    name = step.held.get(step.roots[version])
    return None if name is None or name.startswith("input ") else name
