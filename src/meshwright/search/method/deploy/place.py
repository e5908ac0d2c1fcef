"""Device groups: devices of one type and host that reach each other alike (after TAG).

What a group of ops is put on. Alike means: no slower than any of them reaches other hosts, so that
the network, not the host, tells devices apart. Large clusters have so many groups that neighbours
are joined.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.kernel.row import group_values

MAX_PLACES = 12
"""Sets of device groups double with each; TAG's clusters have up to 7."""
_NEAR = 1e-6
"""Bandwidths that differ by less than this part are equal."""
_MAX_OTHERS = 64
"""Other hosts that a device's links are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Devices of one type that are joined alike."""

    devices: tuple[int, ...]
    """The numbers of the devices, rising."""
    type: int
    """Their number in `cluster.type_names`."""


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
    here = cluster.devices[devices[0]].host
    first: dict[str, int] = {}
    for device, each in enumerate(cluster.devices):
        if each.host != here:
            first.setdefault(each.host, device)
    others = list(first.values())[:_MAX_OTHERS]
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
