"""Collectives by hand. `host_cluster` has 100 bytes a second and 0.5 s on every device link."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, CollectiveTable, Device, DeviceType, Link
from meshwright.cost.collective import (
    Algorithm,
    Collective,
    collective_cost,
    collective_model,
    find_table,
)
from meshwright.cost.ring import order_hosts
from meshwright.errors import InputError

CHIP = DeviceType(
    name="chip", flops_per_second={"fp32": 1e12}, memory_bytes=1e9, memory_bytes_per_second=1e9
)


def both_ways(one: str, other: str, rate: float, latency: float) -> tuple[Link, Link]:
    return (
        Link(source=one, target=other, bytes_per_second=rate, latency_seconds=latency),
        Link(source=other, target=one, bytes_per_second=rate, latency_seconds=latency),
    )


def host_cluster(sizes: Sequence[int], nic: float = 10.0, **more: Any) -> Cluster:
    """Hosts of so many devices; each host one link of 1 s to one switch."""
    devices: list[Device] = []
    links: list[Link] = []
    for host, size in enumerate(sizes):
        for _ in range(size):
            name = f"d{len(devices)}"
            devices.append(Device(name=name, type="chip", host=f"h{host}", memory_bytes=1e9))
            links += both_ways(name, f"h{host}", 100.0, 0.5)
        if len(sizes) > 1:
            links += both_ways(f"h{host}", "s", nic, 1.0)
    return Cluster(
        name="hosts",
        types={"chip": CHIP},
        devices=tuple(devices),
        switches=("s",) if len(sizes) > 1 else (),
        links=tuple(links),
        **more,
    )


def loads(cluster: Cluster, cost: Any) -> dict[str, float]:
    """Bytes by link, as `source>target`."""
    return {
        f"{cluster.links[link].source}>{cluster.links[link].target}": share * cost.amount_bytes
        for link, share in zip(cost.links, cost.link_share, strict=True)
    }


def test_ring_of_four_takes_six_rounds_of_a_quarter() -> None:
    cluster = host_cluster([4])
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 400, Algorithm.RING)
    # A route is two links of 0.5 s; a round 1 s + 100 bytes / 100 bytes a second.
    assert cost.seconds == pytest.approx(6 * (1 + 1))
    assert cost.latency_seconds == pytest.approx(6)
    assert cost.amount_bytes == pytest.approx(600)
    assert cost.links.tolist() == list(range(8))
    assert cost.link_share == pytest.approx(np.ones(8))


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_gathering_and_scattering_take_half_an_all_reduce(collective: Collective) -> None:
    cost = collective_cost(host_cluster([4]), collective, range(4), 400, Algorithm.RING)
    assert cost.seconds == pytest.approx(3 * (1 + 1))
    assert cost.amount_bytes == pytest.approx(300)


def test_tree_of_four_carries_twice_the_message_through_inner_devices() -> None:
    # NCCL's trees of four: 1 and 3 under 2 under 0; and mirrored 2 and 0 under 1 under 3. Device
    # 1 sends half a message up in the first, two down and one up in the second: 4 x 200 bytes.
    # Device 0 sends one down in the first, one up in the second: 2 x 200.
    cluster = host_cluster([4])
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 400, Algorithm.TREE)
    carried = loads(cluster, cost)
    assert [carried[f"d{i}>h0"] for i in range(4)] == pytest.approx([400, 800, 800, 400])
    assert [carried[f"h0>d{i}"] for i in range(4)] == pytest.approx([400, 800, 800, 400])
    # Two levels up and two down, 1 s each; 800 bytes at 100 bytes a second.
    assert cost.latency_seconds == pytest.approx(4)
    assert cost.seconds == pytest.approx(4 + 8)


def test_tree_latency_grows_with_the_logarithm() -> None:
    cost = collective_cost(host_cluster([32]), Collective.ALL_REDUCE, range(32), 0, Algorithm.TREE)
    assert cost.seconds == pytest.approx(2 * 5)  # five levels up, five down


def test_halving_doubling_takes_two_log_p_rounds() -> None:
    cluster = host_cluster([8])
    method = Algorithm.HALVING_DOUBLING
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(8), 800, method)
    # Halves, quarters, eighths, twice: 2 (400 + 200 + 100) bytes at 100 bytes a second.
    assert cost.latency_seconds == pytest.approx(2 * 3)
    assert cost.seconds == pytest.approx(6 + 14)


def test_three_devices_fold_one_into_a_partner() -> None:
    cluster = host_cluster([3])
    method = Algorithm.HALVING_DOUBLING
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(3), 400, method)
    # 1 -> 0 all; 0 <-> 2 halves, twice; 0 -> 1 all: 400 + 2 x 200 + 400 bytes in four rounds.
    assert cost.seconds == pytest.approx(4 + 12)
    assert loads(cluster, cost) == pytest.approx(
        {
            "d0>h0": 800,
            "h0>d0": 800,
            "d1>h0": 400,
            "h0>d1": 400,
            "d2>h0": 400,
            "h0>d2": 400,
        }
    )


def test_hierarchical_beats_a_flat_ring_over_a_slow_nic() -> None:
    cluster = host_cluster([2, 2])
    flat = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 400, Algorithm.RING)
    nested = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 400, Algorithm.HIERARCHICAL)
    # Flat: six rounds of 100 bytes over the NIC: 3 s of latency (0.5 + 1 + 1 + 0.5) + 10 s.
    assert flat.seconds == pytest.approx(6 * 13)
    # Nested: 200 bytes within a host (1 + 2 s) twice; between hosts two rounds in which both
    # local ranks send 100 bytes through one NIC: 3 + 200/10 s.
    assert nested.seconds == pytest.approx(2 * 3 + 2 * 23)
    assert nested.latency_seconds == pytest.approx(2 * 1 + 2 * 3)


def test_local_ranks_share_the_nic() -> None:
    cluster = host_cluster([2, 2])
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 400, Algorithm.HIERARCHICAL)
    carried = loads(cluster, cost)
    assert carried["h0>s"] == pytest.approx(400)  # 2 ranks x 2 rounds x 100 bytes
    assert carried["d0>h0"] == pytest.approx(2 * 200 + 2 * 100)
    assert cost.amount_bytes == pytest.approx(600)


def test_channels_use_every_card_of_a_host() -> None:
    cluster = find_cluster("h100-x8x4").plain
    cost = collective_model(cluster, Collective.ALL_REDUCE, range(32), Algorithm.CHANNELS)
    # Each of 8 rings carries an eighth; a card of 50 GB/s sends it 2 x 31 times in 32 parts.
    assert cost.lines[0].seconds_per_byte == pytest.approx(2 * 31 / 32 / 8 / 50e9)
    flat = collective_model(cluster, Collective.ALL_REDUCE, range(32), Algorithm.RING)
    assert cost.lines[0].latency_seconds <= flat.lines[0].latency_seconds


def test_channels_through_one_card_are_as_fast_as_a_ring() -> None:
    cluster = host_cluster([2, 2])
    ring, channels = (
        collective_model(cluster, Collective.ALL_REDUCE, range(4), each).lines[0]
        for each in (Algorithm.RING, Algorithm.CHANNELS)
    )
    assert channels.seconds_per_byte == pytest.approx(ring.seconds_per_byte)


def test_tree_enters_each_host_once() -> None:
    cluster = host_cluster([2, 2, 2, 2])
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(8), 400, Algorithm.TREE)
    carried = loads(cluster, cost)
    # Hosts form the trees of four above, so that a NIC carries what a device did there.
    assert [carried[f"h{i}>s"] for i in range(4)] == pytest.approx([400, 800, 800, 400])


def test_all_to_all_loads_every_device_with_what_it_sends() -> None:
    cluster = host_cluster([2, 2])
    cost = collective_cost(cluster, Collective.ALL_TO_ALL, range(4), 400)
    carried = loads(cluster, cost)
    assert carried["d0>h0"] == pytest.approx(300)
    assert carried["h0>s"] == pytest.approx(2 * 2 * 100)
    assert cost.algorithm is Algorithm.DIRECT
    assert cost.seconds == pytest.approx(3 + 400 / 10)


def test_a_shift_sends_the_message_to_the_next_in_the_order_given() -> None:
    cluster = host_cluster([2, 2])
    cost = collective_cost(cluster, Collective.SHIFT, (0, 2, 1, 3), 400)
    carried = loads(cluster, cost)
    # Every hop of this order is between the hosts: 0 to 2, 2 to 1, 1 to 3 and 3 to 0.
    assert carried["d0>h0"] == pytest.approx(400)
    assert carried["h0>s"] == pytest.approx(2 * 400)
    # In the order of hosts only two of them are: 1 to 2 and 3 to 0.
    near = loads(cluster, collective_cost(cluster, Collective.SHIFT, range(4), 400))
    assert near["h0>s"] == pytest.approx(400)


def test_broadcast_moves_the_message_once_along_a_chain() -> None:
    cluster = host_cluster([4])
    cost = collective_cost(cluster, Collective.BROADCAST, [2, 0, 1, 3], 400, Algorithm.RING)
    assert cost.seconds == pytest.approx(3 * 1 + 4)
    carried = loads(cluster, cost)
    assert "h0>d2" not in carried  # the root gets nothing
    assert "d1>h0" not in carried  # the last sends nothing
    assert carried["d2>h0"] == pytest.approx(400)


def test_tree_broadcast_reaches_every_device_with_the_whole_message() -> None:
    cluster = host_cluster([5])
    cost = collective_cost(cluster, Collective.BROADCAST, [3, 0, 1, 2, 4], 400, Algorithm.TREE)
    carried = loads(cluster, cost)
    for device in (0, 1, 2, 4):
        assert carried[f"h0>d{device}"] >= 400 - 1e-9


def test_the_fastest_algorithm_is_chosen_by_size() -> None:
    cluster = host_cluster([8])
    model = collective_model(cluster, Collective.ALL_REDUCE, range(8))
    for size in (0, 1, 1e3, 1e6, 1e12):
        assert model.cost(size).seconds == min(
            collective_cost(cluster, Collective.ALL_REDUCE, range(8), size, line.algorithm).seconds
            for line in model.lines
        )
    # Six rounds of latency in both; ring and halving-doubling move equally much.
    assert model.cost(1e12).algorithm is Algorithm.HALVING_DOUBLING


def test_zero_bytes_cost_latency_and_load_no_link() -> None:
    cost = collective_cost(host_cluster([4]), Collective.ALL_REDUCE, range(4), 0, Algorithm.RING)
    assert cost.seconds == cost.latency_seconds == pytest.approx(6)
    assert cost.amount_bytes == 0
    assert len(cost.links) == len(cost.link_share) == 0


@pytest.mark.parametrize("collective", list(Collective))
def test_one_device_costs_nothing(collective: Collective) -> None:
    cost = collective_cost(host_cluster([4]), collective, [2], 1e9)
    assert (cost.seconds, cost.amount_bytes, len(cost.links)) == (0, 0, 0)


def test_ring_keeps_hosts_together_whatever_the_order_given() -> None:
    cluster = host_cluster([3, 3, 2])
    blocks = order_hosts(cluster, (7, 0, 3, 6, 1, 4, 2, 5))
    assert [sorted(block) for block in blocks] == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("count", [6, 8, 12])
def test_ring_follows_the_wide_links(count: int) -> None:
    """Devices on a hidden cycle of wide links, all other pairs narrow: the ring finds it."""
    hidden = np.random.default_rng(count).permutation(count)
    place = np.argsort(hidden)
    links: list[Link] = []
    for one in range(count):
        for other in range(one):
            is_wide = (place[one] - place[other]) % count in (1, count - 1)
            links += both_ways(f"d{one}", f"d{other}", 100.0 if is_wide else 10.0, 0.0)
    cluster = Cluster(
        name="hidden",
        types={"chip": CHIP},
        devices=tuple(
            Device(name=f"d{i}", type="chip", host="h", memory_bytes=1e9) for i in range(count)
        ),
        links=tuple(links),
    )
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(count), 1e3, Algorithm.RING)
    assert cost.seconds == pytest.approx(2 * (count - 1) / count * 1e3 / 100)


def table(**changes: Any) -> CollectiveTable:
    fields: dict[str, Any] = {
        "collective": "all_reduce",
        "device_type": "chip",
        "num_devices": 2,
        "sizes_bytes": (100.0, 10000.0),
        "seconds": (8.0, 800.0),
    }
    return CollectiveTable(**(fields | changes))


def test_a_table_overrides_formulas_on_one_host_and_that_many_devices() -> None:
    cluster = host_cluster([3, 2], tables=(table(),))
    cost = collective_cost(cluster, Collective.ALL_REDUCE, [0, 2], 1000)
    assert cost.algorithm is Algorithm.TABLE
    assert cost.seconds == pytest.approx(80)  # half-way in logarithms
    assert find_table(cluster, Collective.ALL_REDUCE, [0, 1, 2]) is None
    assert find_table(cluster, Collective.ALL_REDUCE, [0, 3]) is None
    assert find_table(cluster, Collective.ALL_GATHER, [0, 1]) is None
    formula = collective_cost(cluster, Collective.ALL_REDUCE, [0, 2], 1000, Algorithm.RING)
    assert formula.algorithm is Algorithm.RING


def test_a_table_faster_than_the_links_fills_them_and_no_more() -> None:
    cluster = host_cluster([2], tables=(table(seconds=(2.5, 3.0)),))
    cost = collective_cost(cluster, Collective.ALL_REDUCE, [0, 1], 10000)
    # The ring's latency is 2 s, so 1 s is left, in which a link carries 100 bytes.
    assert cost.seconds == pytest.approx(3)
    assert cost.amount_bytes == pytest.approx(100)


def test_a_table_gives_its_floor_for_zero_bytes() -> None:
    cluster = host_cluster([2], tables=(table(),))
    cost = collective_cost(cluster, Collective.ALL_REDUCE, [0, 1], 0)
    assert cost.seconds == cost.latency_seconds == 8.0
    assert len(cost.links) == 0


@pytest.mark.parametrize(
    ("devices", "size", "algorithm", "message"),
    [
        ([], 1.0, None, "at least one device"),
        ([0, 0], 1.0, None, "distinct"),
        ([0, 9], 1.0, None, "from 0 to 3, got 9"),
        ([0, 1], -1.0, None, "not negative"),
        ([0, 1], float("nan"), None, "finite"),
        ([0, 1], 1.0, Algorithm.TABLE, "no table"),
        ([0, 1], 1.0, Algorithm.DIRECT, "no algorithm direct"),
        ([0, 1], 1.0, Algorithm.HIERARCHICAL, "no algorithm hierarchical"),
    ],
)
def test_bad_input_is_named(
    devices: list[int], size: float, algorithm: Algorithm | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        collective_cost(host_cluster([4]), Collective.ALL_REDUCE, devices, size, algorithm)


def test_a_route_narrower_than_its_links_sets_the_pace() -> None:
    # By the hop table two links carry 20 bytes a second, though each alone could carry 100.
    cluster = host_cluster([4], hop_bytes_per_second=(100.0, 20.0))
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(4), 400, Algorithm.RING)
    assert cost.seconds == pytest.approx(6 * (1 + 100 / 20))
    assert cost.amount_bytes == pytest.approx(600)
