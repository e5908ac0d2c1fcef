"""What the buffers and instructions of a program mean for those who run them on tensors.

How many samples an instruction sees, which rows a buffer has, which buffers are sums of gradients.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
from torch.fx import Node

from meshwright.capture.ledger import op_name
from meshwright.capture.torch_private import pytree
from meshwright.errors import InputError, quoted
from meshwright.execute.item import Piece
from meshwright.execute.lowered import Lowered
from meshwright.execute.rows import Rows
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.program.program import JOINS, Kind, Program


@dataclass(frozen=True, kw_only=True, eq=False)
class Lookup:
    """A program to be bound to ranks; what is the same for all of them is worked out once."""

    lowered: Lowered
    steps: Mapping[int, TracedStep] | None = None
    """The traced steps by samples; None: compute is emulated."""
    is_mean: bool = True
    """Whether the loss is a mean over samples, else a sum."""
    is_scaled: bool = False
    """Whether losses are scaled."""

    @property
    def program(self) -> Program:
        """The program that every rank runs a part of."""
        return self.lowered.program

    @property
    def rows(self) -> Rows:
        """The samples of a microbatch."""
        return self.lowered.rows

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The instructions that read each buffer."""
        return _listed((buffer, reader) for reader, buffer in self.program.reads.tolist())

    @cached_property
    def read_by(self) -> dict[int, list[int]]:
        """The buffers that each instruction reads."""
        return _listed(self.program.reads.tolist())

    @cached_property
    def written_by(self) -> dict[int, list[int]]:
        """The buffers that each instruction writes."""
        writers, tensors = self.program.buffers["writer"], self.program.buffers["tensor"]
        is_saved = (tensors < 0) & (self.program.instructions["kind"][writers] == Kind.COMPUTE)
        return _listed((int(writers[each]), each) for each in np.flatnonzero(~is_saved).tolist())

    @cached_property
    def before(self) -> dict[int, list[int]]:
        """The instructions that each waits for by order."""
        return _listed((second, first) for first, second in self.program.orders.tolist())

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
        op = rows["op"][reads["first"]]
        adds = (op >= 0) & (op == source) & (tensor >= 0)
        in_bucket = (op < 0) & (rows["tensor"][reads["first"]] < 0) & (tensor >= 0)
        found[reads["second"][adds | in_bucket]] = True
        return found

    def transfer_order(self, instruction: int) -> tuple[float, int]:
        """Sends and receives sorted by it are in the order on which both ends agree."""
        row = self.program.instructions[instruction]
        return float(self.lowered.timeline.start[instruction]), int(row["task"])

    def samples_of(self, instruction: int) -> int:
        """How many samples an op is run on."""
        row = self.program.instructions[instruction]
        if self.lowered.split[row["op"]] == Split.NONE and self.needs_whole[row["op"]]:
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
        if row["op"] >= 0:
            samples = self.samples_of(writer)
        elif row["kind"] in (Kind.RECEIVE, *JOINS):
            samples = self.rows.count(row["rows_from"], row["rows_to"])
        has_rows = tensor >= 0 and not self.is_fixed[tensor]
        samples *= has_rows
        return Piece(
            buffer=buffer,
            tensor=tensor,
            samples=samples,
            start=0,
            count=samples,
            has_rows=bool(has_rows),
        )

    def first_row(self, buffer: int) -> int:
        """The first sample that a buffer has."""
        row = self.program.instructions[self.program.buffers["writer"][buffer]]
        if row["op"] >= 0 and self.lowered.split[row["op"]] == Split.NONE:
            return 0
        return self.rows.bound(row["rows_from"])

    def step_of(self, instruction: int) -> TracedStep:
        """The traced step that an op is run from; updates, which never grow, are the same in all.

        So are most others that do not grow, but not the mean's division by the samples.
        """
        assert self.steps is not None
        op = int(self.program.instructions["op"][instruction])
        is_update = self.program.graph.phase[op] == Phase.UPDATE
        if is_update and not self.needs_whole[op] and self.steps:
            return next(iter(self.steps.values()))
        return self.steps[self.samples_of(instruction)]

    def taken_by(self, instruction: int, buffer: int) -> Piece:
        """What an op reads of a buffer: its rows, and gradients of the loss for these rows."""
        piece = self.piece_of(buffer)
        if not piece.has_rows:
            return replace(piece, factor=self._factor(instruction, piece))
        count = self.samples_of(instruction)
        row = self.program.instructions[instruction]
        is_whole = count == self.rows.samples
        first = 0 if is_whole else self.rows.bound(row["rows_from"])
        start = first - self.first_row(buffer)
        assert 0 <= start <= piece.samples - count, "lowering brings all rows that are read"
        return replace(piece, start=start, count=count)

    def _factor(self, instruction: int, piece: Piece) -> float:
        """What a gradient that has no rows is multiplied with.

        Backward begins with each replica's share of the batch in place of one, because losses are
        means over a replica's samples. Where a replica reads what another with another share made
        of that, both shares matter; an update is of the whole batch.
        """
        ops = self.chains.get(piece.tensor)
        if ops is None or not self.is_mean:
            return 1.0
        row = self.program.instructions[instruction]
        wanted = self.rows.samples
        if self.program.graph.phase[row["op"]] != Phase.UPDATE:
            wanted = self.rows.count(row["rows_from"], row["rows_to"])
        made = self.program.instructions[self.origin(piece.buffer)]
        found = self.rows.count(made["rows_from"], made["rows_to"])
        if wanted == found:
            return 1.0
        assert self.steps is not None
        graph, steps = self.program.graph, (self.steps[found], self.steps[wanted])
        return wanted / found * prod(growth(graph, op, *steps) for op in ops)

    @cached_property
    def chains(self) -> dict[int, tuple[int, ...]]:
        """By tensor without rows that is in proportion to the gradient which backward begins with:
        the ops on the way from there to it, on one of the ways."""
        assert self.steps is not None
        graph, seed = self.program.graph, next(iter(self.steps.values())).seed_kernel
        found: dict[int, tuple[int, ...]] = dict.fromkeys(graph.outputs[seed].tolist(), ())
        may = (graph.split == Split.NONE) & (graph.phase == Phase.BACKWARD)
        for op in np.flatnonzero(may).tolist():
            read = [found[each] for each in graph.inputs[op].tolist() if each in found]
            if read:
                found |= dict.fromkeys(graph.outputs[op].tolist(), (*read[0], op))
        return found

    def origin(self, buffer: int) -> int:
        """The op's instruction that made what a buffer holds, wherever that was."""
        writer = int(self.program.buffers["writer"][buffer])
        if self.program.instructions["kind"][writer] != Kind.RECEIVE:
            return writer
        send = self.sends[int(self.program.instructions["task"][writer])]
        return self.origin(self.read_by[send][0])

    @cached_property
    def sends(self) -> dict[int, int]:
        """The send of each task that has one."""
        rows = self.program.instructions
        sends = np.flatnonzero(rows["kind"] == Kind.SEND)
        return dict(zip(rows["task"][sends].tolist(), sends.tolist(), strict=True))

    def copies_of(self, instruction: int) -> int:
        """How many replicas run the same op on the same rows, each for all of its result."""
        rows, row = self.program.instructions, self.program.instructions[instruction]
        is_same = rows["kind"] == Kind.COMPUTE
        for name in ("op", "microbatch", "rows_from", "rows_to"):
            is_same = is_same & (rows[name] == row[name])
        copies = int(np.count_nonzero(is_same))
        return copies // int(self.terms[row["op"]])

    @cached_property
    def terms(self) -> npt.NDArray[np.int32]:
        """By op: how many members of a context team have a term each of what forward makes of rows,
        or of such terms."""
        expansion, graph = self.lowered.expansion, self.lowered.expansion.graph
        adds = np.zeros(graph.num_ops, dtype=np.bool_)
        adds[graph.use_op[expansion.rows[graph.use_tensor]]] = True
        is_term = graph.tensor_partial & ~expansion.rows
        for op in np.flatnonzero(graph.phase == Phase.FORWARD).tolist():
            read = graph.inputs[op]
            adds[op] |= bool((is_term[read] & adds[graph.tensor_source[read]]).any())
        context = np.array([part.context for part in self.lowered.plan.parts], dtype=np.int32)
        return np.where(adds, context[expansion.part_of_op], 1).astype(np.int32)

    def adds_to(self, instruction: int, buffer: int) -> bool:
        """Whether an op reads a buffer only to add its own result."""
        tensor = int(self.program.buffers["tensor"][buffer])
        source = self.program.graph.tensor_source[tensor]
        return tensor >= 0 and bool(source == self.program.instructions["op"][instruction])


def _listed(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """By first number of some pairs: the second ones, in their order."""
    found: dict[int, list[int]] = defaultdict(list)
    for first, second in pairs:
        found[first].append(second)
    return found


def growth(graph: Graph, op: int, one: TracedStep, other: TracedStep) -> float:
    """By what the result of an op on a gradient grows from one number of samples to another."""
    nodes = one.ledger.kernels[op].node, other.ledger.kernels[op].node
    leaves = [pytree.tree_leaves((node.args, node.kwargs)) for node in nodes]
    numbers = [[each for each in of_node if not isinstance(each, Node)] for of_node in leaves]
    differing = [pair for pair in zip(*numbers, strict=True) if pair[0] != pair[1]]
    if not differing:
        return 1.0
    name = op_name(nodes[0])
    if len(differing) == 1 and name in ("div", "mul"):
        before, after = (float(each) for each in differing[0])
        return before / after if name == "div" else after / before
    raise InputError(
        f"op {quoted(graph.op_names[op])}: depends on the number of samples, so its readers must "
        f"be in a part with the same shares as its own, but run on {other.samples:,} samples in "
        f"place of {one.samples}"
    )


def held_name(step: TracedStep, version: int) -> str | None:
    """The name of the state that a version is in; None: in none."""
    name = step.held.get(step.roots[version])
    return None if name is None or name.startswith("input ") else name
