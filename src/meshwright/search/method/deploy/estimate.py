"""What actions cost by rule of thumb, before anything is simulated.

Whole models and single groups of ops: how long their slowest device computes, how long gradients
take to be synchronised, how full devices get, how fast tensors move. Computed once for an analysis;
what a learned prior sees of actions. Knows nothing of what overlaps in a step.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import freeze_arrays
from meshwright.cost.collective import Collective, collective_model
from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Bools, Floats
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.option import GroupAction, GroupOption

_MAX_MODELLED = 256
"""Devices up to which all algorithms of a collective are priced, some milliseconds each time."""
_CANNOT_RUN = 100.0
"""How many times the longest time that is finite stands for one that is not."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionEstimate:
    """Rules of thumb for all actions of an analysis."""

    members: Bools
    """Action x device group: whether it is used."""
    used: Floats
    """Action x device group: the part of the batch (of the devices, where it is not divided)."""
    group_seconds: Floats
    """Group of ops x action: what its slowest device computes."""
    compute_seconds: Floats
    """By action: the same of the whole model."""
    sync_seconds: Floats
    """By action: to synchronise all gradients."""
    fill: Floats
    """By action: what the whole model needs of the memory of the device that lacks most."""
    place_fill: Floats
    """By device group: the same of data parallelism."""
    byte_seconds: Floats
    """Device group x device group: to move one byte between two of their devices."""
    inner_sync_seconds: Floats
    """By device group: to synchronise all gradients among its devices."""
    step_seconds: float
    """Of data parallelism, nothing overlapped: what times are measured by; positive."""

    def __post_init__(self) -> None:
        freeze_arrays(self)


def estimate_actions(analysis: Analysis) -> ActionEstimate:
    """The estimated step time of the whole strategy, in seconds."""
    members, used = _count_members(analysis)
    group_seconds, compute = _compute_seconds(analysis)
    sync = _SyncTimes(analysis)
    sync_seconds = np.array([sync.seconds(action) for action in analysis.actions])
    inner = np.array([sync.all_reduce(place.devices) for place in analysis.device_groups])
    usable = np.maximum(usable_bytes(analysis.graph, analysis.cluster), 1.0)
    step = float(compute[0] + sync_seconds[0])
    equal = _needed_bytes(analysis, analysis.actions[0])
    place_usable = np.array([usable[list(p.devices)].min() for p in analysis.device_groups])
    return ActionEstimate(
        members=members,
        used=used,
        group_seconds=group_seconds,
        compute_seconds=compute,
        sync_seconds=sync_seconds,
        fill=np.array(
            [
                (_needed_bytes(analysis, action) / usable[list(action.devices)]).max()
                for action in analysis.actions
            ]
        ),
        place_fill=equal.max() / place_usable,
        byte_seconds=sync.byte_seconds,
        inner_sync_seconds=inner,
        step_seconds=step if np.isfinite(step) and step > 0 else 1.0,
    )


def _count_members(analysis: Analysis) -> tuple[Bools, Floats]:
    """Which device groups an action uses, and how much it gives each of them."""
    used = np.zeros((len(analysis.actions), len(analysis.device_groups)))
    for number, action in enumerate(analysis.actions):
        shares = action.shares or (1.0 / len(action.devices),) * len(action.devices)
        np.add.at(used[number], analysis.place_of[list(action.devices)], shares)
    return used > 0, used


def _compute_seconds(analysis: Analysis) -> tuple[Floats, Floats]:
    """Group x action, and of all groups by action."""
    seconds, fixed = _finite(analysis.seconds), _finite(analysis.fixed_seconds)
    fixed = np.minimum(fixed, seconds)
    largest = np.stack([_largest_shares(analysis, action) for action in analysis.actions])
    is_dealt = np.array([action.option is GroupOption.MODEL for action in analysis.actions])
    counts = np.stack(
        [
            np.bincount(
                analysis.cluster.type_of[list(action.devices)],
                minlength=len(analysis.cluster.type_names),
            )
            for action in analysis.actions
        ]
    )

    def slowest(whole: Floats, rest: Floats) -> Floats:
        lines = rest[:, None, :] + largest[None] * (whole - rest)[:, None, :]
        replicated = np.where(largest[None] > 0, lines, 0.0).max(axis=2)
        speeds = (counts[None] / np.maximum(whole, 1e-30)[:, None, :]).sum(axis=2)
        found: Floats = np.where(is_dealt, counts.sum(axis=1) / speeds, replicated)
        return found

    whole = slowest(seconds.sum(axis=0)[None], fixed.sum(axis=0)[None])[0]
    return slowest(seconds, fixed), whole


def _finite(seconds: Floats) -> Floats:
    """Times that are not finite made long ones."""
    is_finite = np.isfinite(seconds)
    most = float(seconds[is_finite].max()) if is_finite.any() else 1.0
    return np.where(is_finite, seconds, _CANNOT_RUN * most)


def _largest_shares(analysis: Analysis, action: GroupAction) -> Floats:
    """By device type: the part of the batch that a device of it has at most; 0: none is used."""
    largest = np.zeros(len(analysis.cluster.type_names))
    np.maximum.at(largest, analysis.cluster.type_of[list(action.devices)], _device_shares(action))
    return largest


def _device_shares(action: GroupAction) -> Floats:
    """The rows that each device runs, as a part of the batch."""
    count = len(action.devices)
    if action.option in (GroupOption.DUPLICATE, GroupOption.MODEL):
        return np.ones(count)
    return np.array(action.shares) if action.shares else np.full(count, 1.0 / count)


def _needed_bytes(analysis: Analysis, action: GroupAction) -> Floats:
    """By device of the action: what the whole model holds there."""
    state, held = float(analysis.state_bytes.sum()), float(analysis.held_bytes.sum())
    if action.option is GroupOption.MODEL:
        return np.full(len(action.devices), max(state, held) / len(action.devices))
    return state + _device_shares(action) * max(0.0, held - state)


class _SyncTimes:
    """Times of synchronising all gradients; those of a set of devices are found once."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._bytes = float(analysis.gradient_bytes.sum())
        self._known: dict[tuple[int, ...], float] = {}
        self.byte_seconds = _byte_seconds(analysis)

    def seconds(self, action: GroupAction) -> float:
        """By the action's option; what is not replicated has nothing to synchronise."""
        if action.option is GroupOption.ALL_REDUCE:
            return self.all_reduce(action.devices)
        return self._server(action) if action.option is GroupOption.PARAMETER_SERVER else 0.0

    def all_reduce(self, devices: tuple[int, ...]) -> float:
        """The fastest algorithm's, alone on the network."""
        if devices not in self._known:
            self._known[devices] = self._price(devices)
        return self._known[devices]

    def _price(self, devices: tuple[int, ...]) -> float:
        if len(devices) > _MAX_MODELLED:  # a ring over the slowest of their links
            places = np.unique(self._analysis.place_of[list(devices)])
            slowest = float(self.byte_seconds[np.ix_(places, places)].max())
            return 2 * self._bytes * slowest * (len(devices) - 1) / len(devices)
        model = collective_model(self._analysis.cluster, Collective.ALL_REDUCE, devices)
        return model.cost(self._bytes).seconds

    def _server(self, action: GroupAction) -> float:
        """Every device sends all but its own part of the gradients, and gets as much; all of that
        twice. What leaves a device group does so by the fastest of its ways."""
        places, counts = np.unique(
            self._analysis.place_of[list(action.devices)], return_counts=True
        )
        total = counts.sum()
        pairs = self.byte_seconds[np.ix_(places, places)]
        inside = np.where(counts > 1, pairs.diagonal(), 0.0) * (total - 1) / total
        apart = np.where(np.eye(len(places), dtype=np.bool_), np.inf, pairs)
        outside = counts * (total - counts) / total
        way = np.where(outside > 0, apart.min(axis=1), 0.0)
        return 2 * self._bytes * float(np.maximum(inside, outside * way).max())


def _byte_seconds(analysis: Analysis) -> Floats:
    """Between first devices of device groups; within one, between its first two."""
    cluster, groups = analysis.cluster, analysis.device_groups
    firsts = [place.devices[0] for place in groups]
    table = 1.0 / cluster.pair_table(firsts, firsts)[0]
    for number, place in enumerate(groups):
        alone = len(place.devices) < 2
        inner = (
            np.inf if alone else cluster.pair_table(place.devices[:1], place.devices[1:2])[0].item()
        )
        table[number, number] = 1.0 / inner
    return table
