"""Rates of testbeds, measured: as allocated by tc and by Open vSwitch, and as shared without.

Machines stall, and these tests share one with others: the best of a few short measurements counts,
each by the middle half of its intervals.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from made_testbed import MBIT, allocated, both_kinds, needs_namespaces, rails, take_name

from meshwright.errors import InputError
from meshwright.network.script import Kind
from meshwright.network.testbed import apply
from meshwright.network.testbed import testbed as plans
from meshwright.network.testbed.testbed import plan_testbed
from rates_measured import Demand, MeasuredRate, measure_rates

name = pytest.fixture(take_name)
SECONDS, TRIES = 2.0, 8


def demand(source: int, target: int, interface: int = 0, num_bytes: float = 1e12) -> Demand:
    return Demand(
        source=f"host{source}", target=f"host{target}", interface=interface, num_bytes=num_bytes
    )


def measured_mbit(testbed: plans.Testbed, demands: Sequence[Demand]) -> list[float]:
    return [
        each.steady_bytes_per_second / MBIT for each in measure_rates(testbed, demands, SECONDS)
    ]


def closest(measure: Callable[[], list[float]], expected: Sequence[float]) -> list[float]:
    """Of some measurements the one that is nearest to what is expected."""

    def error(rates: list[float]) -> float:
        return max(abs(rate / each - 1) for rate, each in zip(rates, expected, strict=True))

    best: list[float] = []
    for _ in range(TRIES):
        rates = measure()
        best = min((best or rates, rates), key=error)
        if error(best) < 0.03:
            break
    return best


@both_kinds
def test_three_destinations_at_once_get_what_is_allocated(
    name: str, tmp_path: Path, kind: Kind
) -> None:
    # 1 : 2.5 : 5, all by one interface of 360 Mbit/s; one more is on the other.
    plan = allocated(
        (0, 1, 40, (1.0, 0.0)),
        (0, 2, 100, (1.0, 0.0)),
        (0, 3, 250, (0.8, 0.2)),
        (1, 0, 60, (0.5, 0.5)),
    )
    demands = [demand(0, 1), demand(0, 2), demand(0, 3), demand(0, 3, 1), demand(1, 0, 1)]
    expected = [40.0, 100.0, 200.0, 50.0, 30.0]
    with apply.built(rails(360), name, plan, kind, folder=tmp_path) as testbed:
        rates = closest(lambda: measured_mbit(testbed, demands), expected)
    assert rates == pytest.approx(expected, rel=0.05)


@both_kinds
def test_an_allocation_over_both_interfaces_has_more_than_one_link(
    name: str, tmp_path: Path, kind: Kind
) -> None:
    plan = allocated((2, 1, 196, (0.5, 0.5)))
    with apply.built(rails(100), name, plan, kind, folder=tmp_path) as testbed:
        flows = [demand(2, 1, 0), demand(2, 1, 1)]
        rates = closest(lambda: measured_mbit(testbed, flows), [98.0, 98.0])
    assert sum(rates) > 1.8 * 100
    assert sum(rates) < 2.0 * 100


@both_kinds
def test_without_allocations_what_shares_a_link_shares_it_fairly(
    name: str, tmp_path: Path, kind: Kind
) -> None:
    # Three flows leave host 0 by its first cable, and three come in by its second.
    demands = [*(demand(0, k) for k in (1, 2, 3)), *(demand(k, 0, 1) for k in (1, 2, 3))]
    expected = [50.0] * 6
    with apply.built(rails(150), name, None, kind, folder=tmp_path) as testbed:
        rates = closest(lambda: measured_mbit(testbed, demands), expected)
    assert rates == pytest.approx(expected, rel=0.05)


@needs_namespaces
def test_without_allocations_each_cable_has_its_links_rate(name: str, tmp_path: Path) -> None:
    with apply.built(rails(100), name, folder=tmp_path) as testbed:
        flows = [demand(3, 0, 0), demand(3, 0, 1)]
        rates = closest(lambda: measured_mbit(testbed, flows), [100.0, 100.0])
    assert rates == pytest.approx([100.0, 100.0], rel=0.05)


@needs_namespaces
def test_what_has_been_sent_leaves_the_link_to_the_others(name: str, tmp_path: Path) -> None:
    # At 100 Mbit/s: 2.5 MB beside another take 0.4 s at half the rate; then the other has it all.
    with apply.built(rails(100), name, folder=tmp_path) as testbed:
        for _ in range(TRIES):
            short, long = measure_rates(testbed, [demand(0, 1, 0, 2.5e6), demand(0, 2)], 1.2)
            first = long.bytes_per_second[1] / MBIT
            then = long.bytes_per_second[8] / MBIT
            if abs(first / 50 - 1) < 0.1 and abs(then / 100 - 1) < 0.1:
                break
    assert sum(short.bytes_per_second) * short.interval_seconds == 2.5e6
    assert 0.35 < short.seconds < 0.75
    assert (first, then) == pytest.approx((50, 100), rel=0.1)


def test_the_steady_rate_is_of_the_middle_half_of_the_time_when_it_ran() -> None:
    # Slow start, four whole intervals of which the middle two count, the last one, nothing.
    rates = (9.0, 9.0, 1.0, 2.0, 4.0, 8.0, 0.5, 0.0, 0.0)
    measured = MeasuredRate(demand=demand(0, 1), interval_seconds=0.1, bytes_per_second=rates)
    assert measured.steady_bytes_per_second == 3.0
    assert measured.seconds == pytest.approx(0.7)
    idle = MeasuredRate(demand=demand(0, 1), interval_seconds=0.1, bytes_per_second=(0.0, 0.0))
    assert (idle.steady_bytes_per_second, idle.seconds) == (0.0, 0.0)


def test_a_host_or_interface_that_is_not_there_is_refused() -> None:
    testbed = plan_testbed(rails(100), "lab")
    with pytest.raises(InputError, match="testbed 'lab': has no host 'host4'"):
        measure_rates(testbed, [demand(0, 4)], 1.0)
    with pytest.raises(InputError, match="testbed 'lab': has no interface 2 of host 'host0'"):
        measure_rates(testbed, [demand(0, 1, 2)], 1.0)


@needs_namespaces
def test_hosts_on_different_rails_meet_where_both_are(name: str, tmp_path: Path) -> None:
    # Host 3 is on the second rail alone, so its first interface is to that one.
    cut = [each for each in rails(100).links if {each.source, each.target} != {"host3", "rail0"}]
    cluster = dataclasses.replace(rails(100), links=tuple(cut))
    with apply.built(cluster, name, folder=tmp_path) as testbed:
        assert [len(each.interfaces) for each in testbed.hosts] == [2, 2, 2, 1]
        flows = [demand(0, 3, 1), demand(0, 2, 0), demand(3, 1, 0)]
        rates = closest(lambda: measured_mbit(testbed, flows), [100.0] * 3)
        with pytest.raises(InputError, match="eth0 of host 'host0' does not lead to host 'host3'"):
            measure_rates(testbed, [demand(0, 3, 0)], 1.0)
    assert rates == pytest.approx([100.0] * 3, rel=0.05)


@needs_namespaces
def test_a_testbed_that_is_not_up_is_not_measured(name: str) -> None:
    with pytest.raises(InputError, match=r"a transfer could not be measured \(Cannot open network"):
        measure_rates(plan_testbed(rails(100), name), [demand(0, 1)], 1.0)
