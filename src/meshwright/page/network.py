"""The cluster as a drawing: nodes in tiers, links with how busy the step keeps them, devices with
how busy and how full they are. Knows no coordinates: these are the page's."""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.explain.link import Bottlenecks
from meshwright.simulate.timeline import Timeline

MAX_NODES = 600
"""Nodes of a cluster that is drawn with its links; a larger one is a map of its devices."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnCable:
    """All links between two nodes."""

    ends: tuple[int, int]
    """Numbers in the cluster's nodes."""
    count: tuple[int, int]
    """How many links there are each way."""
    bytes_per_second: tuple[float, float]
    """What they reach together."""
    busy: tuple[float, float]
    """The part of the step for which the busiest of them would be busy at its full rate."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkView:
    """A cluster and what a step makes of it."""

    tier: tuple[int, ...]
    """By node how far from the devices: 0 a device, 1 a host, then switches."""
    home: Longs
    """By device its host's number among hosts."""
    cables: tuple[DrawnCable, ...]
    link_busy: Floats
    """By link of the cluster: the part of the step for which it would be busy at its full rate."""
    device_busy: Floats
    """By device the part of the step for which it computes, or waits for its team."""
    device_calls: Floats
    """The part of that for which it waits."""

    def busiest_at(self, cluster: Cluster) -> Floats:
        """By device the busiest link that begins or ends at it or at its host."""
        found = np.zeros(len(cluster.nodes))
        network = cluster.network
        for ends in (network.sources, network.targets):
            np.maximum.at(found, ends, self.link_busy)
        hosts = found[cluster.num_devices : cluster.num_devices + len(cluster.hosts)]
        return np.maximum(found[: cluster.num_devices], hosts[self.home])


def draw_network(cluster: Cluster, timeline: Timeline) -> NetworkView:
    """A cluster with the use that a timeline makes of it."""
    step = timeline.step_seconds or 1.0
    busy = Bottlenecks(timeline, cluster).busy_seconds[: len(cluster.links)] / step
    is_drawn = len(cluster.nodes) <= MAX_NODES
    return NetworkView(
        tier=_find_tiers(cluster),
        home=cluster.host_of,
        cables=_join_links(cluster, busy) if is_drawn else (),
        link_busy=busy,
        device_busy=timeline.device_utilisation,
        device_calls=np.asarray(timeline.call_seconds / step),
    )


def _find_tiers(cluster: Cluster) -> tuple[int, ...]:
    """A switch is one tier above the nearest host or device that it is joined to, and so on."""
    num_devices, num_hosts = cluster.num_devices, len(cluster.hosts)
    network = cluster.network
    beside: list[set[int]] = [set() for _ in cluster.nodes]
    for one, other in zip(network.sources.tolist(), network.targets.tolist(), strict=True):
        beside[one].add(other)
        beside[other].add(one)
    tier = [0] * num_devices + [1] * num_hosts + [-1] * len(cluster.switches)
    front = list(range(num_devices + num_hosts))
    for node in front:  # grows while it is walked
        for other in beside[node]:
            if tier[other] < 0:
                tier[other] = max(tier[node], 1) + 1
                front.append(other)
    return tuple(2 if each < 0 else each for each in tier)


def _join_links(cluster: Cluster, busy: Floats) -> tuple[DrawnCable, ...]:
    """The links between each two nodes, both ways."""
    network = cluster.network
    found: dict[tuple[int, int], list[list[float]]] = {}
    rates = cluster.link_bytes_per_second.tolist()
    pairs = zip(network.sources.tolist(), network.targets.tolist(), strict=True)
    for (source, target), rate, use in zip(pairs, rates, busy.tolist(), strict=True):
        ends = (min(source, target), max(source, target))
        sides = found.setdefault(ends, [[0, 0.0, 0.0], [0, 0.0, 0.0]])
        side = sides[int(source > target)]
        side[0], side[1], side[2] = side[0] + 1, side[1] + rate, max(side[2], use)
    return tuple(
        DrawnCable(
            ends=ends,
            count=(int(there[0]), int(back[0])),
            bytes_per_second=(there[1], back[1]),
            busy=(there[2], back[2]),
        )
        for ends, (there, back) in found.items()
    )
