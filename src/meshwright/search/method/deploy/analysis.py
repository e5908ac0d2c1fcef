"""What a deployment is decided on: groups of ops, device groups, and what each costs where.

Computed once for a graph and cluster; does not choose (after TAG). Ops are joined into the groups
that are deployed as one by simplification, then METIS. Nothing is dropped: an op that computes
nothing, or whose result nobody reads, goes where what it reads is made.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.array import freeze_arrays, marked, places_in, sum_by, sum_rows
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.graph.coarsen.partition import cut_graph, gather_neighbours, scaled_weights
from meshwright.graph.graph import Bools, Floats, Graph, Ints, Phase
from meshwright.kernel.disjoint import DisjointSets
from meshwright.program.bucket import tie_sums
from meshwright.search.instance import Instance, held_bytes, make_instance, mean_type_seconds
from meshwright.search.method.deploy.menu import DeviceGroup, group_devices, make_menu
from meshwright.search.method.deploy.option import GroupAction

MAX_GROUPS = 60
"""How many groups of ops there are at most: the number that TAG uses."""
BALANCE = 2.0
"""How many times the mean a group may take (TAG's balance factor)."""

_IDLE_KINDS = frozenset(
    {"identity", "no_op", "noop", "alias", "detach", "lift_fresh", "stop_gradient", "view"}
)
"""Ops that hand on what they read, in the words of graph files from elsewhere; captures have
none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Analysis:
    """A graph in groups on a cluster in groups."""

    instance: Instance
    group_of: Ints
    """Of each op. Groups are numbered by falling compute time."""
    device_groups: tuple[DeviceGroup, ...]
    place_of: Ints
    """The device group of each device."""
    actions: tuple[GroupAction, ...]
    """What can be chosen for a group; the first is data parallelism on all devices."""
    allowed: Bools
    """Group x action: whether the devices can run all of its ops."""
    seconds: Floats
    """Group x device type: for the whole batch."""
    fixed_seconds: Floats
    """Of these, what does not shrink with the rows: the line through the times at the whole batch
    and at a device's equal share of it, at no samples."""
    gradient_bytes: Floats
    """By group: what its replicas have to synchronise."""
    state_bytes: Floats
    held_bytes: Floats
    """By group: what it holds at the turn from forward to backward, its state included."""
    between: Floats
    """Group x group: bytes of the tensors from one to the other."""

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @property
    def graph(self) -> Graph:
        """The training step that is deployed."""
        return self.instance.graph

    @property
    def cluster(self) -> Cluster:
        """The cluster that it is deployed on."""
        return self.instance.cluster

    @property
    def num_groups(self) -> int:
        """How many groups of ops decisions are taken for."""
        return len(self.seconds)

    def can_run(self, group: int, action: GroupAction) -> bool:
        """Whether an action's devices can run all ops of a group; also of actions off the menu."""
        types = self.cluster.type_of[list(action.devices)]
        return bool(np.isfinite(self.seconds[group, types]).all())


def analyse(
    graph: Graph, cluster: Cluster, *, max_groups: int = MAX_GROUPS, seed: int = 0
) -> Analysis:
    """Group ops and devices, and add up what groups cost."""
    instance = make_instance(graph, cluster)
    group_of = group_ops(instance, max_groups, seed)
    num_groups = int(group_of.max()) + 1
    device_groups = group_devices(cluster)
    place_of = np.empty(cluster.num_devices, dtype=np.int32)
    for number, place in enumerate(device_groups):
        place_of[list(place.devices)] = number
    seconds = _sum_seconds(graph, cluster, group_of, graph.batch)
    share = graph.batch / cluster.num_devices
    less = _sum_seconds(graph, cluster, group_of, share)
    fixed = np.where(np.isfinite(less), np.minimum(_at_none(seconds, less, cluster), seconds), 0.0)
    actions = make_menu(graph, cluster, device_groups)
    return Analysis(
        instance=instance,
        group_of=group_of,
        device_groups=device_groups,
        place_of=place_of,
        actions=actions,
        allowed=_find_allowed(cluster, seconds, actions),
        seconds=seconds,
        fixed_seconds=fixed,
        gradient_bytes=_gradient_bytes(graph, group_of, num_groups),
        state_bytes=sum_by(group_of, graph.state_bytes, num_groups),
        held_bytes=sum_by(group_of, held_bytes(graph), num_groups),
        between=_bytes_between(graph, group_of, num_groups),
    )


def _sum_seconds(graph: Graph, cluster: Cluster, group_of: Ints, samples: float) -> Floats:
    columns = [op_seconds(graph, cluster.types[name], samples) for name in cluster.type_names]
    return sum_rows(group_of, np.stack(columns, axis=1), int(group_of.max()) + 1)


def _at_none(whole: Floats, less: Floats, cluster: Cluster) -> Floats:
    """Where the line from `whole` through `less`, at an equal share, ends."""
    devices = cluster.num_devices
    if devices == 1:
        return np.zeros_like(whole)
    with np.errstate(invalid="ignore"):
        slope = (whole - less) * devices / (devices - 1)
        return np.maximum(whole - slope, 0.0)


def _find_allowed(cluster: Cluster, seconds: Floats, actions: tuple[GroupAction, ...]) -> Bools:
    can_run = np.isfinite(seconds)
    columns = [
        can_run[:, np.unique(cluster.type_of[list(action.devices)])].all(axis=1)
        for action in actions
    ]
    return np.stack(columns, axis=1)


def _gradient_bytes(graph: Graph, group_of: Ints, num_groups: int) -> Floats:
    source, reader = graph.edges
    is_gradient = (
        graph.tensor_partial[graph.use_tensor]
        & (graph.phase[reader] == Phase.UPDATE)
        & (graph.phase[source] != Phase.UPDATE)
    )
    tensors = np.unique(graph.use_tensor[is_gradient])
    owner = group_of[graph.tensor_source[tensors]]
    return sum_by(owner, graph.tensor_bytes[tensors], num_groups)


def _bytes_between(graph: Graph, group_of: Ints, num_groups: int) -> Floats:
    """Each tensor once for each group that reads it."""
    reader = group_of[graph.use_op].astype(np.int64)
    uses = np.unique(graph.use_tensor.astype(np.int64) * num_groups + reader)
    tensor, target = uses // num_groups, uses % num_groups
    source = group_of[graph.tensor_source[tensor]]
    table = np.zeros((num_groups, num_groups))
    np.add.at(table, (source, target), graph.tensor_bytes[tensor])
    np.fill_diagonal(table, 0.0)
    return table


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
    return places_in(order, len(names), np.int32)[inverse]
