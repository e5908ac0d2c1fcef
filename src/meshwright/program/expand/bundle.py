"""Which weights ZeRO moves together: updates in bundles, and the ops that touch their weights.

Weights are no tensors of a graph. A group of ops touches the same ones; where a graph has no
groups, a forward op with weights and its backward ops do.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshwright.array import Ints, Longs, marked
from meshwright.cost.stage import BUCKET_BYTES, MAX_BUCKETS
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.kernel.row import group_values, sum_values
from meshwright.plan.part import Part
from meshwright.program.bucket import gradient_tensors, reads_updates
from meshwright.program.expand.expansion import Expansion

Item = TypeVar("Item")

MAX_GATHERS = 32
"""Weights that are gathered without known layers go in about this many bundles at the most: a
device holds two at once, so a sixteenth of its part's weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An op that updates weights by gradients of this step's backward."""

    op: int
    weights: int
    """Which weights, by their number in `Weights.users`; -1: the graph does not say."""
    gradients: tuple[int, ...]
    """Tensors, each a partial sum of backward."""
    ready: int
    """The last op that makes one of the gradients."""
    gradient_bytes: float
    parameter_bytes: float
    """Of the weights that it updates."""


Bundle = tuple[Update, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class BundledWeights:
    """Who touches which weights in an expansion, and all updates."""

    users: dict[int, tuple[int, ...]]
    """By number: the ops of forward and backward that touch these weights, in order."""
    updates: dict[int, tuple[Update, ...]]
    """By part, in the order in which backward has made their gradients."""


def find_weights(expansion: Expansion) -> BundledWeights:
    """The weights of a step."""
    graph = expansion.graph
    of_op = _number_weights(expansion)
    gradients = _find_gradients(expansion)
    of_update = {op: _weights_of(graph, of_op, op, tensors) for op, tensors in gradients.items()}
    of_op[list(of_update)] = list(of_update.values())
    touches = (of_op >= 0) & ~expansion.is_collective & (graph.phase != Phase.UPDATE)
    users = group_values((int(of_op[op]), op) for op in np.flatnonzero(touches).tolist())
    share = _parameter_bytes(graph, gradients, of_update, of_op, users)
    by_part: dict[int, list[Update]] = {}
    for op, tensors in gradients.items():
        update = Update(
            op=op,
            weights=of_update[op],
            gradients=tensors,
            ready=int(graph.tensor_source[list(tensors)].max()),
            gradient_bytes=float(graph.tensor_bytes[list(tensors)].sum()),
            parameter_bytes=share[op],
        )
        by_part.setdefault(int(expansion.part_of_op[op]), []).append(update)
    return BundledWeights(
        users={number: tuple(ops) for number, ops in users.items()},
        updates={
            part: tuple(sorted(found, key=lambda each: (each.ready, each.op)))
            for part, found in by_part.items()
        },
    )


def _number_weights(expansion: Expansion) -> Longs:
    """By op of forward and backward; an op computed again has those of the first time."""
    graph = expansion.graph
    of_op = graph.group.astype(np.int64)
    is_alone = (graph.group < 0) & ~expansion.is_collective
    holds = is_alone & (graph.phase == Phase.FORWARD) & (graph.parameter_bytes > 0)
    holders = np.flatnonzero(holds)
    of_op[holders] = int(graph.group.max(initial=-1)) + 1 + np.arange(len(holders))
    of_planned = {int(expansion.origin[op]): int(of_op[op]) for op in holders}
    for op in np.flatnonzero(is_alone & (graph.phase == Phase.BACKWARD)).tolist():
        partner = int(graph.partner[op])
        again = of_planned.get(int(expansion.origin[op]), -1)
        of_op[op] = of_op[partner] if again < 0 and partner >= 0 and holds[partner] else again
    return of_op


def _find_gradients(expansion: Expansion) -> dict[int, tuple[int, ...]]:
    """The updates, and the partial sums of backward that each reads.

    Copies of tied weights are updated with a sum of several gradients, which may be of several
    parts. Such an update is none of these: every holder keeps all of it.
    """
    graph = expansion.graph
    source, reader = graph.edges
    is_update = graph.phase == Phase.UPDATE
    adds = marked(graph.num_ops, source[is_update[source] & is_update[reader]])
    found = (
        ~adds[reader]
        & graph.tensor_partial[graph.use_tensor]
        & (graph.phase[source] == Phase.BACKWARD)
        & is_update[reader]
        & ~expansion.is_collective[reader]
    )
    gradients: dict[int, tuple[int, ...]] = {}
    for tensor, op in zip(graph.use_tensor[found].tolist(), reader[found].tolist(), strict=True):
        gradients[op] = (*gradients.get(op, ()), tensor)
    return gradients


def _weights_of(graph: Graph, of_op: Longs, update: int, gradients: tuple[int, ...]) -> int:
    """Of its group, else of the ops that make its gradients."""
    numbers = (of_op[update], *(of_op[graph.tensor_source[each]] for each in gradients))
    return int(next((number for number in numbers if number >= 0), -1))


def _parameter_bytes(
    graph: Graph,
    gradients: dict[int, tuple[int, ...]],
    of_update: dict[int, int],
    of_op: Longs,
    users: dict[int, list[int]],
) -> dict[int, float]:
    """By update: its share of its ops' weights, in proportion to gradients.

    A gradient is as large as the weights where the graph gives these no size.
    """
    size = {op: float(graph.tensor_bytes[list(each)].sum()) for op, each in gradients.items()}
    known = {tensor for each in gradients.values() for tensor in each}
    others = sorted(set(gradient_tensors(graph).tolist()) - known)
    owned = [(int(of_op[graph.tensor_source[t]]), float(graph.tensor_bytes[t])) for t in others]
    total = sum_values([*((number, size[op]) for op, number in of_update.items()), *owned])
    held = {number: float(graph.parameter_bytes[ops].sum()) for number, ops in users.items()}
    return {
        op: size[op] * _item_ratio(held[number] / total[number])
        if total[number] > 0 and held.get(number, 0.0) > 0
        else size[op]
        for op, number in of_update.items()
    }


def _item_ratio(ratio: float) -> float:
    """A weight's bytes over its gradient's, from those of all weights and gradients of an op.

    Where that is no ratio of precisions, some of the weights are frozen and have no gradient.
    """
    is_known = ratio <= 1 or any(math.isclose(ratio, each) for each in (2.0, 4.0))
    return ratio if is_known else 1.0


def make_bundles(
    before: Expansion, graph: Graph, weights: BundledWeights, part: Part, updates: Sequence[Update]
) -> tuple[Bundle, ...]:
    """Updates of a part whose weights the same devices hold, together as they move; InputError
    where ZeRO cannot divide them."""
    _check_updates(before, weights, part, updates)
    if part.zero < 3:
        limit = _limit(before.graph, (each.gradient_bytes for each in updates), MAX_BUCKETS)
        return tuple(join(updates, [each.gradient_bytes for each in updates], limit))
    # Weights of one op are gathered for it together.
    last = {each.weights: each.ready for each in updates}
    together = gather_by(updates, [each.weights for each in updates])
    together.sort(key=lambda each: last[each[0].weights])
    sizes = [sum(each.parameter_bytes for each in some) for some in together]
    layers = None if reads_updates(before.graph) else _layers(graph)
    if layers is None:
        joined = join(together, sizes, _limit(before.graph, sizes, MAX_GATHERS))
    else:
        planned = [int(before.origin[some[0].op]) for some in together]
        joined = gather_by(together, [int(layers[op]) for op in planned])
    return tuple(tuple(each for some in bundle for each in some) for bundle in joined)


def _limit(graph: Graph, sizes: Iterable[float], most: int) -> float:
    """Bytes at which a bundle is full; where gradients may follow from updates, at the first."""
    return 0.0 if reads_updates(graph) else max(BUCKET_BYTES, sum(sizes) / most)


def join(items: Sequence[Item], sizes: Sequence[float], limit: float) -> list[tuple[Item, ...]]:
    """Items in a row, together until they are as large as the limit."""
    joined: list[list[Item]] = []
    total = limit
    for item, size in zip(items, sizes, strict=True):
        if total >= limit:
            joined.append([])
            total = 0.0
        joined[-1].append(item)
        total += size
    return [tuple(each) for each in joined]


def gather_by(items: Sequence[Item], keys: Sequence[Hashable]) -> list[tuple[Item, ...]]:
    """Items with equal keys, in the order of the first of each."""
    return [tuple(each) for each in group_values(zip(keys, items, strict=True)).values()]


def _layers(graph: Graph) -> Ints | None:
    try:
        return find_layers(graph).layer_of_op
    except InputError:
        return None


def _check_updates(
    before: Expansion, weights: BundledWeights, part: Part, updates: Sequence[Update]
) -> None:
    for update in updates:
        if update.weights < 0 and part.zero == 3:
            raise InputError(
                f"op {quoted(before.graph.op_names[update.op])}: ZeRO 3 must know who reads the "
                f"weights that it updates, but it has no group and its gradient no forward op with "
                f"weights"
            )
        _check_place(before, update, before.graph.tensor_source[list(update.gradients)].tolist())
    for number_of, update in {each.weights: each for each in updates}.items():
        _check_place(before, update, weights.users.get(number_of, ()))


def _check_place(before: Expansion, update: Update, ops: Iterable[int]) -> None:
    part = before.part_of_op[update.op]
    for op in ops:
        if before.part_of_op[op] != part:
            name, other = (quoted(before.graph.op_names[each]) for each in (op, update.op))
            raise InputError(
                f"op {name}: must be in part {part}, which divides the weights that {other} "
                f"updates by ZeRO, is in part {before.part_of_op[op]}"
            )
