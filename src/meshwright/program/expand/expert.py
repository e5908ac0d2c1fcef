"""Expert parallelism: divides experts among replicas, and adds the all-to-alls of their tokens.

Consecutive replicas, as many as the part's `expert` width, hold different experts. The ops of
experts (`Role.EXPERT`) on a replica then work on those tokens of all these replicas that chose its
own experts. An all-to-all sends the experts every tensor with a row a token that they read; another
sends back every such tensor that other ops read of theirs, once for all readers (Lepikhin et al.
2020, "GShard", section 3.2). That makes two in forward, and two for gradients in backward. Before
the first of them, an all-to-all of one number an expert exchanges how many tokens go where: these
numbers differ from step to step, no token is dropped, and buffers are as large as what arrives.

Sizes and times assume balanced tokens: every replica receives as many as it sends, so the bytes of
an all-to-all are those that a replica sends. The gradients of experts are already sums over the
tokens of all these replicas, and are synchronised only among replicas that hold the same experts.
All-to-alls are named after the op whose tensor they move, `<op>.all_to_all`.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Bools, Phase
from meshwright.graph.stack.stack import Role
from meshwright.plan.part import Part, Sync
from meshwright.plan.plan import Plan
from meshwright.program.expand.expansion import Axis, Expansion
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.program import Kind


def divide_experts(before: Expansion, plan: Plan) -> Expansion:
    """The expansion in which replicas divide experts; InputError where the graph does not show
    how."""
    if all(part.expert == 1 for part in plan.parts):
        return before
    for number, part in enumerate(plan.parts):
        if part.expert > 1 and part.sync in (Sync.PARAMETER_SERVER, Sync.DUPLICATE):
            raise InputError(
                f"part {number}: expert must be 1 where gradients are synchronised by "
                f"{part.sync}, got {part.expert}"
            )
    return _TokenDispatch(before, plan).run()


def is_expert_gradient(expansion: Expansion, parts: Sequence[Part]) -> Bools:
    """By tensor: whether it is a gradient of experts that replicas divide."""
    graph = expansion.graph
    widths = np.array([part.expert for part in parts])
    source = graph.tensor_source
    found: Bools = expansion.role[source] == Role.EXPERT
    found &= (widths > 1)[expansion.part_of_op[source]] & graph.tensor_partial
    found &= graph.phase[source] == Phase.BACKWARD
    return found


def divides_experts(expansion: Expansion, part: Part, update: int) -> bool:
    """Whether an op updates experts that the replicas of its part divide."""
    return part.expert > 1 and bool(expansion.role[update] == Role.EXPERT)


def num_expert_holders(part: Part) -> int:
    """How many devices hold the same experts."""
    return part.num_replicas * part.context // part.expert


class _TokenDispatch:
    """One pass over the ops, in order, that sends tokens to experts and back."""

    def __init__(self, before: Expansion, plan: Plan) -> None:
        self.before, self.graph, self.parts = before, before.graph, plan.parts
        widths = np.array([part.expert for part in plan.parts])
        self.width: list[int] = widths[before.part_of_op].tolist()
        """By op: how many replicas divide the experts."""
        inside = (before.role == Role.EXPERT) & (self.graph.phase != Phase.UPDATE)
        self.inside: list[bool] = (inside & (widths > 1)[before.part_of_op]).tolist()
        """By op: whether it works on tokens that were sent to it."""
        self.rewrite = Rewrite(before)
        self.ends_of: dict[int, int] = {}
        """By op of experts: the tensor that says where each expert's tokens end."""
        self.counted: dict[int, tuple[int, int]] = {}
        """By tensor that says where each expert's tokens end: the same for what arrives at the
        replica's own experts, and the tensor of how many tokens go where."""
        self.moved: dict[int, int] = {}
        """By tensor: what an all-to-all makes of it."""

    def run(self) -> Expansion:
        """Go over all ops and return the expansion in which replicas divide experts."""
        for op in range(self.graph.num_ops):
            if self.width[op] > 1:
                self._visit(op)
        for tensor in np.flatnonzero(is_expert_gradient(self.before, self.parts)).tolist():
            self._divide(tensor, self.width[int(self.graph.tensor_source[tensor])])
        return self.rewrite.done()

    def _visit(self, op: int) -> None:
        graph = self.graph
        inputs = [each for each in graph.inputs[op].tolist() if graph.tensor_bytes[each] > 0]
        if self.inside[op]:
            self.ends_of[op] = self._find_ends(op, inputs)
        for tensor in inputs:
            comes_from = self.inside[int(graph.tensor_source[tensor])]
            if comes_from and graph.tensor_partial[tensor]:
                self._check_gradient(op, tensor)
            elif comes_from != self.inside[op]:
                self.rewrite.replace_read(op, tensor, self._arrived(op, tensor))

    def _check_gradient(self, op: int, tensor: int) -> None:
        """Refuse an op other than the experts' own update that reads their gradient, which has some
        experts only."""
        if self.before.role[op] != Role.EXPERT:
            name, source = (
                quoted(self.graph.op_names[each]) for each in (op, self.graph.tensor_source[tensor])
            )
            raise InputError(
                f"op {name}: must not read {source}, the gradient of experts that replicas divide, "
                f"unless it updates these"
            )

    def _find_ends(self, op: int, inputs: list[int]) -> int:
        """The tensor that says where each expert's tokens end, which an op of experts or one before
        it reads."""
        graph = self.graph
        sources = [int(graph.tensor_source[each]) for each in inputs]
        found = {self.ends_of[each] for each in sources if self.inside[each]}
        found |= {
            tensor
            for tensor, source in zip(inputs, sources, strict=True)
            if not self.inside[source] and not self._has_rows(tensor)
        }
        if len(found) != 1:
            raise InputError(
                f"op {quoted(graph.op_names[op])}: experts that replicas divide must learn from "
                f"one tensor which tokens are theirs, got {len(found):,}"
            )
        return found.pop()

    def _has_rows(self, tensor: int) -> bool:
        return bool(self.graph.tensor_bytes[tensor] > self.graph.fixed_tensor_bytes[tensor])

    def _arrived(self, op: int, tensor: int) -> int:
        """What an op of experts gets of a tensor of other ops, or another op of a tensor of
        experts."""
        if self.inside[op] and not self._has_rows(tensor):
            return self._count(tensor)[0]
        if tensor not in self.moved:
            reader = op if self.inside[op] else int(self.graph.tensor_source[tensor])
            counts = self._count(self.ends_of[reader])[1]
            self.moved[tensor] = self.rewrite.like(tensor, self._add(tensor, counts))
        return self.moved[tensor]

    def _count(self, ends: int) -> tuple[int, int]:
        if ends not in self.counted:
            new = self._add(ends)
            own = self.rewrite.like(ends, new, is_partial=False)
            width, size = (
                self.width[_source(self.rewrite, ends)],
                float(self.rewrite.tensors[ends]["bytes"]),
            )
            self._divide(own, width)
            # Numbers of tokens for each expert, sent and received.
            counts = self.rewrite.add_tensor(new, 2 * size, 2 * size)
            self.counted[ends] = own, counts
        return self.counted[ends]

    def _divide(self, tensor: int, width: int) -> None:
        record = self.rewrite.tensors[tensor]
        record.update({name: record[name] / width for name in ("bytes", "fixed_bytes")})

    def _add(self, *reads: int) -> int:
        """An all-to-all after all that it reads, by the name of the op that makes the first."""
        rewrite, source = self.rewrite, _source(self.rewrite, reads[0])
        place = max(rewrite.place[_source(rewrite, each)] for each in reads)
        name = rewrite.number_name(f"{self.graph.op_names[source]}.all_to_all")
        return rewrite.add_collective(Kind.ALL_TO_ALL, Axis.EXPERT, source, place, reads, name)


def _source(rewrite: Rewrite, tensor: int) -> int:
    """The op that makes a tensor by now."""
    return int(rewrite.tensors[tensor]["source"])
