"""What a deployment is decided on: groups of ops, device groups, and what each costs where.

Computed once for a graph and cluster; does not choose (after TAG).
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import freeze_arrays, sum_by, sum_rows
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.graph.graph import Bools, Floats, Graph, Ints, Phase
from meshwright.search.instance import Instance, held_bytes, make_instance
from meshwright.search.method.deploy.group import MAX_GROUPS, group_ops
from meshwright.search.method.deploy.menu import DeviceGroup, group_devices, make_menu
from meshwright.search.method.deploy.option import GroupAction


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
        """The step."""
        return self.instance.graph

    @property
    def cluster(self) -> Cluster:
        """The devices."""
        return self.instance.cluster

    @property
    def num_groups(self) -> int:
        """How many groups of ops."""
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
