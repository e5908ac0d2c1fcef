"""Prices layers for the search: by kind of layer, for every option, as rows of numbers.

Collectives are priced by tiers (see `meshwright.search.method.hybrid.tier`), for groups of a shape
and not for particular devices: the search looks at thousands of stages and the simulator at a few.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from itertools import product

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.cost.axis import axis_model
from meshwright.cost.collective import Collective
from meshwright.cost.layer.price import prepare_prices, price_layer
from meshwright.cost.layer.result import TeamCall
from meshwright.cost.layer.team import Team
from meshwright.cost.memory import context_bytes
from meshwright.cost.runtime import MESHWRIGHT, Runtime
from meshwright.graph.fuse import is_replayed_alone
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Recompute
from meshwright.program.team.stage import deferred_bytes
from meshwright.search.method.hybrid.tier import Axis, Lines, Tiers, find_groups

_MAX_LINES = 8
"""No collective has more algorithms than these."""
_PLACES = 8
"""About so many places of a stage are looked at."""
_TYPICAL_BYTES = 1e8
"""Places are compared by a message of so many bytes, a layer's size."""
_MAX_EXACT = 128
"""Devices of networks without switches up to which collectives are priced on actual links."""


class Column(IntEnum):
    """What a layer of one kind costs one device for a microbatch."""

    FORWARD = 0
    """Seconds of the forward pass, communication inside a tensor-parallel group included."""
    BACKWARD = 1
    WEIGHT = 2
    UPDATE = 3
    HOST = 4
    PARAMETERS = 5
    """Bytes of the weights, as those of the columns below."""
    GRADIENTS = 6
    OPTIMISER = 7
    EXPERT_PARAMETERS = 8
    EXPERT_GRADIENTS = 9
    EXPERT_OPTIMISER = 10
    SAVED = 11
    WORKSPACE = 12
    OUTPUT = 13
    DEFERRED = 14
    """Where weight gradients are postponed: what is held from a backward to its weight gradient."""


class LayerPrices:
    """The costs of a stack's layers on a cluster, each worked out once."""

    def __init__(
        self, stack: Stack, cluster: Cluster, tiers: Tiers, runtime: Runtime = MESHWRIGHT
    ) -> None:
        self.runtime = runtime
        self.stack = stack
        self.cluster = cluster
        self.tiers = tiers
        self._rows: dict[tuple[Team, Recompute, str, float], Floats] = {}
        self._lines: dict[tuple[Collective, Axis, Axis], Lines] = {}
        self._holder_lines: dict[tuple[Axis, Axis, Axis], Floats] = {}

    @cached_property
    def is_replayed_alone(self) -> bool:
        """Whether a device that takes the step alone replays it."""
        is_own = self.runtime.name == MESHWRIGHT.name
        return is_own and is_replayed_alone(self.stack.graph)

    @cached_property
    def smallest_driven(self) -> Mapping[str, float]:
        """The least memory of the devices of each type that a driver takes some of; infinite where
        there is none."""
        smallest = dict.fromkeys(self.cluster.type_names, np.inf)
        taken = context_bytes(self.stack.graph, self.cluster).tolist()
        for device, context in zip(self.cluster.devices, taken, strict=True):
            if context:
                smallest[device.type] = min(smallest[device.type], device.memory_bytes)
        return smallest

    @cached_property
    def most_in_host(self) -> int:
        """Devices of the largest host."""
        return max(map(len, self.cluster.devices_of_host))

    def prepare(self, teams: list[Team], samples: list[float]) -> None:
        """Time all combinations at once."""
        for name in self.cluster.type_names:
            prepare_prices(self.stack.kinds, teams, self.cluster.types[name], samples)

    def rows(self, team: Team, recompute: Recompute, type_name: str, samples: float) -> Floats:
        """One row of `Column`s for each kind of layer."""
        key = (team, recompute, type_name, samples)
        if key not in self._rows:
            self._rows[key] = self._find_rows(*key)
        return self._rows[key]

    def lines(self, collective: Collective, axis: Axis, crowd: Axis = ()) -> Lines:
        """Latency and seconds a byte of each algorithm, as `Tiers.lines` or, where tiers do not
        tell everything, as on the devices at the beginning of the order."""
        key = (collective, axis, crowd)
        if key not in self._lines:
            self._lines[key] = (
                self.tiers.lines(*key)
                if self.tiers.is_even or len(self.tiers.order) > _MAX_EXACT
                else self._exact_lines(*key)
            )
        return self._lines[key]

    def holder_lines(self, dense: Axis, experts: Axis, crowd: Axis) -> Floats:
        """By collective (one pass and an all-reduce; dense, then experts) and algorithm: latency,
        infinite where there is none, and seconds a byte."""
        key = (dense, experts, crowd)
        if key not in self._holder_lines:
            table = np.zeros((4, _MAX_LINES, 2))
            table[:, :, 0] = np.inf
            wanted = product((dense, experts), (Collective.ALL_GATHER, Collective.ALL_REDUCE))
            for row, (axis, collective) in zip(table, wanted, strict=True):
                lines = self.lines(collective, axis, crowd)
                row[: len(lines)] = lines
            self._holder_lines[key] = table
        return self._holder_lines[key]

    def _exact_lines(self, collective: Collective, axis: Axis, crowd: Axis) -> Lines:
        """On actual links; of the places that a stage may have the slowest of some."""
        order = self.tiers.order
        size, pod = (crowd[0][0], crowd[-1][1]) if crowd else (len(order), len(order))
        offsets = range(0, pod - size + 1, size)
        found: list[Lines] = []
        for offset in offsets[:: max(1, len(offsets) // _PLACES)]:
            groups = find_groups(order[offset:], axis, crowd) if crowd else []
            groups = groups or find_groups(order, axis, crowd)
            if len(groups[0]) == 1:
                return ((0.0, 0.0),)
            lines = axis_model(self.cluster, collective, groups).lines
            found.append(tuple((line.latency_seconds, line.seconds_per_byte) for line in lines))
        return max(found, key=lambda lines: min(a + b * _TYPICAL_BYTES for a, b in lines))

    def _find_rows(
        self, team: Team, recompute: Recompute, type_name: str, samples: float
    ) -> Floats:
        device_type = self.cluster.types[type_name]
        table = np.empty((len(self.stack.kinds), len(Column)))
        for row, kind in zip(table, self.stack.kinds, strict=True):
            cost = price_layer(kind, team, recompute, device_type, samples).under(self.runtime)
            forward, backward, beside = self._call_seconds(team, cost.calls)
            backward += max(0.0, beside - cost.weight_seconds)
            deferred = deferred_bytes(kind, team, recompute, samples)
            row[:] = (
                cost.forward_seconds + forward,
                cost.backward_seconds + backward,
                cost.weight_seconds,
                cost.update_seconds,
                cost.host_seconds,
                cost.parameter_bytes,
                cost.gradient_bytes,
                cost.optimiser_bytes,
                cost.expert_parameter_bytes,
                cost.expert_gradient_bytes,
                cost.expert_optimiser_bytes,
                cost.saved_bytes,
                cost.workspace_bytes,
                cost.output_bytes,
                min(deferred.saved, cost.saved_bytes) + deferred.made,
            )
        table.setflags(write=False)
        return table

    def _call_seconds(self, team: Team, calls: tuple[TeamCall, ...]) -> tuple[float, float, float]:
        axes: dict[str, Axis] = {
            "tensor": ((team.tensor, 1),),
            "context": ((team.context, team.tensor),),
            "expert": ((team.expert, team.num_devices),),
        }
        forward = backward = beside = 0.0
        for call in calls:
            lines = self.lines(call.collective, axes[call.axis])
            alone = min(latency + slope * call.message_bytes for latency, slope in lines)
            seconds = call.shown_seconds(alone)
            forward += call.forward * seconds
            backward += call.backward * seconds
            beside += call.overlapped * seconds
        return forward, backward, beside


def holder_axes(team: Team, replicas: int, pods: int, pod: int) -> tuple[Axis, Axis, Axis]:
    """Who holds the same dense parameters, and the same experts, of a stage's replicas in a pod;
    and all its devices."""
    width, expert = team.num_devices, team.expert
    context, between = (team.context, team.tensor), (pods, pod)
    return (
        (context, (replicas, width), between),
        (context, (replicas // expert, width * expert), between),
        ((replicas * width, 1), between),
    )
