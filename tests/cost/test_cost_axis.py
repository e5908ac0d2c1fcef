"""Collectives of several groups at once against those of one, and against sums by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.build import fully_connected, hierarchical, multi_rail
from meshwright.cluster.catalogue import find_cluster
from meshwright.cost.axis import axis_model
from meshwright.cost.collective import Collective, collective_model
from meshwright.errors import InputError

COLLECTIVES = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.SHIFT,
)
SIZES = (1.0, 1e4, 1e6, 1e9)
NAMES = ("h100-spineleaf-64-o4", "tpuv4-fattree-64", "dgx1-x4", "nvlink50-eth20-x4", "tpuv4-4x4")


def two_hosts(devices_per_host: Any = 4) -> Any:
    """Hosts with a card of 10 GB/s for all their devices, which are joined at 100."""
    return hierarchical(
        devices_per_host=devices_per_host,
        branching=[2],
        device_bytes_per_second=1e11,
        host_bytes_per_second=1e10,
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_one_group_costs_what_a_collective_does(data: Any) -> None:
    cluster = find_cluster(data.draw(st.sampled_from(NAMES)))
    collective = data.draw(st.sampled_from(COLLECTIVES))
    numbers = st.integers(0, cluster.num_devices - 1)
    group = data.draw(st.lists(numbers, min_size=1, max_size=9, unique=True))
    model = axis_model(cluster, collective, [group])
    alone = collective_model(cluster, collective, group)
    for size in SIZES:
        assert model.cost(size).seconds == alone.cost(size).seconds


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_more_groups_at_once_are_never_faster(data: Any) -> None:
    """All lines of the first group are lines of several, with more bytes on the same links."""
    cluster = find_cluster(data.draw(st.sampled_from(NAMES)))
    collective = data.draw(st.sampled_from(COLLECTIVES))
    count, size = data.draw(st.integers(2, 3)), data.draw(st.integers(2, 4))
    count = min(count, cluster.num_devices // size)
    order = data.draw(st.permutations(range(cluster.num_devices)))[: count * size]
    groups = np.array(order).reshape(count, size).tolist()
    together = axis_model(cluster, collective, groups)
    for each in groups:
        alone = axis_model(cluster, collective, [each])
        for message in SIZES:
            assert together.cost(message).seconds >= alone.cost(message).seconds * (1 - 1e-9)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_groups_that_share_no_link_cost_as_one(collective: Any) -> None:
    cluster = two_hosts()
    together = axis_model(cluster, collective, [(0, 1, 2, 3), (4, 5, 6, 7)])
    for size in SIZES:
        alone = axis_model(cluster, collective, [(0, 1, 2, 3)]).cost(size).seconds
        assert together.cost(size).seconds == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_rings_through_one_card_have_a_part_of_it_each(count: Any) -> None:
    # Pairs of devices of two hosts: half of 1e9 bytes to the other, then half back; k pairs send
    # k times that through a card of 1e10 bytes a second.
    groups = [(k, 4 + k) for k in range(count)]
    model = axis_model(two_hosts(), Collective.ALL_REDUCE, groups)
    cost = model.cost(1e9)
    assert cost.seconds - cost.latency_seconds == pytest.approx(count * 1e9 / 1e10, rel=1e-9)


def test_rails_of_their_own_are_not_shared() -> None:
    cluster = multi_rail(num_hosts=2, devices_per_host=4, num_rails=4)
    one = axis_model(cluster, Collective.ALL_GATHER, [(0, 4)])
    four = axis_model(cluster, Collective.ALL_GATHER, [(k, 4 + k) for k in range(4)])
    assert four.cost(1e9).seconds == pytest.approx(one.cost(1e9).seconds, rel=1e-9)


def test_groups_on_uneven_hosts_cost_at_least_the_worst_alone() -> None:
    # Of three groups one has three devices on a host, one two and one one.
    cluster = two_hosts()
    groups = [(0, 1, 2, 4), (3, 5, 6, 7)]
    together = axis_model(cluster, Collective.ALL_REDUCE, groups)
    for size in SIZES:
        worst = max(
            axis_model(cluster, Collective.ALL_REDUCE, [each]).cost(size).seconds for each in groups
        )
        assert worst * (1 - 1e-9) <= together.cost(size).seconds <= 2 * worst * (1 + 1e-9)


def test_the_order_of_groups_does_not_matter() -> None:
    cluster = find_cluster("h100-spineleaf-64-o4")
    groups = [(k, 8 + k, 16 + k, 24 + k) for k in range(8)]
    first = axis_model(cluster, Collective.ALL_REDUCE, groups)
    second = axis_model(cluster, Collective.ALL_REDUCE, groups[::-1])
    for size in SIZES:
        assert first.cost(size).seconds == pytest.approx(second.cost(size).seconds, rel=1e-12)


def test_groups_of_one_device_cost_nothing() -> None:
    cluster = fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e10)
    model = axis_model(cluster, Collective.ALL_REDUCE, [(0,), (1,), (2,)])
    assert model.cost(1e9).seconds == 0.0


def test_groups_of_two_sizes_are_refused() -> None:
    cluster = fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e10)
    with pytest.raises(InputError, match=r"^axis: groups must be of one size, got \[1, 2\]$"):
        axis_model(cluster, Collective.ALL_REDUCE, [(0, 1), (2,)])
