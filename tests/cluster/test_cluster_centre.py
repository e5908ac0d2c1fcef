"""Data-centre networks: bandwidths and latencies worked out by hand, and how long they take."""

from collections import Counter

import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError


def test_a_spine_leaf_has_nvlink_in_a_host_and_a_nic_to_every_other_device() -> None:
    # 17 hosts: the last is alone on its leaf. Hops cost 1.9 us by NVLink, 4 us by network, and
    # 0.3 us more for each of leaf - spine and spine - leaf.
    cluster = find_cluster("h100-spineleaf-136")
    assert cluster.bandwidth[0, 7] == 450e9
    assert cluster.bandwidth[0, 8] == cluster.bandwidth[0, 135] == 50e9
    assert cluster.latency[0, 7] == pytest.approx(1.9e-6)
    assert cluster.latency[0, 8] == pytest.approx(4e-6)
    assert cluster.latency[0, 135] == pytest.approx(4.6e-6)
    assert cluster.routing.hops[0, [7, 8, 135]].tolist() == [2, 2, 4]
    assert Counter(name.rstrip("0123456789") for name in cluster.switches) == {
        "spine": 32, "leaf": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "num_spines", "gigabytes"),
    [
        # 128 ports of 50 GB/s downwards; upwards 64 ports, two for each of 32 spines, ...
        ("h100-spineleaf-256", 32, 100.0),
        ("h100-spineleaf-256-o1", 32, 200.0),
        # ... 16 ports, one a spine, and a quarter of a port on the only spine.
        ("h100-spineleaf-256-o8", 16, 50.0),
        ("h100-spineleaf-256-o512", 1, 12.5),
    ],
)
def test_a_leaf_carries_its_hosts_rate_over_the_oversubscription(
    name: str, num_spines: int, gigabytes: float
) -> None:
    cluster = find_cluster(name)
    up = [link for link in cluster.links if link.source == "leaf0" and "spine" in link.target]
    assert len(up) == num_spines
    assert {link.bytes_per_second for link in up} == {gigabytes * 1e9}
    assert cluster.bandwidth[0, 255] == min(gigabytes, 50.0) * 1e9


def test_one_leaf_needs_no_spine_and_one_host_no_leaf() -> None:
    assert find_cluster("h100-spineleaf-128").switches == ("leaf0",)
    assert find_cluster("h100-spineleaf-8").switches == ()


def test_a_fat_tree_of_tpus_has_three_levels_of_links() -> None:
    # Nine hosts: racks of four, four and one. 900 GB/s in a host; the host's 100 GB/s beyond it.
    cluster = find_cluster("tpuv4-fattree-72")
    assert cluster.bandwidth[0, [7, 8, 31, 32, 71]].tolist() == [900e9, *[100e9] * 4]
    rates = Counter((link.source[:4], link.bytes_per_second / 1e9) for link in cluster.links)
    assert rates["rack", 400.0] == 3  # upwards, also from the rack with one host
    assert rates["rack", 100.0] == 9
    assert rates["core", 400.0] == 3
    # 1.9 us in a host; half of that at both ends and 4 us between hosts; 0.3 us twice by the core.
    latency = cluster.latency[0, [7, 8, 71]].tolist()
    assert latency == pytest.approx([1.9e-6, 5.9e-6, 6.5e-6])


def test_a_fat_tree_of_tpus_has_sixty_four_gigabytes_a_device() -> None:
    cluster = find_cluster("tpuv4-fattree-32")
    assert set(cluster.memory_bytes.tolist()) == {64e9}
    kind = cluster.types[cluster.devices[0].type]
    assert kind.peak_flops_per_second("bf16") == 275e12
    assert kind.memory_bytes_per_second == 1200e9
    assert cluster.switches == ("rack0",)


@pytest.mark.parametrize("name", ["h100-spineleaf-12", "tpuv4-fattree-60"])
def test_devices_come_by_the_host(name: str) -> None:
    with pytest.raises(InputError, match="num_devices must be a multiple of 8, the devices of a"):
        find_cluster(name)


@pytest.mark.parametrize("name", ["h100-spineleaf-16384", "tpuv4-fattree-16384", "h100-x8x2048"])
def test_sixteen_thousand_devices_are_built(name: str) -> None:
    assert find_cluster(name).num_devices == 16384
