"""Networks are found again from what flows on them get: rates of hosts, racks, links up."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.network.probe.fair import TwoTiers, fair_rates
from meshwright.network.probe.probe import Findings, Pair, pair_rounds, probe, shift_rounds

MBIT = 1e6 / 8
QUICK = (7, 14, 17)
"""Networks of four and five hosts."""


class Simulated:
    """A meter of a network that is known; each rate is off by up to `noise`."""

    def __init__(self, network: TwoTiers, noise: float, seed: int, most: float = np.inf) -> None:
        self.network, self.noise, self.most = network, noise, most
        self.chance, self.calls = np.random.default_rng(seed), 0

    def rates(self, flows: Sequence[Pair]) -> list[float]:
        self.calls += 1
        if self.calls > self.most:
            raise KeyboardInterrupt
        sources, targets = np.array(flows, dtype=np.int64).T
        assert len(set(sources.tolist())) == len(flows)
        assert len(set(targets.tolist())) == len(flows)
        rates = fair_rates(self.network, sources, targets)
        found: list[float] = (rates * self.chance.uniform(1 - self.noise, 1, len(flows))).tolist()
        return found

    def latencies(self, pairs: Sequence[Pair]) -> list[float]:
        hosts = [host for pair in pairs for host in pair]
        assert len(set(hosts)) == len(hosts)
        return [1e-3 + 1e-4 * (one + other) for one, other in pairs]


def make(seed: int, num_hosts: int, num_racks: int) -> TwoTiers:
    """A random network: mixed rates of hosts, and links up that some racks cannot fill."""
    chance = np.random.default_rng(seed)
    rates = chance.choice([50, 100, 200, 300, 500, 1000], num_hosts) * MBIT
    rack_of = np.arange(num_hosts) % num_racks
    total = np.bincount(rack_of, rates, num_racks)
    up = total / chance.choice([1.0, 2.0, 3.0, 4.0], num_racks)
    up = np.where(up >= total, np.inf, up) if num_racks > 1 else np.full(1, np.inf)
    return TwoTiers(out=rates, into=rates, rack_of=rack_of, up=up, down=up)


def true_pairs(network: TwoTiers) -> Any:
    count = len(network.out)
    sources, targets = np.divmod(np.arange(count * count), count)
    found: np.ndarray = network.alone(sources, targets).reshape(count, count)
    return found


def pair_errors(network: TwoTiers, found: Findings) -> np.ndarray:
    off = ~np.eye(len(network.out), dtype=bool)
    errors: np.ndarray = np.abs(found.pair_bytes_per_second[off] / true_pairs(network)[off] - 1)
    return errors


@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 3))
def test_shares_are_max_min_fair(seed: int, num_hosts: int, num_racks: int) -> None:
    """No link is too full, and each flow has a full link on which none gets more than it."""
    network = make(seed, num_hosts, min(num_racks, num_hosts))
    order = np.random.default_rng(seed).permutation(num_hosts)
    sources, targets = order, np.roll(order, 1)
    rates = fair_rates(network, sources, targets)
    rack = network.rack_of
    crosses = rack[sources] != rack[targets]
    links = [(np.flatnonzero(sources == host), network.out[host]) for host in range(num_hosts)]
    links += [(np.flatnonzero(targets == host), network.into[host]) for host in range(num_hosts)]
    for each in range(network.num_racks):
        links.append((np.flatnonzero(crosses & (rack[sources] == each)), network.up[each]))
        links.append((np.flatnonzero(crosses & (rack[targets] == each)), network.down[each]))
    for flows, cap in links:
        assert rates[flows].sum() <= cap * (1 + 1e-9)
    for flow in range(num_hosts):
        assert any(
            flow in flows
            and rates[flows].sum() >= cap * (1 - 1e-6)
            and rates[flow] >= rates[flows].max() * (1 - 1e-6)
            for flows, cap in links
        )


@pytest.mark.parametrize("count", range(2, 14))
def test_rounds_have_each_pair_once(count: int) -> None:
    ordered = [pair for flows in shift_rounds([*range(1, count), 0]) for pair in flows]
    assert len(ordered) == len(set(ordered)) == count * (count - 1)
    both = [frozenset(pair) for pairs in pair_rounds(count) for pair in pairs]
    assert len(both) == len(set(both)) == len(list(combinations(range(count), 2)))


def unseen_loads(network: TwoTiers, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Loads that no probe asks for: random ones of some hosts, and all of a rack to the others."""
    chance, count = np.random.default_rng(seed), len(network.out)
    loads = []
    for _ in range(40):
        order = chance.permutation(count)[: chance.integers(2, count + 1)]
        loads.append((order, np.roll(order, 1)))
    for rack in range(network.num_racks):
        inside = np.flatnonzero(network.rack_of == rack)
        outside = np.flatnonzero(network.rack_of != rack)
        size = min(len(inside), len(outside))
        if size:
            loads.append((inside[:size], chance.permutation(outside)[:size]))
    return loads


@pytest.mark.parametrize(
    "seed",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in range(24)],
)
def test_random_networks_are_found_again(seed: int) -> None:
    """4 to 12 hosts in 1 to 3 racks, 50 to 1000 Mbit/s, rates measured up to 3% low.

    Which racks there are cannot always be told: of two, either one's link may be the narrow one,
    and of a rack that no others fill nobody sees the link. What flows get then is the same.
    """
    chance = np.random.default_rng(100 + seed)
    num_hosts, num_racks = int(chance.integers(4, 13)), int(chance.integers(1, 4))
    network = make(seed, num_hosts, num_racks)
    found = probe(Simulated(network, 0.03, seed), num_hosts)
    assert found.is_whole
    assert pair_errors(network, found).max() < 0.05
    assert not np.isnan(found.latency_seconds[~np.eye(num_hosts, dtype=bool)]).any()
    errors = []
    for sources, targets in unseen_loads(network, seed):
        rates = fair_rates(network, sources, targets)
        predicted = fair_rates(found.network, sources, targets)
        assert predicted.sum() == pytest.approx(rates.sum(), rel=0.12)
        errors.append(np.abs(np.log(predicted / rates)))
    assert np.concatenate(errors).mean() < 0.04


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_link_that_four_fast_hosts_share_is_found(seed: int) -> None:
    """Three racks of four equal hosts, each with a link up of less than half of what they send."""
    chance = np.random.default_rng(seed)
    rack_of = chance.permutation(np.repeat(np.arange(3), 4))
    up = chance.uniform(1.2, 1.9, 3) * 500 * MBIT
    rates = np.full(12, 500 * MBIT)
    network = TwoTiers(out=rates, into=rates, rack_of=rack_of, up=up, down=up)
    found = probe(Simulated(network, 0.03, seed), 12).network
    assert found.num_racks == 3
    for rack in range(3):
        (mine,) = {int(each) for each in found.rack_of[rack_of == rack]}
        assert found.up[mine] == pytest.approx(up[rack], rel=0.05)
        assert found.down[mine] == pytest.approx(up[rack], rel=0.05)


def test_hosts_on_one_switch_share_nothing() -> None:
    network = make(7, 6, 1)
    found = probe(Simulated(network, 0.02, 0), 6)
    assert not np.isfinite(found.network.up).any() or found.network.num_racks == 1


def test_an_interrupted_probe_concludes_from_what_it_has() -> None:
    network = make(3, 8, 2)
    found = probe(Simulated(network, 0.0, 0, most=9), 8)
    assert not found.is_whole
    assert len(found.loads) == 9
    assert (found.network.out > 0).all()
    with pytest.raises(KeyboardInterrupt):
        probe(Simulated(network, 0.0, 0, most=0), 8)
