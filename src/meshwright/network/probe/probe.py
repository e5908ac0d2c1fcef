"""Which flows to measure, and what follows: rates of hosts, racks, links up, latencies.

First all hosts send at once, each to one other, round after round until each pair had its turn;
several times in different orders, of which some put hosts of about the same rate together. Pairs
that got less than their hosts can are measured again alone, as many as there is time for. Racks are
what explains all that (`meshwright.network.probe.infer`); the links of those that share one are
then filled once more. Interrupted, it concludes from what it has.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.network.probe.fair import TwoTiers
from meshwright.network.probe.infer import Load, find_racks

_IS_WHOLE = 0.93
"""A pair that got this share of what its hosts are known for needs no measurement alone."""
PING_TURNS = 3
"""How often each pair is pinged; the quickest turn counts."""
MOST_PINGED = 16
"""So many hosts are pinged pair by pair, which takes seconds; of more, all pairs of a round."""
NUM_TURNS = 4
"""How often all pairs have their turn."""
_AS_EXPECTED, _REPEATS = 0.96, 3
_FILLS, _FILL_TIMES = 2, 3
"""What filled links say of racks may say of others that they are to be filled."""
MOST_ALONE = 10
"""Times the number of hosts: so many pairs are measured alone at most."""

Pair = tuple[int, int]


class Meter(Protocol):
    """Measures between hosts, by their numbers."""

    def rates(self, flows: Sequence[Pair]) -> list[float]:
        """Bytes a second of flows at once; each host sends one at most, and receives one."""
        ...

    def latencies(self, pairs: Sequence[Pair]) -> list[float]:
        """Seconds of a small message one way, of pairs at once that have no host in common."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """What a network was found to be."""

    network: TwoTiers
    latency_seconds: Floats
    """Of each pair of hosts; NaN where it was not measured."""
    alone: Floats
    """What each pair got alone, in bytes a second; NaN where it was not measured."""
    loads: tuple[Load, ...]
    is_whole: bool
    """Whether all was measured that should have been."""

    @property
    def pair_bytes_per_second(self) -> Floats:
        """What each pair of hosts gets alone; infinite from a host to itself."""
        count = len(self.network.out)
        sources, targets = np.divmod(np.arange(count * count), count)
        found = self.network.alone(sources, targets).reshape(count, count)
        found = np.where(np.isnan(self.alone), found, self.alone)
        np.fill_diagonal(found, np.inf)
        return found


def shift_rounds(order: Sequence[int]) -> Iterator[list[Pair]]:
    """Rounds in which every host sends to one and receives from one; each pair comes once. Hosts
    that follow each other in the order are paired first."""
    order = list(order)
    for shift in range(1, len(order)):
        ends = order[shift:] + order[:shift]
        yield list(zip(order, ends, strict=True))


def pair_rounds(num_hosts: int) -> Iterator[list[Pair]]:
    """Rounds of pairs that have no host in common; each pair comes once (the circle method)."""
    order: list[int | None] = list(range(num_hosts))
    if num_hosts % 2:
        order.append(None)
    half = len(order) // 2
    for _ in range(len(order) - 1):
        found = zip(order[:half], reversed(order[half:]), strict=True)
        yield [(one, other) for one, other in found if one is not None and other is not None]
        order.insert(1, order.pop())


def ping_rounds(num_hosts: int) -> Iterator[list[Pair]]:
    """Rounds in which each pair is pinged once: of few hosts pairs by themselves."""
    for pairs in pair_rounds(num_hosts):
        if num_hosts <= MOST_PINGED:
            yield from ([pair] for pair in pairs)
        else:
            yield pairs


def probe(
    meter: Meter,
    num_hosts: int,
    *,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Measure a network of two or more hosts; Ctrl-C ends it with what has been measured."""
    latency = np.full((num_hosts, num_hosts), np.nan)
    alone = np.full((num_hosts, num_hosts), np.nan)
    loads: list[Load] = []
    is_whole = False
    try:
        _measure(meter, num_hosts, seed, latency, alone, loads, tell)
        is_whole = True
    except KeyboardInterrupt:
        if not loads:
            raise
        tell("interrupted: concluding from what was measured")
    out, into = _host_rates(num_hosts, alone, loads)
    network = find_racks(out, into, loads)
    if is_whole and num_hosts > 2:
        try:
            for _ in range(_FILLS):
                network = _fill(meter, network, loads, tell)
            _repeat(meter, network, alone, tell)
        except KeyboardInterrupt:
            is_whole = False
    return Findings(
        network=network,
        latency_seconds=latency,
        alone=alone,
        loads=tuple(loads),
        is_whole=is_whole,
    )


def _measure(
    meter: Meter,
    num_hosts: int,
    seed: int,
    latency: Floats,
    alone: Floats,
    loads: list[Load],
    tell: Callable[[str], None],
) -> None:
    for turn in range(PING_TURNS):
        tell(f"latency of all pairs, turn {turn + 1} of {PING_TURNS}")
        for pairs in ping_rounds(num_hosts):
            for (one, other), seconds in zip(pairs, meter.latencies(pairs), strict=True):
                latency[one, other] = np.fmin(latency[one, other], seconds)
                latency[other, one] = latency[one, other]
    order = list(range(num_hosts))
    for turn in range(NUM_TURNS if num_hosts > 2 else 1):
        chance = Random(seed + turn)
        if turn % 2:
            # Rates that match fill links most: slow hosts would leave fast ones idle.
            best = _best(num_hosts, loads)
            most = np.maximum(best.max(axis=0), best.max(axis=1))
            keys = [float(each) * chance.uniform(1.0, 1.0 + turn / 2) for each in most]
            order.sort(key=keys.__getitem__)
        else:
            chance.shuffle(order)
        for number, flows in enumerate(shift_rounds(order), start=1):
            tell(f"all hosts at once: round {number:,} of {num_hosts - 1:,}, turn {turn + 1}")
            loads.append(_load(meter, flows))
    for left in (MOST_ALONE * num_hosts // 2,) * 2:
        # A host all of whose flows were slowed is known to be faster once it was alone; then
        # other pairs of it are in doubt.
        doubtful = _doubtful(_best(num_hosts, loads), alone)[:left]
        for number, (one, other) in enumerate(doubtful, start=1):
            tell(f"alone: pair {number:,} of {len(doubtful):,}")
            alone[one, other] = meter.rates([(one, other)])[0]


def _load(meter: Meter, flows: Sequence[Pair]) -> Load:
    rates = meter.rates(flows)
    sources, targets = np.array(flows, dtype=np.int64).T
    return Load(sources=sources, targets=targets, bytes_per_second=np.maximum(rates, 1.0))


def _best(num_hosts: int, loads: Sequence[Load]) -> Floats:
    """The most that each pair got in any load."""
    best = np.zeros((num_hosts, num_hosts))
    for load in loads:
        np.maximum.at(best, (load.sources, load.targets), load.bytes_per_second)
    return best


def _doubtful(best: Floats, alone: Floats) -> list[Pair]:
    """Pairs that may get more alone than ever at once; of each host its fastest pairs first, since
    all of its pairs may have been slowed, then those that were slowed the most."""
    known = np.where(np.isnan(alone), best, alone)
    rates = np.minimum(known.max(axis=1)[:, None], known.max(axis=0)[None, :])
    share = best / rates
    np.fill_diagonal(share, 2.0)
    num_hosts = len(best)
    chosen = [(host, int(np.argmax(best[host]))) for host in range(num_hosts)]
    chosen += [(int(np.argmax(best[:, host])), host) for host in range(num_hosts)]
    # A host's own rate shows with others that are faster.
    senders, receivers = (
        np.argsort(-known.max(axis=axis), kind="stable").tolist() for axis in (1, 0)
    )
    for host in range(num_hosts):
        chosen += [(host, each) for each in receivers[:3] if each != host][:2]
        chosen += [(each, host) for each in senders[:3] if each != host][:2]
    pairs = [divmod(place, num_hosts) for place in np.argsort(share, axis=None).tolist()]
    chosen += [pair for pair in pairs if share[pair] < _IS_WHOLE]
    return [pair for pair in dict.fromkeys(chosen) if np.isnan(alone[pair])]


def _host_rates(num_hosts: int, alone: Floats, loads: Sequence[Load]) -> tuple[Floats, Floats]:
    """What each host sends and receives at most. Of pairs measured alone that counts; loads are
    believed where nothing else is known, as short ones can seem faster than they are."""
    measured = np.where(np.isnan(alone), 0.0, alone)
    loaded = _best(num_hosts, loads)
    rates = []
    for axis in (1, 0):
        own, seen = measured.max(axis=axis), loaded.max(axis=axis)
        rates.append(np.where(own > 0, np.where(seen > 1.1 * own, seen, own), seen))
    return np.maximum(rates[0], 1.0), np.maximum(rates[1], 1.0)


def _fill(
    meter: Meter, network: TwoTiers, loads: list[Load], tell: Callable[[str], None]
) -> TwoTiers:
    """Fill the links of racks once more, each by all of its hosts and as many others; and of all
    hosts together that share no link as far as is known."""
    rack_of = network.rack_of
    groups = [np.flatnonzero(rack_of == rack) for rack in range(network.num_racks)]
    is_free = ~np.isfinite(np.minimum(network.up, network.down))[rack_of]
    groups.append(np.flatnonzero(is_free))
    groups = [each for each in groups if 2 <= len(each) < len(rack_of)]
    for number, inside in enumerate(groups, start=1):
        tell(f"links that hosts share: group {number:,} of {len(groups):,}")
        outside = np.setdiff1d(np.arange(len(rack_of)), inside)
        for is_up in (True, False):
            rates, others = (network.out, network.into) if is_up else (network.into, network.out)
            own = inside[np.argsort(-rates[inside], kind="stable")]
            pairs = zip(own.tolist(), _spread(outside, rack_of, others).tolist(), strict=False)
            flows = [(one, other) if is_up else (other, one) for one, other in pairs]
            loads += [_load(meter, flows) for _ in range(_FILL_TIMES)]
    return find_racks(network.out, network.into, loads)


def _repeat(meter: Meter, network: TwoTiers, alone: Floats, tell: Callable[[str], None]) -> None:
    """Measure pairs again that were slower alone than all others say: machines stall, and what is
    slow every time is slow."""
    count = len(alone)
    sources, targets = np.divmod(np.arange(count * count), count)
    expected = network.alone(sources, targets).reshape(count, count)
    with np.errstate(invalid="ignore"):
        late = np.argwhere(alone < _AS_EXPECTED * expected).tolist()
    for number, (one, other) in enumerate(late, start=1):
        for _ in range(_REPEATS):
            tell(f"alone again: pair {number:,} of {len(late):,}")
            alone[one, other] = max(alone[one, other], meter.rates([(one, other)])[0])
            if alone[one, other] >= _AS_EXPECTED * expected[one, other]:
                break


def _spread(hosts: Longs, rack_of: Longs, rates: Floats) -> Longs:
    """Hosts in turn of each rack, the fastest of a rack first."""
    place: dict[int, int] = {}
    keys = []
    for host in sorted(hosts.tolist(), key=lambda each: -rates[each]):
        rack = int(rack_of[host])
        place[rack] = place.get(rack, -1) + 1
        keys.append((place[rack], -rates[host], host))
    return np.array([host for _, _, host in sorted(keys)], dtype=np.int64)
