"""Joins ops into the groups that are deployed as one: simplification, then METIS (after TAG).

Nothing is dropped: an op that computes nothing, or whose result nobody reads, goes where what it
reads is made. Knows nothing of devices.
"""

from typing import Any

import numpy as np

from meshwright.array import marked
from meshwright.graph.coarsen.partition import cut_graph, gather_neighbours, scaled_weights
from meshwright.graph.graph import Bools, Floats, Graph, Ints, Phase
from meshwright.kernel.disjoint import DisjointSets
from meshwright.program.bucket import tie_sums
from meshwright.search.instance import Instance, mean_type_seconds

MAX_GROUPS = 60
"""How many groups of ops there are at most: the number that TAG uses."""
BALANCE = 2.0
"""How many times the mean a group may take (TAG's balance factor)."""

_IDLE_KINDS = frozenset(
    {"identity", "no_op", "noop", "alias", "detach", "lift_fresh", "stop_gradient", "view"}
)
"""Ops that hand on what they read, in the words of graph files from elsewhere; captures have
none."""


def group_ops(instance: Instance, max_groups: int, seed: int) -> Ints:
    """The group of each op; ops of a co-location group are in one. Groups are numbered by falling
    compute time."""
    graph = instance.graph
    label = _join_idle(instance)
    names, unit_of = np.unique(label, return_inverse=True)
    num_units = len(names)
    seconds: Any = np.bincount(unit_of, weights=_op_seconds(instance), minlength=num_units)
    found = np.arange(num_units, dtype=np.int32)
    if num_units > max_groups:
        source, target = (unit_of[ends].astype(np.int64) for ends in graph.edges)
        size = graph.tensor_bytes[graph.use_tensor]
        start, neighbour, weight = gather_neighbours(source, target, size, num_units)
        found = cut_graph(
            max_groups,
            (start, neighbour),
            scaled_weights(seconds),
            scaled_weights(weight, whole=2 * weight.sum()),
            seed=seed,
            imbalance=BALANCE,
        )
    return _rank_groups(found[unit_of], seconds=_op_seconds(instance))


def split_group(instance: Instance, ops: Ints, speeds: Floats, seed: int) -> Ints:
    """For each op of a group a number from 0 to devices - 1: METIS on its units, each set with as
    much compute as its device is fast."""
    units, unit_of = np.unique(instance.unit_of[ops], return_inverse=True)
    num_parts = min(len(speeds), len(units))
    fastest = np.argsort(-speeds, kind="stable")[:num_parts]
    if num_parts < 2:
        return np.full(len(ops), fastest[0], dtype=np.int32)
    graph = instance.graph
    place = np.full(graph.num_ops, -1, dtype=np.int64)
    place[ops] = unit_of
    source, target = (place[ends] for ends in graph.edges)
    inside = (source >= 0) & (target >= 0)
    size = graph.tensor_bytes[graph.use_tensor][inside]
    start, neighbour, weight = gather_neighbours(source[inside], target[inside], size, len(units))
    seconds: Any = np.bincount(unit_of, weights=_op_seconds(instance)[ops], minlength=len(units))
    found = cut_graph(
        num_parts,
        (start, neighbour),
        scaled_weights(seconds),
        scaled_weights(weight, whole=2 * weight.sum()),
        seed=seed,
        targets=(speeds[fastest] / speeds[fastest].sum()).tolist(),
    )
    return fastest[found[unit_of]].astype(np.int32)


def _op_seconds(instance: Instance) -> Floats:
    return mean_type_seconds(instance.seconds)


def _join_idle(instance: Instance) -> Ints:
    """A label for each op: its unit's, or that of the unit which it is simplified into."""
    graph = instance.graph
    unit_of = instance.unit_of
    is_alone = np.bincount(unit_of, minlength=instance.num_units)[unit_of] == 1
    joins = is_alone & (_is_idle(graph) | _is_dangling(graph))
    label = unit_of.copy()
    for op in np.flatnonzero(joins).tolist():
        sources = graph.tensor_source[graph.inputs[op]]
        if len(sources):  # in the graph's order, so that chains of them end at the same unit
            label[op] = label[sources[0]]
    for op in np.flatnonzero(joins)[::-1].tolist():
        readers = graph.successors[op]
        if not len(graph.inputs[op]) and len(readers):
            label[op] = label[readers[0]]
    return _join_tied(graph, label)


def _join_tied(graph: Graph, label: Ints) -> Ints:
    """One label for ops that must see the same samples, such as losses and what reads them."""
    sets = DisjointSets(range(int(label.max()) + 1))
    for op, leader in enumerate(tie_sums(graph).tolist()):
        if op != leader:
            sets.join(int(label[op]), int(label[leader]))
    return np.array(sets.roots(), dtype=np.int32)[label]


def _is_idle(graph: Graph) -> Bools:
    named = np.array([kind in _IDLE_KINDS for kind in graph.kind_codes[0]], dtype=np.bool_)
    moves = graph.flops + graph.bytes_read + graph.bytes_written
    measured = np.zeros(graph.num_ops, dtype=np.bool_)
    for seconds in graph.seconds.values():
        measured |= np.nan_to_num(seconds, nan=0.0, posinf=1.0) > 0
    does_nothing = (moves == 0) & ~measured & (graph.state_bytes == 0)
    idle: Bools = named[graph.kind_codes[1]] | does_nothing
    return idle


def _is_dangling(graph: Graph) -> Bools:
    """Whose results nobody reads, and that change nothing that is held; none in a step without
    updates, whose results are what it is for."""
    is_update = graph.phase == Phase.UPDATE
    is_read = marked(graph.num_ops, graph.edges[0])
    dangling: Bools = ~is_read & ~is_update & (graph.state_bytes == 0) & is_update.any()
    return dangling


def _rank_groups(group: Ints, seconds: Floats) -> Ints:
    """The same groups, numbered by falling time, then by their first op."""
    names, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=seconds, minlength=len(names))
    order = np.lexsort((first, -total))
    rank = np.empty(len(names), dtype=np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    return rank[inverse]
