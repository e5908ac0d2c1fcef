"""What each pair of hosts may get of the network, and rates to begin a search for a placement with.

Rates are by ordered pair of hosts. Knows neither what is sent nor how a rate is divided over ways.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.array import Bools, Floats, Longs, marked
from meshwright.cluster.cluster import Cluster
from meshwright.search.method.bandwidth.rate.rates import HostPairs, find_host_pairs
from meshwright.search.method.placement.apart import host_counts

FAINT = 1e-2
"""Of what a pair may get: what it has in a pattern that it is no part of, so that a placement which
needs it all the same is slow and not impossible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RateSpace:
    """The rates that hosts may be given, and the rates that follow for devices."""

    hosts: HostPairs
    most: Floats
    """By pair of hosts: what it gets when it has all that its ways can carry; zero: no way."""
    leaving: Floats
    """By host: what its exits carry together."""
    entering: Floats
    uniform: Floats
    """By pair of devices, when nothing is allocated."""

    @property
    def num_hosts(self) -> int:
        """How many hosts the cluster has."""
        return len(self.leaving)

    @property
    def pairs(self) -> Bools:
        """The pairs of hosts that have a way, as a table."""
        return np.asarray(self.hosts.number >= 0)

    def bandwidth(self, rates: Floats) -> Floats:
        """By pair of devices under these rates, read-only, as kernels are compiled for it."""
        between = np.ix_(self.hosts.host_of, self.hosts.host_of)
        under = np.minimum(rates[between], self.hosts.own_bytes_per_second)
        table = np.where(self.pairs[between], under, self.uniform)
        table.setflags(write=False)
        return table

    def slowed_bandwidth(self, rates: Floats, waits: Floats) -> Floats:
        """Likewise, with a little for pairs that have nothing, divided by how much pairs wait."""
        between = np.ix_(self.hosts.host_of, self.hosts.host_of)
        table = self.bandwidth(np.maximum(rates, FAINT * self.most)) / waits[between]
        table.setflags(write=False)
        return table


def find_space(cluster: Cluster) -> RateSpace | None:
    """What may be allocated on a cluster; None: nothing, for lack of hosts or of ways."""
    hosts = find_host_pairs(cluster)
    if not hosts.pairs:
        return None
    capacity = cluster.link_bytes_per_second
    most = np.zeros(hosts.number.shape)
    exits: list[set[int]] = [set() for _ in cluster.hosts]
    entries: list[set[int]] = [set() for _ in cluster.hosts]
    for source, target in hosts.pairs:
        ways = cluster.ways.links[source, target]
        most[source, target] = sum(float(capacity[list(way)].min()) for way in ways)
        exits[source] |= {way[0] for way in ways}
        entries[target] |= {way[-1] for way in ways}
    leaving = np.array([capacity[sorted(each)].sum() for each in exits])
    entering = np.array([capacity[sorted(each)].sum() for each in entries])
    return RateSpace(
        hosts=hosts,
        most=np.minimum(most, np.minimum(leaving[:, None], entering)),
        leaving=leaving,
        entering=entering,
        uniform=cluster.bandwidth,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateStart:
    """Where a search may begin: the hosts that it keeps to, and what pairs of them have."""

    hosts: Longs
    """The numbers of the hosts, rising."""
    rates: Floats


def find_starts(space: RateSpace) -> Iterator[RateStart]:
    """Few hosts among themselves, all pairs at their most, a chain, a ring.

    All pairs at their most is more than the network has: what is placed under it needs to be
    allocated anew.
    """
    # Of equals the first: hosts that carry much.
    widest = np.argsort(-np.minimum(space.leaving, space.entering), kind="stable")
    for count in host_counts(space.num_hosts):
        hosts = np.sort(widest[:count])
        is_chosen = marked(space.num_hosts, hosts)
        yield RateStart(hosts=hosts, rates=_pattern(space, is_chosen[:, None] & is_chosen))
    everyone = np.arange(space.num_hosts)
    yield RateStart(hosts=everyone, rates=space.most)
    if space.num_hosts > 3:
        here, there = np.indices((space.num_hosts, space.num_hosts))
        step = (there - here) % space.num_hosts
        yield RateStart(hosts=everyone, rates=_pattern(space, np.abs(there - here) == 1))
        is_next = (step == 1) | (step == space.num_hosts - 1)
        yield RateStart(hosts=everyone, rates=_pattern(space, is_next))


def _pattern(space: RateSpace, is_used: Bools) -> Floats:
    """Each host's exits and entries shared out evenly to the pairs in use."""
    is_used = is_used & space.pairs
    out = space.leaving[:, None] / np.maximum(is_used.sum(axis=1, keepdims=True), 1)
    into = space.entering / np.maximum(is_used.sum(axis=0), 1)
    share = np.minimum(space.most, np.minimum(out, into))
    return np.where(is_used, share, FAINT * space.most)
