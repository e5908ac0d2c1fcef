"""Which rates the pairs of hosts can have together: the links that they share.

Where every host is joined to the same switches and its interfaces are in the same proportion as
every other's, dividing all traffic over them in that proportion is as good as any other division:
then what leaves a host is one row, and what enters it another. Elsewhere there is a variable for
each way of a pair and a row for each link. Knows nothing of plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster

Pair = tuple[int, int]
Bundle = Mapping[Pair, float]
"""Pairs whose rates are so many times one rate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RateRoom:
    """What limits the rates of pairs: of each row the rates of its ways add up to its rate.

    A pair may stand for several that have their rates in proportion, as those of a ring have.
    """

    pair_of_way: Longs
    """Whose rate each way adds to, rising: every pair has at least one way."""
    rows: Floats
    """Row x way: what the way takes of the row for each byte a second of its pair."""
    bytes_per_second: Floats
    """Of each row, positive."""

    @property
    def num_pairs(self) -> int:
        """How many pairs have rates."""
        return int(self.pair_of_way[-1]) + 1 if len(self.pair_of_way) else 0

    @property
    def way_start(self) -> Longs:
        """Where the ways of each pair begin."""
        return np.searchsorted(self.pair_of_way, np.arange(self.num_pairs))

    def picked(self, pairs: Longs) -> "RateRoom":
        """For some of the pairs (rising), with the rows that they use."""
        ways = np.isin(self.pair_of_way, pairs)
        used = self.rows[:, ways].any(axis=1)
        return RateRoom(
            pair_of_way=np.searchsorted(pairs, self.pair_of_way[ways]),
            rows=np.ascontiguousarray(self.rows[np.ix_(used, ways)]),
            bytes_per_second=self.bytes_per_second[used],
        )


def make_room(cluster: Cluster, bundles: Sequence[Bundle]) -> RateRoom:
    """The rows of bundles of pairs of host numbers, all of which have a way.

    A pair may be in several, for traffic that has a rate of its own; bundles of more than one pair
    are for clusters that `divides_alike` only.
    """
    pairs = sorted({pair for bundle in bundles for pair in bundle})
    assert all(cluster.ways.links[pair] for pair in pairs), "without a way there is no rate"
    if pairs and divides_alike(cluster, pairs):
        return _whole_rows(cluster, bundles)
    assert all(len(bundle) == 1 for bundle in bundles)
    ways = [cluster.ways.links[pair] for bundle in bundles for pair in bundle]
    links = sorted({link for of_pair in ways for way in of_pair for link in way})
    place = {link: row for row, link in enumerate(links)}
    pair_of_way = [k for k, of_pair in enumerate(ways) for _ in of_pair]
    rows = np.zeros((len(links), len(pair_of_way)))
    for column, way in enumerate(way for of_pair in ways for way in of_pair):
        rows[[place[link] for link in way], column] = 1.0
    return RateRoom(
        pair_of_way=np.array(pair_of_way, dtype=np.int64),
        rows=rows,
        bytes_per_second=cluster.link_bytes_per_second[links],
    )


def divides_alike(cluster: Cluster, pairs: Sequence[Pair]) -> bool:
    """Whether dividing all these pairs over their ways in one proportion is as good as any."""
    groups = find_ends({pair: cluster.ways.links[pair] for pair in pairs})
    if groups is None or len({len(group) for group in groups}) != 1:
        return False
    rates = cluster.link_bytes_per_second[np.array(groups)]
    parts = rates / rates.sum(axis=1, keepdims=True)
    return bool(np.allclose(parts, parts[0], rtol=1e-12, atol=0.0))


def find_ends(ways: Mapping[Pair, Sequence[tuple[int, ...]]]) -> list[tuple[int, ...]] | None:
    """The exits and the entries of hosts, way by way, where every pair's k-th way is the k-th exit
    of one host and the k-th entry of the other, and no link is on two of them; else None."""
    ends: dict[tuple[int, int], tuple[int, ...]] = {}
    for pair, of_pair in ways.items():
        if any(len(way) != 2 for way in of_pair):
            return None
        for side, host in enumerate(pair):
            links = tuple(way[side] for way in of_pair)
            if ends.setdefault((side, host), links) != links:
                return None
    return list(ends.values())


def _whole_rows(cluster: Cluster, bundles: Sequence[Bundle]) -> RateRoom:
    """One way a bundle and two rows a host."""
    pairs = sorted({pair for bundle in bundles for pair in bundle})
    links = {("exit", pair[0]): [way[0] for way in cluster.ways.links[pair]] for pair in pairs}
    links |= {("entry", pair[1]): [way[1] for way in cluster.ways.links[pair]] for pair in pairs}
    place = {end: row for row, end in enumerate(links)}
    rows = np.zeros((len(place), len(bundles)))
    for column, bundle in enumerate(bundles):
        for (source, target), weight in bundle.items():
            rows[place["exit", source], column] += weight
            rows[place["entry", target], column] += weight
    totals = [cluster.link_bytes_per_second[own].sum() for own in links.values()]
    return RateRoom(
        pair_of_way=np.arange(len(bundles)), rows=rows, bytes_per_second=np.array(totals)
    )


def even_rates(room: RateRoom) -> Floats:
    """All rows shared alike by the ways on them, by pair: together within the rows."""
    if not room.num_pairs:
        return np.zeros(0)
    return np.asarray(np.add.reduceat(even_ways(room), room.way_start))


def even_ways(room: RateRoom) -> Floats:
    """All rows shared alike by the ways on them: the rate of each way."""
    share = room.bytes_per_second / np.maximum((room.rows > 0).sum(axis=1), 1)
    limits = np.full(room.rows.shape, np.inf)
    np.divide(share[:, None], room.rows, out=limits, where=room.rows > 0)
    return np.asarray(limits.min(axis=0, initial=np.inf))
