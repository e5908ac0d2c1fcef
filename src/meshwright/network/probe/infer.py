"""Finds which hosts share links, by what flows got alone and at once.

Hosts are divided into racks, of which each has a link up; those are chosen that explain the rates
of all loads best. Trees of more tiers look like the tier that is narrowest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from random import Random

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.network.probe.fair import TwoTiers, fair_rates

_BOUND = 0.9
"""A rack's link counts as full where its hosts ask for more than what it gave over this."""
_NOISE = 0.004
"""A mean error below this is the noise of any measurement."""
_BURSTS = 16
"""One load in so many may have carried more than a link does for long."""
_SHAKES = 4
"""How often what was found is disturbed, to find better."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Flows that went on at once, and what they got."""

    sources: Longs
    targets: Longs
    bytes_per_second: Floats


def find_racks(out: Floats, into: Floats, loads: Sequence[Load], seed: int = 0) -> TwoTiers:
    """The network that explains the loads best, of those with these rates of hosts."""
    chance = Random(seed)

    def cost(rack_of: Longs) -> float:
        return _cost(rack_of, out, into, loads)

    found = [_improve(start, cost) for start in _starts(out, into, loads)]
    best = min(found, key=lambda each: each[0])
    for _ in range(_SHAKES):
        # What no single move mends: a rack is dissolved into its hosts, which find others.
        rack_of = best[1].copy()
        chosen = rack_of == chance.choice(np.unique(rack_of).tolist())
        rack_of[chosen] = rack_of.max() + 1 + np.arange(chosen.sum())
        again = _improve(rack_of, cost)
        best = min(best, again, key=lambda each: each[0])
    return make_network(best[1], out, into, loads)


def join_loads(loads: Sequence[Load]) -> tuple[Load, Longs]:
    """All flows together, and the number of the load that each was in."""
    sizes = [len(load.sources) for load in loads]
    joined = Load(
        sources=np.concatenate([load.sources for load in loads]),
        targets=np.concatenate([load.targets for load in loads]),
        bytes_per_second=np.concatenate([load.bytes_per_second for load in loads]),
    )
    return joined, np.repeat(np.arange(len(loads)), sizes)


def explain(network: TwoTiers, loads: Sequence[Load]) -> float:
    """The mean error of the rates that a network would have given: relative, and at most 1 each."""
    joined, load_of = join_loads(loads)
    rates = fair_rates(network, joined.sources, joined.targets, load_of)
    error = np.abs(np.log(rates / joined.bytes_per_second))
    return float(np.minimum(error, 1.0).mean())


def make_network(rack_of: Longs, out: Floats, into: Floats, loads: Sequence[Load]) -> TwoTiers:
    """The network of racks whose links up carry what they were seen to carry, where their hosts
    asked for more."""
    _, rack_of = np.unique(rack_of, return_inverse=True)
    count = int(rack_of.max()) + 1
    sizes = np.bincount(rack_of)  # the link of a single host is its own
    joined, load_of = join_loads(loads)
    crosses = np.flatnonzero(rack_of[joined.sources] != rack_of[joined.targets])
    wanted = np.minimum(out[joined.sources], into[joined.targets])[crosses]
    rates = joined.bytes_per_second[crosses]
    caps = []
    for ends in (joined.sources, joined.targets):
        place = load_of[crosses] * count + rack_of[ends[crosses]]
        asked, given = (
            np.bincount(place, each, len(loads) * count).reshape(-1, count)
            for each in (wanted, rates)
        )
        most = np.sort(given, axis=0)[-1 - len(loads) // _BURSTS]
        is_bound = (asked * _BOUND > most).any(axis=0) & (most > 0) & (sizes > 1)
        caps.append(np.where(is_bound, most, np.inf))
    return TwoTiers(out=out, into=into, rack_of=rack_of, up=caps[0], down=caps[1])


def _cost(rack_of: Longs, out: Floats, into: Floats, loads: Sequence[Load]) -> float:
    network = make_network(rack_of, out, into, loads)
    shared = int(np.isfinite(network.up).sum() + np.isfinite(network.down).sum())
    flows = sum(len(load.sources) for load in loads)
    # As in Bayes' information criterion for errors of a Laplace distribution: each further link
    # that is shared has to lower the error by what its rate could by chance.
    return flows * float(np.log(explain(network, loads) + _NOISE)) + shared * float(np.log(flows))


def _starts(out: Floats, into: Floats, loads: Sequence[Load]) -> Iterator[Longs]:
    """Some divisions to begin with: hosts are near each other where their flows were not slowed,
    and are joined, the nearest first, until so many racks are left."""
    count = len(out)
    slow, seen = np.zeros((count, count)), np.zeros((count, count))
    for load in loads:
        ends = load.sources, load.targets
        share = load.bytes_per_second / np.minimum(out[load.sources], into[load.targets])
        np.add.at(slow, ends, 1.0 - np.minimum(share, 1.0))
        np.add.at(seen, ends, 1.0)
    with np.errstate(invalid="ignore"):
        far = np.where(seen > 0, slow / seen, 0.5)
    far = (far + far.T) / 2
    groups = [[place] for place in range(count)]
    costs = []
    while True:
        rack_of = np.zeros(count, dtype=np.int64)
        for number, group in enumerate(groups):
            rack_of[group] = number
        costs.append((_cost(rack_of, out, into, loads), len(groups), rack_of))
        if len(groups) == 1:
            break
        pairs = [(one, other) for one in range(len(groups)) for other in range(one)]
        nearest = min(pairs, key=lambda pair: _between(far, groups[pair[0]], groups[pair[1]]))
        groups[nearest[1]] += groups[nearest[0]]
        del groups[nearest[0]]
    yield costs[0][2]
    costs.sort(key=lambda each: each[:2])
    for _, _, rack_of in costs[:3]:
        yield rack_of


def _between(far: Floats, one: Sequence[int], other: Sequence[int]) -> float:
    return float(far[np.ix_(one, other)].mean())


def _improve(rack_of: Longs, cost: Callable[[Longs], float]) -> tuple[float, Longs]:
    """Move hosts to other racks, and join racks, as long as that explains more."""
    best = cost(rack_of)
    is_better = True
    while is_better:
        is_better = False
        for moves in _moves(rack_of):
            # The next moves are of what this one leaves.
            tried = [(cost(each), place, each) for place, each in enumerate(moves(rack_of))]
            if tried:
                found, _, chosen = min(tried, key=lambda each: each[:2])
                if found < best - 1e-9:
                    best, rack_of, is_better = found, chosen, True
    return best, rack_of


def _moves(rack_of: Longs) -> Iterator[Callable[[Longs], Iterator[Longs]]]:
    """For each host the racks that it may be in; then all pairs of racks that may be one."""
    for host in range(len(rack_of)):
        yield partial(_move_host, host)
    yield _join_racks


def _move_host(host: int, rack_of: Longs) -> Iterator[Longs]:
    racks = np.unique(rack_of).tolist()
    for rack in [*racks, max(racks) + 1]:
        if rack != rack_of[host]:
            moved = rack_of.copy()
            moved[host] = rack
            yield moved


def _join_racks(rack_of: Longs) -> Iterator[Longs]:
    for one, other in combinations(np.unique(rack_of).tolist(), 2):
        yield np.where(rack_of == other, one, rack_of)
