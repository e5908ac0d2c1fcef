"""What a cluster means: its kinds of hosts, who reaches whom at which rate, and its narrowest cut.

Tiers are found from the links alone: hosts, then those that share a switch (racks), then those of
these that share one, and so on. Knows nothing of files.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.route import Network
from meshwright.kernel.disjoint import DisjointSets

MAX_SAMPLE = 128
"""Devices whose pairs are looked at where there are too many for all pairs."""
TIERS = ("host", "rack", "pod")
"""What the first tiers are called; further ones are numbered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """Hosts with the same devices."""

    hosts: tuple[str, ...]
    devices: tuple[tuple[int, str, float], ...]
    """Number, type and memory in bytes of the devices of each of them."""
    out_bytes_per_second: tuple[float, float]
    """The least and the most that leaves one of them, or enters it, whichever is less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The pairs of devices that share a tier and none below it."""

    tier: str
    """What they share: a host, a rack, ...; empty: nothing but the cluster."""
    num_groups: int
    """How many hosts, racks, ... there are."""
    bytes_per_second: tuple[float, float]
    """The slowest and the fastest pair, each alone."""
    latency_seconds: tuple[float, float]
    """The least and the most."""
    shared_bytes_per_second: float | None
    """What a device gets at the narrowest place if all leave the tier below at once; None: these
    share a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowCut:
    """Devices and what joins them to all others."""

    tier: str
    """What is cut off; `half` where there are no switches."""
    hosts: tuple[str, ...]
    num_devices: int
    bytes_per_second: float
    """Of all links out of it, or into it, whichever is less."""

    @property
    def share_bytes_per_second(self) -> float:
        """What each of its devices gets if all send at once."""
        return self.bytes_per_second / self.num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a cluster means."""

    kinds: tuple[HostKind, ...]
    reaches: tuple[Reach, ...]
    narrowest: NarrowCut | None
    """The cut with the least for a device of those that are looked at; None: there is one host."""
    is_sampled: bool
    """Whether not all pairs were looked at."""


def survey_cluster(cluster: Cluster) -> Survey:
    """Look at a cluster as data sheets describe it; of many devices only at the pairs of some."""
    cluster = cluster.plain
    tiers = _find_tiers(cluster)
    cuts = [_cuts(cluster, rounds, _tier(number)) for number, rounds in enumerate(tiers)]
    groups = [rounds[0] for rounds in tiers]
    if not cluster.switches and len(cluster.hosts) > 1:
        cuts.append([_halve(cluster, groups[0])])
    flat = [cut for each in cuts for cut in each]
    return Survey(
        kinds=_find_kinds(cluster, cuts[0]),
        reaches=_find_reaches(cluster, groups, cuts),
        narrowest=min(flat, key=lambda cut: cut.share_bytes_per_second, default=None),
        is_sampled=not cluster.has_tables,
    )


def _tier(number: int) -> str:
    return TIERS[number] if number < len(TIERS) else f"tier {number + 1}"


def _find_tiers(cluster: Cluster) -> list[list[Longs]]:
    """For each tier below the whole cluster the group of every node, -1 for switches above it.

    Round by round groups take the switches next to them. A round that joins no groups, such as that
    of the switches inside hosts, is of the same tier: either way its devices are cut off.
    """
    network, num_devices = cluster.network, cluster.num_devices
    group = np.full(network.num_nodes, -1, dtype=np.int64)
    group[:num_devices] = cluster.host_of
    group[num_devices : num_devices + len(cluster.hosts)] = range(len(cluster.hosts))
    tiers = [[group]]
    while True:
        higher = _take_switches(network, group)
        if (higher == group).all() or (higher[:num_devices] == higher[0]).all():
            return tiers
        if (higher[:num_devices] == group[:num_devices]).all():
            tiers[-1].append(higher)
        else:
            tiers.append([higher])
        group = higher


def _take_switches(network: Network, group: Longs) -> Longs:
    """The groups after one round.

    First each takes its own switches: those on the way to one other at most, such as NICs. Where
    there are none, groups that share a switch become one, with it. Where there are none either,
    each takes all that are next to it.
    """
    near, num_free = _look_around(network, group)
    own = {each for each, groups in near.items() if len(groups) == 1 and num_free[each] <= 1}
    shared = {each for each, groups in near.items() if len(groups) > 1}
    taken = own or shared or set(near)
    sets = DisjointSets(range(int(group.max()) + 1))
    for switch in taken:
        for one, other in pairwise(sorted(near[switch])):
            sets.join(one, other)
    joined = np.array([*sets.roots(), -1])[group]
    for switch in taken:
        joined[switch] = sets.find(min(near[switch]))
    return joined


def _look_around(network: Network, group: Longs) -> tuple[dict[int, set[int]], Counter[int]]:
    """For switches without a group: the groups next to each, if any, and how many such switches."""
    near: dict[int, set[int]] = defaultdict(set)
    free: set[tuple[int, int]] = set()
    for ends in (network.sources, network.targets), (network.targets, network.sources):
        is_free = group[ends[0]] < 0
        others = group[ends[1][is_free]]
        for switch, node, other in zip(ends[0][is_free], ends[1][is_free], others, strict=True):
            if other < 0:
                free.add((int(switch), int(node)))
            else:
                near[int(switch)].add(int(other))
    return near, Counter(switch for switch, _ in free)


def _cuts(cluster: Cluster, rounds: Sequence[Longs], tier: str) -> list[NarrowCut]:
    """Each group of a tier cut off from the rest; none where it is the whole cluster."""
    devices = rounds[0][: cluster.num_devices]
    counts = np.bincount(devices)
    rates = np.min([_cut_rates(cluster.network, group, len(counts)) for group in rounds], axis=0)
    hosts = _hosts_of(cluster, rounds[0])
    return [
        NarrowCut(
            tier=tier,
            hosts=hosts[each],
            num_devices=int(counts[each]),
            bytes_per_second=float(rates[each]),
        )
        for each in np.flatnonzero(counts).tolist()
        if counts[each] < cluster.num_devices
    ]


def _cut_rates(network: Network, group: Longs, size: int) -> Floats:
    """What leaves each group, or enters it, whichever is less."""
    ends = group[network.sources], group[network.targets]
    is_cut = ends[0] != ends[1]
    rates = network.bytes_per_second[is_cut]
    both = [np.bincount(each[is_cut] + 1, rates, size + 1)[1:] for each in ends]
    return np.minimum(*both)


def _hosts_of(cluster: Cluster, group: Longs) -> dict[int, tuple[str, ...]]:
    found: dict[int, list[str]] = defaultdict(list)
    for number, host in enumerate(cluster.hosts):
        found[int(group[cluster.num_devices + number])].append(host)
    return {each: tuple(hosts) for each, hosts in found.items()}


def _halve(cluster: Cluster, group: Longs) -> NarrowCut:
    """Hosts that no switch joins, cut in two halves in their order."""
    half = len(cluster.hosts) // 2
    cut = _cuts(cluster, [np.where(group < half, 0, 1)], "half")
    return min(cut, key=lambda each: each.num_devices)


def _find_kinds(cluster: Cluster, cuts: Sequence[NarrowCut]) -> tuple[HostKind, ...]:
    devices: dict[str, Counter[tuple[str, float]]] = defaultdict(Counter)
    for device in cluster.devices:
        devices[device.host][device.type, device.memory_bytes] += 1
    out = {cut.hosts[0]: cut.bytes_per_second for cut in cuts}
    kinds: dict[object, list[str]] = defaultdict(list)
    for host in cluster.hosts:
        kinds[tuple(devices[host].items())].append(host)
    found = []
    for hosts in kinds.values():
        rates = [out.get(host, 0.0) for host in hosts]
        each = tuple((count, *what) for what, count in devices[hosts[0]].items())
        limits = (min(rates), max(rates))
        found.append(HostKind(hosts=tuple(hosts), devices=each, out_bytes_per_second=limits))
    return tuple(found)


def _find_reaches(
    cluster: Cluster, tiers: Sequence[Longs], cuts: Sequence[Sequence[NarrowCut]]
) -> tuple[Reach, ...]:
    chosen = _sample(cluster, tiers)
    rates, delays = cluster.pair_table(chosen, chosen)
    is_left = ~np.eye(len(chosen), dtype=bool)
    found = []
    for number in range(len(tiers) + 1):
        is_last = number == len(tiers)
        group = np.zeros(len(chosen)) if is_last else tiers[number][chosen]
        is_here = is_left & (group[:, None] == group[None, :])
        if not is_here.any():
            continue
        is_left &= ~is_here
        below = [cut.share_bytes_per_second for cut in cuts[number - 1]] if number else []
        found.append(
            Reach(
                tier="" if is_last else _tier(number),
                num_groups=1
                if is_last
                else len(set(tiers[number][: cluster.num_devices].tolist())),
                bytes_per_second=(float(rates[is_here].min()), float(rates[is_here].max())),
                latency_seconds=(float(delays[is_here].min()), float(delays[is_here].max())),
                shared_bytes_per_second=min(below, default=None),
            )
        )
    return tuple(found)


def _sample(cluster: Cluster, tiers: Sequence[Longs]) -> Longs:
    """All devices, or of many some: here and there in each tier one device of each of the first two
    groups of the tier below."""
    if cluster.has_tables:
        return np.arange(cluster.num_devices)
    found: set[int] = set()
    below = np.arange(cluster.num_devices)
    for group in tiers:
        starts = np.unique(group[: cluster.num_devices], return_index=True)[1]
        for start in starts[:: -(-2 * len(tiers) * len(starts) // MAX_SAMPLE)].tolist():
            inside = np.flatnonzero(group[: cluster.num_devices] == group[start])
            firsts = np.unique(below[inside], return_index=True)[1]
            found.update(inside[np.sort(firsts)[:2]].tolist())
        below = group[: cluster.num_devices]
    return np.array(sorted(found))
