"""Which rank runs which device, and whole samples of fractions of a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="execution needs the torch extra")

import itertools

from meshwright.cluster.catalogue import load_cluster
from meshwright.errors import InputError
from meshwright.execute.rows import Rows, divide_batch
from meshwright.execute.seat import assign_ranks
from small import connected


def test_hosts_that_the_cluster_knows_get_their_own_devices() -> None:
    # d0 is on h0, d1 on h1, d2 on h2; torchrun numbered them the other way round.
    assert assign_ranks(connected(3), (0, 1, 2), ["h2", "h0", "h1"]) == (1, 2, 0)


def test_unknown_hosts_stand_for_the_plans_in_the_order_of_their_ranks() -> None:
    assert assign_ranks(connected(4), (1, 3), ["b", "a"]) == (-1, 0, -1, 1)


def test_one_machine_may_play_all_hosts() -> None:
    assert assign_ranks(connected(3), (0, 2), ["here", "here"]) == (0, -1, 1)


def test_devices_of_a_host_go_to_its_ranks_in_order() -> None:
    cluster = load_cluster("dgx1-x4")
    devices = (0, 1, 8, 9)
    rank_of = assign_ranks(cluster, devices, ["x", "y", "x", "y"])
    assert [rank_of[device] for device in devices] == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (["h0"], "uses 2 devices and needs as many ranks, got 1"),
        (["a", "b"], "devices are on 1 hosts, the ranks on 2"),
    ],
)
def test_a_world_that_does_not_fit_is_refused(hosts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign_ranks(load_cluster("cpu-x2"), (0, 1), hosts)


def test_a_host_with_too_few_ranks_is_named() -> None:
    cluster = load_cluster("dgx1-x4")
    with pytest.raises(InputError, match=r"host x stands for .* must have 2 ranks, has 1"):
        assign_ranks(cluster, (0, 1, 8), ["x", "y", "y"])


@given(
    samples=st.integers(1, 64),
    cuts=st.lists(st.floats(0, 1), max_size=5),
)
def test_parts_of_a_batch_are_whole_samples_that_add_up(samples: int, cuts: list[float]) -> None:
    bounds = [0.0, *sorted(cuts), 1.0]
    rows = Rows(samples=samples, microbatches=1)
    counts = [rows.count(a, b) for a, b in itertools.pairwise(bounds)]
    assert min(counts) >= 0
    assert sum(counts) == samples


def test_a_batch_is_cut_into_equal_microbatches() -> None:
    assert divide_batch("g", 12, 4) == Rows(samples=3, microbatches=4)
    with pytest.raises(InputError, match="12 samples cannot be cut into 5 equal microbatches"):
        divide_batch("g", 12, 5)
