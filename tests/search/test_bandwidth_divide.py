"""Rounding of rates and their division over ways: nothing is lost but parts of kbit/s."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from bandwidth_strategies import unequal_rails
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.plan.check import resolve
from meshwright.plan.plan import Allocation, Part, Plan
from meshwright.search.method.bandwidth.rate.divide import KBIT_BYTES, SPARE, divide_allocations
from small import dag, rails

Pair = tuple[int, int]
RAIL = 10_000_000 * KBIT_BYTES
"""10 Gbit/s."""


def used_kbit(cluster: Cluster, allocations: Sequence[Allocation]) -> dict[int, int]:
    """Whole kbit/s on every link; fails where a part is not whole."""
    number = {host: k for k, host in enumerate(cluster.hosts)}
    used: dict[int, int] = {}
    for each in allocations:
        ways = cluster.ways.links[number[each.source], number[each.target]]
        for share, way in zip(each.shares or (1.0,), ways, strict=True):
            kbit = share * each.bytes_per_second / KBIT_BYTES
            assert kbit == pytest.approx(round(kbit), abs=1e-5)
            for link in way:
                used[link] = used.get(link, 0) + round(kbit)
    return used


def check_links(cluster: Cluster, allocations: Sequence[Allocation]) -> None:
    for link, kbit in used_kbit(cluster, allocations).items():
        assert kbit * KBIT_BYTES <= cluster.link_bytes_per_second[link]


def num_parts(allocations: Sequence[Allocation]) -> int:
    return sum(sum(share > 0 for share in each.shares or (1.0,)) for each in allocations)


def rate_of(cluster: Cluster, allocations: Sequence[Allocation]) -> dict[Pair, float]:
    number = {host: k for k, host in enumerate(cluster.hosts)}
    return {
        (number[each.source], number[each.target]): each.bytes_per_second for each in allocations
    }


@st.composite
def full_rates(draw: st.DrawFn, num_hosts: int, total: float) -> dict[Pair, float]:
    """Rates whose sums out of and into hosts are near, or at, what their links have together."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = generator.exponential(size=(num_hosts, num_hosts)) ** draw(st.integers(1, 4))
    table *= generator.random(table.shape) < draw(st.sampled_from((0.4, 1.0)))
    np.fill_diagonal(table, 0.0)
    for _ in range(100):
        table /= np.maximum(table.sum(axis=1, keepdims=True), 1e-9)
        table /= np.maximum(table.sum(axis=0, keepdims=True), 1e-9)
    most = max(table.sum(axis=0).max(), table.sum(axis=1).max(), 1e-9)
    table *= draw(st.sampled_from((1.0, 0.97, 0.5))) * total / most
    return {(int(i), int(j)): float(table[i, j]) for i, j in np.argwhere(table > 2 * KBIT_BYTES)}


@given(st.data(), st.integers(2, 5), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_no_link_gets_more_than_its_rate_and_nothing_is_lost(
    data: st.DataObject, num_hosts: int, num_rails: int
) -> None:
    cluster = rails(num_hosts, num_rails=num_rails, rail=RAIL)
    rates = data.draw(full_rates(num_hosts, num_rails * RAIL))
    allocations = divide_allocations(cluster, rates)
    check_links(cluster, allocations)
    found = rate_of(cluster, allocations)
    assert found.keys() == rates.keys()
    for pair, rate in rates.items():
        assert found[pair] <= rate + 1e-3
        assert found[pair] > rate * (1 - 1 / SPARE) - 2 * KBIT_BYTES - 1e-3
    assert divide_allocations(cluster, rates) == allocations


@given(st.data(), st.integers(2, 4), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_pairs_of_collectives_stand_on_the_same_ways_in_the_same_parts(
    data: st.DataObject, num_hosts: int, num_rails: int
) -> None:
    cluster = rails(num_hosts, num_rails=num_rails, rail=RAIL)
    rates = data.draw(full_rates(num_hosts, num_rails * RAIL))
    together = [pair for pair in rates if pair[1] == (pair[0] + 1) % num_hosts]
    allocations = divide_allocations(cluster, rates, together=together)
    check_links(cluster, allocations)
    found = rate_of(cluster, allocations)
    for pair, rate in rates.items():
        assert found[pair] > rate * (1 - 1 / SPARE) - (num_rails + 1) * KBIT_BYTES
    names = {(cluster.hosts[one], cluster.hosts[other]) for one, other in together}
    rings = [each for each in allocations if (each.source, each.target) in names]
    ways = {tuple(share > 0 for share in each.shares) for each in rings}
    assert len(ways) <= 1
    for each in rings:
        off = num_rails * KBIT_BYTES / each.bytes_per_second
        assert each.shares == pytest.approx(rings[0].shares, abs=off + 1e-2)


def test_a_whole_ring_fills_every_way() -> None:
    cluster = rails(4, num_rails=2, rail=RAIL)
    ring = {(k, (k + 1) % 4): 2.0 * RAIL for k in range(4)}
    allocations = divide_allocations(cluster, ring, together=ring)
    assert {(each.bytes_per_second, each.shares) for each in allocations} == {
        (2.0 * RAIL, (0.5, 0.5))
    }


def test_three_destinations_on_two_interfaces_are_divided_once() -> None:
    # 8 + 7 + 5 on two of 10: 8 and 2 of the 5, 7 and 3: one division, which there must be.
    cluster = rails(4, num_rails=2, rail=RAIL)
    rates = {(0, 1): 0.8 * RAIL, (0, 2): 0.7 * RAIL, (0, 3): 0.5 * RAIL}
    allocations = divide_allocations(cluster, rates)
    assert num_parts(allocations) == 4
    assert rate_of(cluster, allocations) == rates


def test_what_fits_on_one_interface_each_is_not_divided() -> None:
    # 6 + 4 and 7 + 3 fill two interfaces exactly.
    cluster = rails(5, num_rails=2, rail=RAIL)
    rates = {(0, k + 1): part * RAIL for k, part in enumerate((0.6, 0.4, 0.7, 0.3))}
    allocations = divide_allocations(cluster, rates)
    assert num_parts(allocations) == 4
    assert rate_of(cluster, allocations) == pytest.approx(rates)


def test_rates_are_rounded_down_to_whole_kbit() -> None:
    cluster = rails(2, num_rails=1, rail=RAIL)
    (each,) = divide_allocations(cluster, {(0, 1): 1234567.8})
    assert each == Allocation(source="h0", target="h1", bytes_per_second=9876 * 125.0)


def test_links_of_different_rates_are_filled_to_theirs() -> None:
    # Interfaces of 1 and 4, 1 and 4, 2 and 3: whole numbers within every link.
    unit = 1_000_000 * KBIT_BYTES
    cluster = unequal_rails([[unit, 4 * unit], [unit, 4 * unit], [2 * unit, 3 * unit]])
    rates = {(0, 1): 2.5 * unit, (0, 2): 1.5 * unit, (1, 2): 1.0 * unit, (2, 1): 2.0 * unit}
    allocations = divide_allocations(cluster, rates)
    check_links(cluster, allocations)
    assert rate_of(cluster, allocations) == pytest.approx(rates)


def test_a_pair_of_hosts_without_a_common_switch_is_left_out() -> None:
    unit = 1_000_000 * KBIT_BYTES
    cluster = unequal_rails([[unit, unit], [unit, 0.0], [0.0, unit]])
    allocations = divide_allocations(cluster, {(0, 1): unit, (0, 2): unit})
    assert [each.shares for each in allocations] == [(), ()]
    assert divide_allocations(cluster, {}) == ()


def test_divisions_are_legal_in_plans() -> None:
    cluster = rails(3, num_rails=3, rail=RAIL)
    allocations = divide_allocations(cluster, {(0, 1): 2.7 * RAIL, (1, 2): 0.1 * RAIL})
    plan = Plan(parts=(Part(ops=("o0",), devices=("d0",)),), allocations=allocations)
    resolve(dag([1.0], {}), cluster, plan)
    shares = allocations[0].shares
    with pytest.raises(InputError, match="shares must add up to 1"):
        replace(allocations[0], shares=tuple(each / 2 for each in shares))
    far = replace(allocations[0], target="elsewhere")
    with pytest.raises(InputError, match="elsewhere"):
        resolve(dag([1.0], {}), cluster, replace(plan, allocations=(far,)))


def test_sixty_four_hosts_are_divided() -> None:
    cluster = rails(64, num_rails=4, rail=RAIL)
    generator = np.random.default_rng(1)
    table = generator.exponential(size=(64, 64))
    np.fill_diagonal(table, 0.0)
    for _ in range(200):
        table /= table.sum(axis=1, keepdims=True)
        table /= table.sum(axis=0, keepdims=True)
    table *= 4 * RAIL / max(table.sum(axis=0).max(), table.sum(axis=1).max())
    rates = {(i, j): float(table[i, j]) for i in range(64) for j in range(64) if i != j}
    allocations = divide_allocations(cluster, rates)
    check_links(cluster, allocations)
    found = rate_of(cluster, allocations)
    assert all(found[pair] > rate * (1 - 1 / SPARE) - 250 for pair, rate in rates.items())


def test_what_nothing_is_sent_on_gets_what_is_left_on_one_way() -> None:
    # 1.98 of 2 links are taken: 0.01 on each are left, and one of these is enough.
    cluster = rails(3, num_rails=2, rail=RAIL)
    rates = {(0, 1): 1.98 * RAIL, (0, 2): 0.02 * RAIL}
    allocations = divide_allocations(cluster, rates, together=[(0, 1)], faint=[(0, 2)])
    assert num_parts(allocations) == 3
    assert rate_of(cluster, allocations)[0, 2] == pytest.approx(0.01 * RAIL)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_ways_that_are_known_lose_no_more_than_rounding(seed: int) -> None:
    generator = np.random.default_rng(seed)
    unit = 1_000_000 * KBIT_BYTES
    cluster = unequal_rails((generator.integers(1, 5, size=(4, 3)) * unit).tolist())
    pairs = sorted(cluster.ways.links)
    ways = np.array([way for pair in pairs for way in cluster.ways.links[pair]])
    rates = generator.exponential(size=len(ways))
    for _ in range(50):  # shrink what is on a link that has too much
        load = np.zeros(len(cluster.links))
        np.add.at(load, ways, rates[:, None])
        rates *= np.minimum(1.0, (cluster.link_bytes_per_second / np.maximum(load, 1))[ways]).min(1)
        rates *= 1.0001 if load.max() < unit else 1.0
    known = {pair: rates[3 * k : 3 * k + 3].tolist() for k, pair in enumerate(pairs)}
    wanted = {pair: sum(own) for pair, own in known.items()}
    allocations = divide_allocations(cluster, wanted, known=known)
    check_links(cluster, allocations)
    found = rate_of(cluster, allocations)
    for pair, rate in wanted.items():
        if rate > 10 * KBIT_BYTES:
            assert found[pair] >= rate * (1 - 1 / SPARE) - 4 * KBIT_BYTES
