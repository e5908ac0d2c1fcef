"""Divides the tokens of every sample among the members of context teams.

A member has whole weights (of its tensor team its shards) and runs all ops on the rows of its own
tokens. Rows meet in attention only, by keys and values that are gathered (Llama Team 2024, "The
Llama 3 Herd of Models", section 3.3.2), or that travel (`meshwright.program.expand.ring`):

- Attention reads its own queries and the keys and values of all members, which are gathered for
  forward and, again, for backward. The second time waits for a gradient (an order without bytes).
- Backward of attention gives the gradient of its own queries, and of all keys and values a term,
  of which a reduce-scatter makes rows.
- What is made of inputs alone, as masks and labels, is whole on every member, each of which takes
  its rows where it needs them. Rows begin with the ops of forward that read weights.
- Gradients of weights are terms, and so is the loss. Those who hold the same weights add them up:
  data replicas and members of context teams in one go.
- A part with a team of another shape gets whole tensors and cuts its rows of them.

Sizes are those that layers are priced by (`meshwright.cost.layer`).
"""

import numpy as np

from meshwright.array import marked
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Bools, Graph, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.product import attends, key_bytes
from meshwright.graph.stack.stack import Role, Stack
from meshwright.plan.plan import Keys, Part, Plan
from meshwright.program.expand.expansion import Axis, Expansion, Owned
from meshwright.program.expand.member import Members, find_members
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.expand.ring import Rings
from meshwright.program.expand.shard import check_parts
from meshwright.program.expand.size import resize_tokens
from meshwright.program.program import Kind

_BEFORE = -0.5
"""The place of a new op before the one that reads it; others stand right after what they read."""


def divide_tokens(before: Expansion, graph: Graph, plan: Plan) -> Expansion:
    """What one member of each part's context team runs; InputError where that is not known.

    `graph` is the planned one.
    """
    if all(part.context == 1 for part in plan.parts):
        return before
    stack = find_layers(graph)
    members = find_members(stack)
    if before.graph is graph:  # else they were checked when features were divided
        check_parts(before, stack, members, plan)
    return _Tokens(before, stack, members, plan).run()


class _Tokens:
    """One pass over the ops, in order, that gives each member its rows of tokens."""

    def __init__(self, before: Expansion, stack: Stack, members: Members, plan: Plan) -> None:
        self.before, self.graph, self.stack, self.members = before, before.graph, stack, members
        self.parts = plan.parts
        self.rewrite = Rewrite(before)
        self.rings = Rings(self.rewrite)
        self.on_rows: Bools = np.zeros(self.graph.num_ops, dtype=np.bool_)
        self.attends: Bools = attends(stack.graph)
        self._scattered: dict[int, int] = {}  # of terms of keys' gradients: a member's rows
        self._gathered: dict[int, int] = {}  # of rows: all of them, for other parts
        self._sliced: dict[tuple[int, int], int] = {}  # of a whole tensor, by part: rows of it
        self._waits: dict[int, list[int]] = {}  # what ops read besides

    def run(self) -> Expansion:
        """Go over all ops and return the expansion in which teams divide tokens."""
        for op in range(self.graph.num_ops):
            reads = [self._arrive(op, self._scattered.get(t, t)) for t in self._inputs(op)]
            self.rewrite.reads[op] = list(dict.fromkeys([*reads, *self._waits.get(op, ())]))
            if self._part(op).context > 1 and self.graph.phase[op] != Phase.UPDATE:
                self._visit(op, reads)
        self._describe()
        return self.rewrite.done()

    def _inputs(self, op: int) -> list[int]:
        tensors: list[int] = self.graph.inputs[op].tolist()
        return tensors

    def _part(self, op: int) -> Part:
        return self.parts[int(self.before.part_of_op[op])]

    def _has_rows(self, tensor: int) -> bool:
        return bool(self.rewrite.tensors[tensor]["rows"])

    def _grows(self, tensor: int) -> bool:
        """Whether a tensor has a row for each token, of all tokens or of some."""
        each = self.rewrite.tensors[tensor]
        return bool(each["bytes"] > each["fixed_bytes"] and not each["is_partial"])

    def _visit(self, op: int, reads: list[int]) -> None:
        """An op of a part with a context team."""
        has_rows = any(self._has_rows(each) for each in reads)
        if not has_rows and not self._begins(op):
            return
        self._check(op)
        self.on_rows[op] = True
        planned = int(self.before.origin[op])
        for tensor in self.graph.outputs[op].tolist():
            if self._grows(tensor):
                self._hold(tensor)
        if planned >= 0 and self.attends[planned]:
            rows = [each for each in reads if self._has_rows(each)]
            size = self._key_bytes(op, rows)
            if self._part(op).keys is Keys.RING:
                self.rings.attend(op, self._key_rows(rows), size, self._part(op).context)
            else:
                self._gather_keys(op, rows, size)
        elif planned >= 0 and self._attended(planned) >= 0:
            self._visit_attention_backward(op)

    def _attended(self, planned: int) -> int:
        """The attention that an op is the backward of; -1: none."""
        partner = int(self.stack.graph.partner[planned])
        is_fused = "attention" in self.stack.graph.kind[planned]
        return partner if partner >= 0 and is_fused and self.attends[partner] else -1

    def _begins(self, op: int) -> bool:
        """Whether an op makes the first rows: from weights and inputs."""
        graph = self.graph
        reads_weights = graph.parameter_bytes[op] > 0 and graph.phase[op] == Phase.FORWARD
        return bool(reads_weights and any(map(self._grows, graph.outputs[op].tolist())))

    def _check(self, op: int) -> None:
        planned = int(self.before.origin[op])
        if planned < 0:
            return
        graph, name = self.stack.graph, quoted(self.graph.op_names[op])
        number, context = int(self.before.part_of_op[op]), self._part(op).context
        if not self.members.has_tokens[planned]:
            raise InputError(
                f"part {number}: context must be 1 where an op works on other rows than tokens, as "
                f"{name} does, got {context}"
            )
        if self.members.drops_tokens[planned]:
            raise InputError(
                f"part {number}: context must be 1 where an op leaves a token of each sample out, "
                f"as {name} does, got {context}"
            )
        if self.attends[planned] and "attention" not in graph.kind[planned]:
            raise InputError(
                f"part {number}: context must be 1 where attention is not one op, but made of "
                f"products as {name}, got {context}"
            )

    def _hold(self, tensor: int) -> None:
        """Let members have their rows of a tensor."""
        row, fixed = self.rewrite.tensors[tensor], float(self.graph.fixed_tensor_bytes[tensor])
        grown = float(self.graph.tensor_bytes[tensor]) - fixed
        size = fixed + grown / self._part(int(row["source"])).context
        row.update(rows=True, bytes=size, fixed_bytes=fixed)

    def _arrive(self, op: int, tensor: int) -> int:
        """The tensor that an op reads in place of one that may come from another part's team."""
        if tensor >= self.graph.num_tensors:
            return tensor
        source = int(self.graph.tensor_source[tensor])
        there, here = self._part(source), self._part(op)
        if there is here:
            return tensor
        agrees = (there.tensor, there.context) == (here.tensor, here.context)
        if self._has_rows(tensor) and not agrees:
            tensor = self._gather(source, tensor)
        if here.context > 1 and not self._has_rows(tensor) and self._is_stream(op, tensor):
            return self._slice(op, tensor)
        return tensor

    def _is_stream(self, op: int, tensor: int) -> bool:
        origin = int(self.rewrite.tensors[tensor]["origin"])
        known = origin >= 0 and bool(self.members.is_stream[origin])
        return known and self._grows(tensor) and self.graph.phase[op] != Phase.UPDATE

    def _gather(self, source: int, tensor: int) -> int:
        """All rows of a tensor, for other parts."""
        if tensor not in self._gathered:
            name = f"{self.graph.op_names[source]}.all_gather.context"
            new = self._add(Kind.ALL_GATHER, source, name, self.rewrite.place[source], [tensor])
            whole, fixed = self.graph.tensor_bytes[tensor], self.graph.fixed_tensor_bytes[tensor]
            self._gathered[tensor] = self.rewrite.like(
                tensor, new, rows=False, bytes=float(whole), fixed_bytes=float(fixed)
            )
        return self._gathered[tensor]

    def _slice(self, op: int, tensor: int) -> int:
        """A member's rows of a tensor that it has all of, cut in the part of an op."""
        key = tensor, int(self.before.part_of_op[op])
        if key not in self._sliced:
            each = self.rewrite.tensors[tensor]
            source = int(self.stack.graph.tensor_source[each["origin"]])
            name = f"{self.stack.graph.op_names[source]}.slice.context"
            new = self._add(Kind.COMPUTE, op, name, op + _BEFORE, [tensor])
            fixed, context = each["fixed_bytes"], self._part(op).context
            size = fixed + (each["bytes"] - fixed) / context
            for column, value in (("", size), ("fixed_", fixed)):
                self.rewrite.resize(
                    new, **{f"{column}bytes_read": value, f"{column}bytes_written": value}
                )
            self.rewrite.changed[new]["kind"] = "slice"
            self._sliced[key] = self.rewrite.like(tensor, new, rows=True, bytes=size)
        return self._sliced[key]

    def _add(self, kind: Kind, op: int, name: str, place: float, tensors: list[int]) -> int:
        axis = Axis.NONE if kind == Kind.COMPUTE else Axis.CONTEXT
        return self.rewrite.add_collective(kind, axis, op, place, tensors, name)

    def _key_bytes(self, op: int, rows: list[int]) -> float:
        """All keys and values that attention reads."""
        made = float(self.graph.tensor_bytes[self.graph.outputs[op]].max())
        return key_bytes(self.graph.tensor_bytes[rows].tolist(), made)

    def _key_rows(self, rows: list[int]) -> list[int]:
        """Of the tensors that attention reads rows of: those that may have keys and values."""
        sizes = self.graph.tensor_bytes[rows]
        if len(rows) == 1 or np.count_nonzero(sizes == sizes.max()) > 1:
            return rows
        return [each for each in rows if each != rows[int(sizes.argmax())]]  # queries: more heads

    def _gather_keys(
        self, op: int, rows: list[int], size: float, order: list[int] | None = None
    ) -> None:
        """Let an op read the keys and values of all members, beside its own rows."""
        rewrite, rows = self.rewrite, self._key_rows(rows)
        last = max(rewrite.place[rewrite.tensors[each]["source"]] for each in rows)
        place = last if order is None else op + _BEFORE
        name = f"{self.graph.op_names[op]}.all_gather"
        new = self._add(Kind.ALL_GATHER, op, name, place, [*rows, *(order or ())])
        held = Owned(int(rewrite.tensors[rows[0]]["held"]))
        for _ in range(2):
            rewrite.reads[op].append(rewrite.add_tensor(new, size / 2, 0.0, held=held))

    def _visit_attention_backward(self, op: int) -> None:
        """Keys and values are gathered again, or travel once more; of their gradients members have
        terms."""
        graph, planned = self.graph, int(self.before.origin[op])
        forward = int(np.flatnonzero(self.before.origin == self._attended(planned))[0])
        reads = set(self._inputs(forward))
        rows = [each for each in self._inputs(op) if each in reads and self._has_rows(each)]
        size = self._key_bytes(forward, rows)
        made = graph.outputs[op]
        query, *keys = made[graph.tensor_bytes[made] > 0].tolist()
        if self._part(op).keys is Keys.RING:
            order, width = self._order(op), self._part(op).context
            last = self.rings.differentiate(op, self._key_rows(rows) + order, size, width, keys)
            if not keys:  # as below
                held = Owned(int(self.rewrite.tensors[query]["held"]))
                self._alone(query, last, size / width, held)
            return
        self._gather_keys(op, rows, size, self._order(op))
        place, name = self.rewrite.place[op], f"{graph.op_names[op]}.reduce_scatter"
        scatter = self._add(Kind.REDUCE_SCATTER, op, name, place, keys)
        if not keys:  # a graph may have all three gradients in one tensor
            held = Owned(int(self.rewrite.tensors[query]["held"]))
            self.rewrite.reads[scatter].append(self.rewrite.add_tensor(op, size, 0.0, held=held))
            self._alone(query, scatter, size / self._part(op).context, held)
        for tensor in keys:
            self._scattered[tensor] = self.rewrite.like(tensor, scatter)
            self.rewrite.tensors[tensor].update(
                rows=False,
                bytes=float(graph.tensor_bytes[tensor]),
                fixed_bytes=float(graph.fixed_tensor_bytes[tensor]),
            )

    def _alone(self, tensor: int, scatter: int, size: float, held: Owned) -> None:
        """Let the readers of a gradient wait for the rows that a scatter makes besides it."""
        rows = self.rewrite.add_tensor(scatter, size, 0.0, held=held, rows=True)
        for reader in self.graph.readers[tensor].tolist():
            self._waits.setdefault(reader, []).append(rows)

    def _order(self, op: int) -> list[int]:
        """What makes the second gather of keys wait for the gradient that their reader reads."""
        return self.rewrite.add_order(op, self._inputs(op), self.before.part_of_op)

    def _describe(self) -> None:
        """Set the sizes of ops as they are on a member's tokens."""
        before, stack = self.before, self.stack
        known = np.flatnonzero(before.origin >= 0)
        place = np.zeros(stack.graph.num_ops, dtype=np.int32)
        place[before.origin[known]] = known
        changes = self.on_rows[place]
        by_sequence = self._works_on_sequence()[place]
        part_of_layer = np.zeros(stack.num_layers, dtype=np.int64)
        part_of_layer[stack.layer_of_op] = before.part_of_op[place]
        for number, part in enumerate(self.parts):
            if part.context > 1:
                layers = np.flatnonzero(part_of_layer == number).astype(np.int32)
                resize_tokens(self.rewrite, stack, layers, part, by_sequence, changes, place)
        for op in np.flatnonzero(self.on_rows & (before.origin < 0)).tolist():
            self._resize_slice(op)
        self.rings.describe()

    def _works_on_sequence(self) -> Bools:
        """By op: whether members of its tensor team divide its rows."""
        graph, rows = self.graph, self.before.held == Owned.ROWS
        near = marked(graph.num_ops, graph.use_op[rows[graph.use_tensor]])
        near |= marked(graph.num_ops, graph.tensor_source[rows])
        found: Bools = near & (self.before.role == Role.WHOLE)
        return found

    def _resize_slice(self, op: int) -> None:
        """A slice, or what else shards need besides the planned ops."""
        for name in ("bytes_read", "bytes_written"):
            whole = float(getattr(self.graph, name)[op])
            fixed = float(getattr(self.graph, f"fixed_{name}")[op])
            size = fixed + (whole - fixed) / self._part(op).context
            if size != whole:
                self.rewrite.resize(op, **{name: size})
