"""The device groups that a group of ops is put on, and the actions that a search chooses from.

A device group has devices of one type and host that reach each other alike (after TAG): no slower
than any of them reaches other hosts, so that the network, not the host, tells devices apart. Large
clusters have so many groups that neighbours are joined.

The actions are the same for all groups of ops. Of few device groups all sets are on the menu, of
many those that a person would think of: each alone, all of a type, the fastest so many, all, and
all but one. One device of each group stands there, too, which TAG leaves to the model-parallel
option.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.graph.graph import Floats, Graph
from meshwright.kernel.row import group_values
from meshwright.search.method.deploy.option import GroupAction, GroupOption
from meshwright.search.replica import divide_batch

MAX_PLACES = 12
"""Sets of device groups double with each; TAG's clusters have up to 7."""
_NEAR = 1e-6
"""Bandwidths that differ by less than this part are equal."""
_MAX_OTHERS = 64
"""Other hosts that a device's links are compared with."""

Places = npt.NDArray[np.int_]

_FEW_PLACES = 4
"""Of so many device groups all sets are on the menu."""
_REPLICATED = (GroupOption.ALL_REDUCE, GroupOption.PARAMETER_SERVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Devices of one type that are joined alike."""

    devices: tuple[int, ...]
    """The numbers of the devices, rising."""
    type: int
    """Their number in `cluster.type_names`."""


def make_menu(
    graph: Graph, cluster: Cluster, places: Sequence[DeviceGroup]
) -> tuple[GroupAction, ...]:
    """All actions, each once; the first is data parallelism on all devices."""
    every = tuple(range(len(places)))
    found: dict[GroupAction, None] = {}
    for chosen in (every, *_place_sets(graph, cluster, places)):
        devices = np.array(sorted(each for p in chosen for each in places[p].devices))
        for action in _set_actions(graph, cluster, chosen, devices):
            found.setdefault(action)
    for number, place in enumerate(places):
        one = GroupAction(
            places=(number,), devices=place.devices[:1], option=GroupOption.ALL_REDUCE
        )
        found.setdefault(one)
    return tuple(found)


def _set_actions(
    graph: Graph, cluster: Cluster, chosen: tuple[int, ...], devices: Places
) -> Iterator[GroupAction]:
    equal = share_out(graph, chosen, devices, np.ones(len(devices)), GroupOption.ALL_REDUCE)
    yield equal
    if len(equal.devices) < 2:
        return
    balance = balanced_samples(graph, cluster, devices)
    for option in _REPLICATED:
        yield share_out(graph, chosen, devices, np.ones(len(devices)), option)
        yield share_out(graph, chosen, devices, balance, option)
    for option in (GroupOption.DUPLICATE, GroupOption.MODEL):
        used = tuple(devices.tolist()) if option is GroupOption.MODEL else equal.devices
        yield GroupAction(places=chosen, devices=used, option=option)


def share_out(
    graph: Graph, chosen: tuple[int, ...], devices: Places, weights: Floats, option: GroupOption
) -> GroupAction:
    """Replicas with shares in proportion to weights, in whole samples; devices that get none are
    left out."""
    shares = divide_batch(graph.batch, weights)
    used = shares > 0
    kept = shares[used]
    is_equal = bool((kept == kept[0]).all())
    return GroupAction(
        places=chosen,
        devices=tuple(devices[used].tolist()),
        option=option if used.sum() > 1 else GroupOption.ALL_REDUCE,
        shares=() if is_equal else tuple((kept / kept.sum()).tolist()),
    )


def balanced_samples(graph: Graph, cluster: Cluster, devices: Places) -> Floats:
    """How many samples each device has when all take equally long.

    A device's time for the whole step is a line in its samples, through those at the whole batch
    and at an equal share; what does not shrink with the batch makes slow devices do less than in
    proportion to their speed.
    """
    fixed, slope = step_lines(graph, cluster, graph.batch / len(devices))
    fixed, slope = fixed[cluster.type_of[devices]], slope[cluster.type_of[devices]]
    if not (np.isfinite(slope).all() and (slope > 0).all()):
        return np.ones(len(devices))
    used = np.ones(len(devices), dtype=np.bool_)
    while True:
        level = (graph.batch + (fixed[used] / slope[used]).sum()) / (1 / slope[used]).sum()
        samples = np.where(used, (level - fixed) / slope, 0.0)
        if (samples >= 0).all():
            return samples
        used &= samples > 0


def step_lines(graph: Graph, cluster: Cluster, samples: float) -> tuple[Floats, Floats]:
    """By device type: seconds of the whole step at no samples, and for each sample."""
    whole, less = (
        np.array(
            [op_seconds(graph, cluster.types[name], each).sum() for name in cluster.type_names]
        )
        for each in (graph.batch, samples)
    )
    if samples >= graph.batch:
        return np.zeros(len(whole)), whole / graph.batch
    with np.errstate(invalid="ignore"):
        slope = (whole - less) / (graph.batch - samples)
        return np.maximum(less - slope * samples, 0.0), slope


def _place_sets(
    graph: Graph, cluster: Cluster, places: Sequence[DeviceGroup]
) -> Iterator[tuple[int, ...]]:
    every = range(len(places))
    if len(places) <= _FEW_PLACES:
        for size in range(len(places), 0, -1):
            yield from combinations(every, size)
        return
    yield from ((place,) for place in every)
    seconds = step_lines(graph, cluster, graph.batch)[1]
    fastest = sorted(every, key=lambda p: (seconds[places[p].type], -len(places[p].devices), p))
    for size in range(2, len(places)):
        yield tuple(sorted(fastest[:size]))
    for kind in sorted({place.type for place in places}):
        yield tuple(place for place in every if places[place].type == kind)
    for left_out in every:
        yield tuple(place for place in every if place != left_out)


def group_devices(cluster: Cluster) -> tuple[DeviceGroup, ...]:
    """All devices, in groups by their first device."""
    members = group_values(
        ((each.host, int(cluster.type_of[device])), device)
        for device, each in enumerate(cluster.devices)
    )
    found: list[list[int]] = []
    for devices in members.values():
        found += _split_apart(cluster, devices)
    found.sort()
    while len(found) > MAX_PLACES and (joined := _join_neighbours(cluster, found)) != found:
        found = joined
    return tuple(
        DeviceGroup(devices=tuple(group), type=int(cluster.type_of[group[0]])) for group in found
    )


def _split_apart(cluster: Cluster, devices: list[int]) -> list[list[int]]:
    """One group where its slowest pair is no slower than the way out, else sets in which all pairs
    are equally fast."""
    table = cluster.pair_table(devices, devices)[0]
    apart = table[~np.eye(len(devices), dtype=np.bool_)]
    if not len(apart) or apart.min() >= _fastest_out(cluster, devices) * (1 - _NEAR):
        return [devices]
    found: list[list[int]] = []
    for row, device in enumerate(devices):
        for group in found:
            rows = [devices.index(each) for each in (*group, device)]
            pairs = table[np.ix_(rows, rows)][~np.eye(len(rows), dtype=np.bool_)]
            if pairs.max() <= pairs.min() * (1 + _NEAR):
                group.append(device)
                break
        else:
            found.append([devices[row]])
    return found


def _fastest_out(cluster: Cluster, devices: list[int]) -> float:
    """The bandwidth of the fastest pair with another host's first device; 0: there is none."""
    here = cluster.host_of[devices[0]]
    firsts = [each[0] for host, each in enumerate(cluster.devices_of_host) if host != here]
    others = firsts[:_MAX_OTHERS]
    return float(cluster.pair_table(devices[:1], others)[0].max()) if others else 0.0


def _join_neighbours(cluster: Cluster, groups: list[list[int]]) -> list[list[int]]:
    """Each two in a row that have the same type and as many devices made one."""
    joined: list[list[int]] = []
    waiting: dict[tuple[int, int], int] = {}
    for group in groups:
        key = int(cluster.type_of[group[0]]), len(group)
        if key in waiting:
            first = waiting.pop(key)
            joined[first] = sorted([*joined[first], *group])
        else:
            waiting[key] = len(joined)
            joined.append(group)
    return joined
