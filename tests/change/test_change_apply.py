"""Each kind of change makes of a cluster what one works out by hand, and nothing else."""

import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.change.apply import change_cluster, change_request, in_order
from meshwright.change.kind import ClusterChange
from meshwright.change.read import read_change, read_changes
from meshwright.cluster.catalogue import find_cluster, load_cluster
from meshwright.cluster.cluster import Cluster, CollectiveTable
from meshwright.cluster.file import decode_cluster
from meshwright.errors import InputError
from meshwright.plan.request import Request
from meshwright.source import load_graph

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from cluster_strategies import small_clusters

POD, DGX, MIXED = (find_cluster(name) for name in ("h100-x4x2", "dgx1-x2", "tag-testbed"))
TREE = find_cluster("hierarchical-2x2x2-o2")
RACKS = decode_cluster(
    b"""{"hosts": [{"count": 3, "devices": "2 x t4", "nics": "2 x 25 Gb/s"}]}""", "racks"
)


def changed(cluster: Cluster, option: str, text: str) -> Cluster:
    change = read_change(option, text)
    assert isinstance(change, ClusterChange)
    return change_cluster(cluster, change)


def rates(cluster: Cluster) -> dict[tuple[str, str], float]:
    return {(each.source, each.target): each.bytes_per_second for each in cluster.links}


def grown(before: Cluster, after: Cluster) -> dict[tuple[str, str], float]:
    """By what factor links have changed, of those that have."""
    old, new = rates(before), rates(after)
    assert old.keys() == new.keys()
    return {ends: new[ends] / old[ends] for ends in old if new[ends] != old[ends]}


@pytest.mark.parametrize(
    ("cluster", "word", "ends"),
    [
        # In a DGX-1 the switch joins both hosts.
        (DGX, "switch", {("host0", "switch"), ("host1", "switch")}),
        (DGX, "host1", {("host1", "switch")}),
        (DGX, "host0-switch", {("host0", "switch")}),
        (DGX, "nic", {("host0", "switch"), ("host1", "switch")}),
        (DGX, "level2", {("host0", "switch"), ("host1", "switch")}),
        (DGX, "host*-switch", {("host0", "switch"), ("host1", "switch")}),
        # A device has links to those with which it shares NVLinks, and to its host.
        (DGX, "host0.0-host0.1", {("host0.0", "host0.1")}),
        (
            DGX, "host0.0",
            {("host0.0", f"host0.{k}") for k in (1, 2, 3, 4)} | {("host0.0", "host0")},
        ),
        # The way over PCIe, not the NVLinks to others of the host.
        (DGX, "host0.2-host0", {("host0.2", "host0")}),
        # A leaf of a pod joins equal ranks, and the spines.
        (
            POD, "unit0-leaf1",
            {("host0.1", "unit0-leaf1"), ("host1.1", "unit0-leaf1"),
             ("spine0", "unit0-leaf1"), ("spine1", "unit0-leaf1")},
        ),
        (POD, "host0", {(f"host0.{k}", f"unit0-leaf{k}") for k in range(4)}),
        (POD, "host0-unit0-leaf1", {("host0.1", "unit0-leaf1")}),
        (POD, "nvlink", {(f"host{h}.{k}", f"host{h}") for h in (0, 1) for k in range(4)}),
        (POD, "inside", {(f"host{h}.{k}", f"host{h}") for h in (0, 1) for k in range(4)}),
        (POD, "network", {(f"host{h}.{k}", f"unit0-leaf{k}") for h in (0, 1) for k in range(4)}),
        (POD, "level3", {(f"spine{s}", f"unit0-leaf{k}") for s in (0, 1) for k in range(4)}),
        (TREE, "level3", {(f"tier1-{k}", "tier2-0") for k in (0, 1)}),
        # Both links of a card carry what it carries.
        (
            RACKS, "host2",
            {("host2", "host2.nic0"), ("host2.nic0", "switch"),
             ("host2", "host2.nic1"), ("host2.nic1", "switch")},
        ),
        (
            RACKS, "host2-switch",
            {("host2", "host2.nic0"), ("host2.nic0", "switch"),
             ("host2", "host2.nic1"), ("host2.nic1", "switch")},
        ),
        (RACKS, "host2.nic1-switch", {("host2", "host2.nic1"), ("host2.nic1", "switch")}),
        (RACKS, "host2-host2.nic1", {("host2", "host2.nic1")}),
    ],
)  # fmt: skip
def test_a_word_for_links_means_these_both_ways(
    cluster: Cluster, word: str, ends: set[tuple[str, str]]
) -> None:
    found = grown(cluster, changed(cluster, "link", f"{word}=2x"))
    assert found == dict.fromkeys({*ends, *((b, a) for a, b in ends)}, 2.0)


def test_an_arrow_means_one_direction() -> None:
    after = changed(DGX, "link", "host0->switch=14GB/s")
    assert grown(DGX, after) == {("host0", "switch"): 10.0}


def test_nics_are_set_to_a_rate() -> None:
    # 800 Gbit/s are 100 GB/s; a pod's are 50.
    assert set(grown(POD, changed(POD, "nic", "800Gb/s")).values()) == {2.0}


def test_latencies_change_and_nothing_else() -> None:
    after = changed(POD, "latency", "nic=0.5x")
    assert rates(after) == rates(POD)
    before = {link.latency_seconds for link in POD.links if link.kind == "network"}
    assert {link.latency_seconds for link in after.links if link.kind == "network"} == {
        each / 2 for each in before
    }
    assert [link for link in after.links if link.kind != "network"] == [
        link for link in POD.links if link.kind != "network"
    ]


def test_rates_by_hops_change_as_a_whole() -> None:
    mesh = find_cluster("mesh2d-2x2")
    after = changed(mesh, "link", "*=2x")
    assert after.hop_bytes_per_second == tuple(2 * each for each in mesh.hop_bytes_per_second)
    assert after.bandwidth[0, 1] == 2 * mesh.bandwidth[0, 1]
    with pytest.raises(InputError, match="must be all links by a factor"):
        changed(mesh, "link", "host0.0=2x")


def test_measured_collectives_of_changed_links_are_left_out() -> None:
    table = CollectiveTable(
        collective="all_reduce", device_type="v100-32", num_devices=2,
        sizes_bytes=(1.0, 2.0), seconds=(1.0, 2.0),
    )  # fmt: skip
    measured = replace(DGX, tables=(table,))
    assert changed(measured, "nic", "2x").tables == (table,)
    assert changed(measured, "link", "inside=2x").tables == ()
    assert changed(measured, "latency", "host0.0=1us").tables == ()


def test_memory_is_of_the_type_and_of_its_devices() -> None:
    after = changed(MIXED, "memory", "p100=20GB")
    assert after.types["p100"].memory_bytes == 20e9
    assert {each.memory_bytes for each in after.devices if each.type == "p100"} == {20e9}
    others = [each for each in MIXED.devices if each.type != "p100"]
    assert [each for each in after.devices if each.type != "p100"] == others
    doubled = changed(MIXED, "memory", "2x")
    assert doubled.memory_bytes.tolist() == (2 * MIXED.memory_bytes).tolist()


def test_a_speed_keeps_the_proportion_of_precisions() -> None:
    # 989.5 TFLOP/s in bf16 to 1979 is a factor of two, also of fp8 and fp32.
    after = changed(POD, "speed", "h100=1979TFLOP/s").types["h100"]
    before = POD.types["h100"].flops_per_second
    assert dict(after.flops_per_second) == {name: 2 * rate for name, rate in before.items()}
    assert changed(POD, "speed", "2x").types["h100"] == after


def test_a_memory_rate_is_of_the_type() -> None:
    after = changed(POD, "memory_rate", "h100=4.8TB/s")
    assert after.types["h100"].memory_bytes_per_second == 4.8e12
    assert after.devices == POD.devices


def test_a_new_type_comes_with_its_memory_and_links() -> None:
    after = changed(POD, "type", "h100=b200")
    assert after.type_names == ("b200",)
    assert list(after.types) == ["b200"]
    assert set(after.memory_bytes) == {after.types["b200"].memory_bytes}
    # NVLink 5 has 900 GB/s where NVLink 4 has 450; the network stays.
    inside = {("host0.0", "host0"), ("host0", "host0.0")}
    assert {grown(POD, after)[ends] for ends in inside} == {2.0}
    assert {each.kind for each in after.links} == {"nvlink5", "network", ""}
    assert len(grown(POD, after)) == 2 * POD.num_devices


def test_a_link_that_is_not_as_sold_stays() -> None:
    slower = changed(POD, "link", "host0.0-host0=100GB/s")
    after = changed(slower, "type", "h100=b200")
    assert rates(after)["host0.0", "host0"] == 100e9
    assert rates(after)["host0.1", "host0"] == 900e9


def test_pcie_stays_pcie() -> None:
    # PCIe 3 of a T4, 11 GB/s, and 4 of an L4, 22 GB/s.
    after = changed(find_cluster("t4-x2"), "type", "t4=l4")
    assert {(each.bytes_per_second, each.kind) for each in after.links} == {(22e9, "pcie")}


@pytest.mark.parametrize(
    ("cluster", "option", "text", "message"),
    [
        (POD, "link", "leaf9=2x", "link 'leaf9': no node, kind or level of that name"),
        (POD, "link", "unit0-lef1=2x", "did you mean unit0-leaf"),
        (POD, "link", "level7=2x", "link 'level7': the cluster has no such link"),
        (POD, "link", "host0-host1=2x", "link 'host0-host1': the cluster has no such link"),
        (POD, "link", "nic=1e99GB/s", "bytes_per_second must be at most"),
        (POD, "latency", "leaf9=2x", "latency 'leaf9': no node"),
        (POD, "memory", "a100-80=2x", "memory: no device of type 'a100-80' in the cluster"),
        (
            POD,
            "speed",
            "h10=2x",
            "speed: no device of type 'h10' in the cluster; did you mean h100",
        ),
        (POD, "type", "h100=h20", "unknown device type 'h20'; did you mean h200"),
        (POD, "type", "a100-80=h200", "type: no device of type 'a100-80'"),
        (POD, "without", "host9", "without: no host 'host9'; did you mean host"),
        (POD, "without", "*", "without: must leave a host, got all 2"),
        (POD, "hosts", "-2", "hosts: must be a whole number from 1, got 0 in place of 2"),
        (POD, "devices", "+3", "devices: must be whole hosts, multiples of 4, got 11"),
        (POD, "devices", "5", "devices: must be whole hosts (of 4 each), got 5 of 8"),
        (POD, "devices", "20000", "devices: must be at most 16,384, got 20,000"),
        (POD, "devices", "0.3x", "devices: must be a whole number from 1, got 2.4 in place of 8"),
        (MIXED, "hosts", "+1", "must say which one a new one is like, such as --hosts p100-host1"),
        (MIXED, "devices", "+4", "devices: hosts differ; must say which one a new one is like"),
        (MIXED, "hosts", "p100-host0=-3", "must be at most the 2 hosts like p100-host0, got -3"),
        (MIXED, "hosts", "a100=+1", "hosts: no host 'a100'"),
        (MIXED, "devices", "p100-host0=+3", "must be whole hosts, multiples of 2, got 3"),
        (find_cluster("cpu-x2"), "hosts", "+1", "the cluster has no network between hosts"),
        (find_cluster("mesh2d-2x3"), "hosts", "+1", "cannot be added to a mesh or torus"),
        (find_cluster("uniform-4"), "hosts", "+1", "its links to other hosts differ"),
    ],
)
def test_what_a_cluster_does_not_have_is_refused(
    cluster: Cluster, option: str, text: str, message: str
) -> None:
    with pytest.raises(InputError) as found:
        changed(cluster, option, text)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "option", "text", "after"),
    [
        ("h100-x8", "devices", "+8", "h100-x8x2"),
        ("h100-x8", "devices", "4", "h100-x4"),
        ("h100-x8x2", "hosts", "+1", "h100-x8x3"),
        ("h100-x8x2", "devices", "x2", "h100-x8x4"),
        ("h100-x8x40", "hosts", "-1", "h100-x8x39"),
        ("h100-spineleaf-64", "devices", "256", "h100-spineleaf-256"),
        ("h100-spineleaf-64-o4", "devices", "128", "h100-spineleaf-128-o4"),
        ("tpuv4-fattree-64", "hosts", "+1", "tpuv4-fattree-72"),
        ("dgx1", "hosts", "+1", "dgx1-x2"),
        ("titan-v-2x4", "hosts", "x2", "titan-v-4x4"),
        ("nvlink50-eth20-x4", "devices", "-2", "nvlink50-eth20-x3"),
        ("multi-rail-2x4x3", "hosts", "3", "multi-rail-3x4x3"),
        ("rail10-4x2", "hosts", "+1", "rail10-5x2"),
        ("spine-leaf-2x2x2x2-o2", "devices", "x2", "spine-leaf-2x4x2x2-o2"),
        ("hierarchical-2x2x2-o2", "hosts", "x2", "hierarchical-2x2x4-o2"),
        ("tpuv4-4x4x4", "devices", "x2", "tpuv4-4x4x8"),
        ("tpuv4-4x4x8", "devices", "x2", "tpuv4-4x8x8"),
        ("tpuv4-4x8x8", "devices", "0.5x", "tpuv4-4x4x8"),
        ("mesh2d-4x4", "devices", "8", "mesh2d-2x4"),
    ],
)
def test_a_cluster_of_the_catalogue_becomes_the_one_of_that_size(
    name: str, option: str, text: str, after: str
) -> None:
    found, expected = changed(find_cluster(name), option, text), find_cluster(after)
    for each in fields(expected):
        assert getattr(found, each.name) == getattr(expected, each.name), each.name


def test_hosts_come_before_types_and_links_whatever_the_order() -> None:
    given = {"link": "nic=2x", "type": "h100=b200", "memory": "b200=1TB", "hosts": "+1"}
    changes = read_changes(given)
    names = [type(each).__name__ for each in in_order(changes)]
    assert names == ["DeviceCount", "TypeSwap", "DeviceFigure", "LinkRate"]
    request = Request(graph=load_graph("mlp"), cluster=POD)
    one = change_request(request, changes).cluster
    other = change_request(request, changes[::-1]).cluster
    assert (one.devices, one.links, one.types) == (other.devices, other.links, other.types)
    assert len(one.hosts) == 3
    assert set(one.memory_bytes) == {1e12}
    assert {each.bytes_per_second for each in one.links if each.kind == "network"} == {100e9}


def test_a_changed_cluster_of_the_catalogue_is_not_built_anew() -> None:
    wider = changed(DGX, "link", "switch=2x")
    after = changed(wider, "hosts", "+1")
    assert after.hosts == ("host0", "host1", "host2")
    # The new one is a copy of the last: as wide.
    assert rates(after)["host2", "switch"] == rates(wider)["host1", "switch"]


def test_the_batch_is_the_graphs() -> None:
    request = Request(graph=load_graph("mlp"), cluster=DGX, method="data", seed=5)
    after = change_request(request, read_changes({"batch": "2x"}))
    assert after.graph.batch == 2 * request.graph.batch
    assert after.graph.flops.sum() > request.graph.flops.sum()
    assert (after.cluster, after.method, after.seed) == (DGX, "data", 5)


def test_what_is_no_change_is_refused() -> None:
    request = Request(graph=load_graph("mlp"), cluster=DGX)
    with pytest.raises(InputError, match=r"^changes\[0\]: must be a change"):
        change_request(request, ["leaf0=2x"])  # type: ignore[list-item]


@given(small_clusters(), st.sampled_from(["link", "latency", "memory", "speed", "memory_rate"]))
def test_twice_and_half_is_as_before(cluster: Cluster, option: str) -> None:
    prefix = "*=" if option == "link" else ""
    there = changed(cluster, option, f"{prefix}2x")
    back = changed(there, option, f"{prefix}0.5x")
    for each in fields(cluster):
        assert getattr(back, each.name) == getattr(cluster, each.name), each.name


@given(small_clusters())
def test_every_link_is_of_one_level(cluster: Cluster) -> None:
    total = 0
    for level in range(1, 8):
        try:
            after = changed(cluster, "latency", f"level{level}=7s")
        except InputError:
            continue
        total += sum(link.latency_seconds == 7 for link in after.links)
    assert total == len(cluster.links)


def test_a_cluster_of_the_catalogue_is_known_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    POD.save(path)
    found, expected = changed(load_cluster(path), "hosts", "+1"), find_cluster("h100-x4x3")
    assert (found.name, found.links) == (expected.name, expected.links)


def test_a_files_own_name_is_no_promise() -> None:
    named = replace(DGX, name="h100-x99")
    assert changed(named, "devices", "8").hosts == ("host0",)
    assert changed(named, "hosts", "+1").hosts == ("host0", "host1", "host2")


def test_files_survive_a_change(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    after = changed(MIXED, "hosts", "p100-host0=+1")
    after.save(path)
    again = load_cluster(path)
    assert (again.devices, again.links) == (after.devices, after.links)
