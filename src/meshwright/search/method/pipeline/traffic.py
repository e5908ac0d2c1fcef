"""What the replicas of stages send to each other, link by link.

Replicas exchange the rows that they have in common; all pairs of two stages send at the same time,
so that pairs whose routes share a link share its bandwidth. Knows nothing of compute.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster

Home = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """One byte of the batch from the replicas of a stage to those of another."""

    latency_seconds: float
    seconds_per_byte: float
    """Of the slowest pair, with all pairs at once."""
    links: Ints
    seconds: Floats
    """That each of these links is busy."""


class Traffic:
    """Flows between homes of one cluster, each worked out once."""

    def __init__(self, cluster: Cluster, sharing: str) -> None:
        self._cluster = cluster
        self._shares = sharing == "fair"
        self._flows: dict[tuple[Home, Home], Flow] = {}
        self._rings: dict[Home, float] = {}

    @property
    def num_links(self) -> int:
        """How many links the cluster has."""
        return len(self._cluster.links)

    def flow(self, one: Home, other: Home) -> Flow:
        """From one home to another; what stays on a device takes no time."""
        if (one, other) not in self._flows:
            self._flows[one, other] = self._find_flow(_overlaps(one, other))
        return self._flows[one, other]

    def _find_flow(self, pairs: list[tuple[int, int, float]]) -> Flow:
        cluster = self._cluster
        busy: dict[int, float] = {}
        latency = slowest = 0.0
        for source, target, share in pairs:
            if source == target:
                continue
            latency = max(latency, float(cluster.latency[source, target]))
            slowest = max(slowest, share / float(cluster.bandwidth[source, target]))
            if self._shares:
                for link in cluster.routing.links(source, target).tolist():
                    busy[link] = busy.get(link, 0.0) + share
        links = np.array(sorted(busy), dtype=np.int32)
        seconds = np.array([busy[link] for link in sorted(busy)])
        seconds = seconds / cluster.link_bytes_per_second[links] if len(links) else seconds
        return Flow(
            latency_seconds=latency,
            seconds_per_byte=max(slowest, float(seconds.max(initial=0.0))),
            links=links,
            seconds=seconds,
        )

    def ring_seconds_per_byte(self, home: Home) -> float:
        """Of a ring all-reduce: 2 (R - 1) / R of the bytes over every link of the ring.

        In the order of the devices' numbers, in which those of a host stand together.
        """
        if home not in self._rings:
            count, ring = len(home), sorted(home)
            after = [*ring[1:], ring[0]]
            hops = [(u, v, 1.0) for u, v in zip(ring, after, strict=True)] if count > 1 else []
            share = 2 * (count - 1) / count
            self._rings[home] = share * self._find_flow(hops).seconds_per_byte
        return self._rings[home]


def _overlaps(one: Home, other: Home) -> list[tuple[int, int, float]]:
    """Pairs of devices with rows in common, and which part of the batch these are."""
    first, second = len(one), len(other)
    found = []
    for i in range(first):
        for j in range(i * second // first, -(-(i + 1) * second // first)):
            low, high = max(i * second, j * first), min((i + 1) * second, (j + 1) * first)
            found.append((one[i], other[j], (high - low) / (first * second)))
    return found
