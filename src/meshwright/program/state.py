"""What of a step's state each device holds under a plan, without a model at hand.

The state is what a checkpoint keeps: weights, buffers and the optimiser's tensors. A graph says how
many bytes each op holds of it and which gradients updates read; a plan says who holds all of a
weight, a team member's part of it, some of its experts, or a shard of these. Pieces are named by
what makes a weight's gradient, so that they are the same under every plan of a step.

Numbers of a weight are counted experts first, then what a tensor team divides, then the rest: as
they lie in memory where the first dimension is divided. A team divides other weights along another
dimension; that makes no difference to how many bytes two devices have in common, unless ZeRO
divides the parts of two teams of different widths.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import lcm, prod

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Role
from meshwright.plan.part import Part
from meshwright.plan.plan import Plan
from meshwright.program.expand.bundle import Update, find_weights
from meshwright.program.expand.expansion import Expansion, unexpanded
from meshwright.program.expand.member import find_members
from meshwright.program.expand.place import find_holder, find_place
from meshwright.program.piece import Box, bounds, cut_run
from meshwright.program.untie import untie

_NUMBER_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

WEIGHTS, OPTIMISER, SCALARS, OTHERS = "weights", "optimiser", "scalars", "others"
"""What pieces are of. Scalars: the optimiser's single numbers of a weight, such as its step.
Others: buffers, and weights that nothing updates."""

StateKey = tuple[str, str]
"""What a piece is of, and what makes the gradient or holds the buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """One piece of the state, and in which parts of a plan devices hold it."""

    key: StateKey
    numbers: int
    number_bytes: float
    """What the piece has for each number of a weight."""
    parts: tuple[int, ...]
    """Every device of these parts holds it, or its share of it."""
    is_cut: bool = False
    """Whether tensor teams divide it."""
    of_experts: bool = False
    """Whether replicas that hold different experts divide it."""
    is_sharded: bool = False
    """Whether ZeRO divides it among those that would hold the same."""

    @property
    def num_bytes(self) -> float:
        """All of it, once."""
        return self.numbers * self.number_bytes


def find_state(graph: Graph, cluster: Cluster, plan: Plan) -> tuple[HeldState, ...]:
    """The pieces of a step's state and the parts that hold them; of copies of a weight in several
    parts it is one piece."""
    graph, plan, placement = untie(graph, cluster, plan)
    reader = _StateReader(graph, plan, unexpanded(graph, placement))
    joined: dict[StateKey, HeldState] = {}
    for piece in reader.pieces():
        known = joined.get(piece.key)
        if known is None:
            joined[piece.key] = piece
        else:
            parts = tuple(dict.fromkeys((*known.parts, *piece.parts)))
            joined[piece.key] = HeldState(
                key=piece.key,
                numbers=max(piece.numbers, known.numbers),
                number_bytes=piece.number_bytes,
                parts=parts,
                is_cut=piece.is_cut,
                of_experts=piece.of_experts,
                is_sharded=piece.is_sharded and known.is_sharded,
            )
    return tuple(joined.values())


class _StateReader:
    """One plan's graph, in which parts share no weights."""

    def __init__(self, graph: Graph, plan: Plan, expansion: Expansion) -> None:
        self.graph, self.plan = graph, plan
        self.part_of_op = expansion.part_of_op
        self.weights = find_weights(expansion)
        self.known = {each.op: each for some in self.weights.updates.values() for each in some}
        has_teams = any(part.tensor > 1 or part.expert > 1 for part in plan.parts)
        members = find_members(find_layers(graph)) if has_teams else None
        self.role = None if members is None else members.role
        self.is_cut = None if members is None else members.is_cut
        self.state = graph.state_bytes.copy()
        """What is left of each op's state once pieces are taken from it."""
        self.per_number = self._find_per_number()

    def pieces(self) -> Iterator[HeldState]:
        """The updates' weights and optimiser state, then what is left of each op's."""
        for op in np.flatnonzero(self.graph.phase == Phase.UPDATE).tolist():
            tensors = self._gradients(op)
            if tensors:
                yield from self._updated(op, tensors)
        for op in np.flatnonzero(self.state > 0.5).tolist():
            yield HeldState(
                key=(OTHERS, self.graph.op_names[op]),
                numbers=round(float(self.state[op])),
                number_bytes=1.0,
                parts=(int(self.part_of_op[op]),),
            )

    def _gradients(self, op: int) -> list[int]:
        """The gradients that an update reads: of backward, or a sum of those of copies."""
        if op in self.known:
            return list(self.known[op].gradients)
        graph = self.graph
        read = graph.inputs[op].tolist()
        return [
            each
            for each in read
            if graph.phase[graph.tensor_source[each]] == Phase.UPDATE
            and len(graph.inputs[int(graph.tensor_source[each])]) > 1
            and not len(graph.outputs[op])
        ]

    def _number_bytes(self, op: int) -> int:
        return _NUMBER_BYTES.get(self.graph.precision[op], 1)

    def _numbers(self, op: int, tensors: list[int]) -> int:
        known = self.known.get(op)
        size = (
            known.parameter_bytes
            if known is not None
            else float(self.graph.tensor_bytes[tensors].sum())
        )
        return max(round(size / self._number_bytes(op)), 0)

    def _find_per_number(self) -> dict[tuple[str, int], int]:
        """By kind of update and bytes of a number: what the optimiser has for each number, as most
        updates of the kind say."""
        found: dict[tuple[str, int], Counter[int]] = {}
        for op in np.flatnonzero(self.graph.phase == Phase.UPDATE).tolist():
            numbers = self._numbers(op, self._gradients(op))
            if numbers:
                size = self._number_bytes(op)
                per = int(self.state[op] // numbers) // size * size
                votes = found.setdefault((self.graph.kind[op], size), Counter())
                votes[per] += numbers
        return {kind: votes.most_common(1)[0][0] for kind, votes in found.items()}

    def _updated(self, op: int, tensors: list[int]) -> Iterator[HeldState]:
        """The pieces of one update."""
        graph, number_bytes = self.graph, self._number_bytes(op)
        numbers, name = self._numbers(op, tensors), self._name(tensors)
        part = self.plan.parts[int(self.part_of_op[op])]
        of_experts = self.role is not None and bool(self.role[op] == Role.EXPERT)
        is_cut = self.is_cut is not None and bool(self.is_cut[tensors].all())
        is_sharded = op in self.known and part.zero > 0

        def piece(what: str, size: float, count: int, *, shards: bool, whole: bool) -> HeldState:
            return HeldState(
                key=(what, name),
                numbers=count,
                number_bytes=size,
                parts=(int(self.part_of_op[op]),),
                is_cut=is_cut and not whole,
                of_experts=of_experts and not whole,
                is_sharded=is_sharded and shards,
            )

        yield piece(WEIGHTS, number_bytes, numbers, shards=part.zero == 3, whole=False)
        self._take_weights(op, numbers * number_bytes)
        per = self.per_number.get((graph.kind[op], number_bytes), 0)
        if numbers and per and self.state[op] >= per * numbers:
            yield piece(OPTIMISER, per, numbers, shards=True, whole=False)
            self.state[op] -= per * numbers
        elif numbers and (left := self._state_with_weights(op)) > 0:
            yield piece(OPTIMISER, left / numbers, numbers, shards=True, whole=False)
        if self.state[op] > 0.5:
            left = round(float(self.state[op]))
            yield piece(SCALARS, 1.0, left, shards=False, whole=True)
            self.state[op] = 0.0

    def _name(self, tensors: list[int]) -> str:
        """What makes the gradients: the same in every plan of a graph."""
        graph = self.graph
        sources = [int(graph.tensor_source[each]) for each in tensors]
        places = [
            graph.outputs[source].tolist().index(each)
            for source, each in zip(sources, tensors, strict=True)
        ]
        return ", ".join(
            f"{graph.op_names[source]}:{place}"
            for source, place in zip(sources, places, strict=True)
        )

    def _users(self, op: int) -> tuple[int, ...]:
        """The ops that hold the weights of an update."""
        known: Update | None = self.known.get(op)
        number = known.weights if known is not None else int(self.graph.group[op])
        return self.weights.users.get(number, ())

    def _take_weights(self, op: int, size: float) -> None:
        """Take the bytes of an update's weights from the ops that hold them."""
        for user in self._users(op):
            taken = min(size, float(self.state[user]), float(self.graph.parameter_bytes[user]))
            self.state[user] -= taken
            size -= taken

    def _state_with_weights(self, op: int) -> float:
        """The optimiser state of graphs that note it with the weights: the update's share, taken
        from the ops that hold it."""
        graph, known = self.graph, self.known.get(op)
        if graph.calls.any() or known is None:
            return 0.0
        users = [user for user in self._users(op) if graph.parameter_bytes[user] > 0]
        more = float((graph.state_bytes[users] - graph.parameter_bytes[users]).sum())
        together = (each for some in self.weights.updates.values() for each in some)
        total = sum(each.parameter_bytes for each in together if each.weights == known.weights)
        if more <= 0 or total <= 0:
            return 0.0
        share = more * known.parameter_bytes / total
        taken = 0.0
        for user in users:
            part = min(share - taken, float(self.state[user]))
            self.state[user] -= part
            taken += part
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """How the numbers of a piece are counted: so many experts, so many parts of features, the
    rest."""

    experts: int
    features: int
    rest: int

    @property
    def numbers(self) -> int:
        """How many numbers the piece has, in these units."""
        return prod((self.experts, self.features, self.rest))


def common_shape(numbers: int, held: Iterable[tuple[HeldState, Plan]]) -> StateShape:
    """The shape in which the shares of a piece under several plans are whole numbers.

    Where its numbers do not divide, they are counted in smaller units.
    """
    experts = features = 1
    for piece, plan in held:
        for number in piece.parts:
            part = plan.parts[number]
            experts = lcm(experts, part.expert if piece.of_experts else 1)
            features = lcm(features, part.tensor if piece.is_cut else 1)
    times = experts * features
    rest = numbers // times if numbers % times == 0 else numbers
    return StateShape(experts=experts, features=features, rest=rest)


def held_boxes(piece: HeldState, part: Part, device: str, shape: StateShape) -> tuple[Box, ...]:
    """What a device of a part holds of a piece."""
    place = find_place(part, device)
    experts = part.expert if piece.of_experts else 1
    features = part.tensor if piece.is_cut else 1
    own = (shape.experts // experts, shape.features // features, shape.rest)
    first = (
        place.expert * own[0] if piece.of_experts else 0,
        place.tensor * own[1] if piece.is_cut else 0,
        0,
    )
    of_experts = piece.of_experts and part.expert > 1
    holders, holder = find_holder(part, place, of_experts=of_experts)
    if not piece.is_sharded or holders == 1:
        return (Box(first, own),)
    start, stop = bounds(prod(own), holders, holder)
    return tuple(
        Box(tuple(a + b for a, b in zip(first, box.offset, strict=True)), box.shape)
        for box in cut_run(own, (0, 1, 2), start, stop)
    )
