"""The short form of cluster files: what hosts and racks become, and what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from meshwright.cluster import build
from meshwright.cluster.builder.draft import (
    NETWORK_SECONDS,
    NVLINK_SECONDS,
    PCIE_SECONDS,
    SWITCH_LINK_SECONDS,
)
from meshwright.cluster.builder.inside import INSIDE, UNKNOWN
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.file import decode_cluster, read_cluster
from meshwright.cluster.form import HostsDocument
from meshwright.errors import InputError
from meshwright.units import parse_seconds

DGX = "hosts: [{count: 4, devices: 8 x h100, nics: 8 x 400 Gb/s}]"


def read(text: str) -> Cluster:
    return decode_cluster(text.encode(), "file.yaml")


def hosts(**fields: Any) -> Cluster:
    return read(yaml.safe_dump({"hosts": [fields]}))


def rate(cluster: Cluster, source: int, target: int) -> float:
    return float(cluster.plain.bandwidth[source, target]) / 1e9


@pytest.mark.parametrize("kind", [name for name in DEVICE_TYPES if not INSIDE[name].has_ring])
@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_one_host_is_the_catalogues(kind: str, count: int) -> None:
    ours, built = hosts(devices=f"{count} x {kind}"), build.one_host(
        device_type=kind, num_devices=count
    )  # fmt: skip
    assert (ours.devices, ours.switches, ours.links) == (built.devices, (), built.links)


def test_types_and_counts_are_read_as_people_write_them() -> None:
    for text in ("8 x H100", "8 X H100", "8*h100", "8 \u00d7 h100", "8xh100"):
        assert hosts(devices=text).devices == hosts(devices="8 x h100").devices


def test_the_long_form_says_the_same() -> None:
    # PCIe of generation 3 moves 11 GB/s in 2.5 us from device to device; 10 Gbit/s are 1.25 GB/s,
    # in 4 us from NIC to NIC.
    pcie = {"bytes_per_second": 11e9, "latency_seconds": 1.25e-6, "kind": "pcie"}
    network = {"bytes_per_second": 1.25e9, "latency_seconds": 2e-6, "kind": "network"}
    long = {
        "format": "meshwright.cluster",
        "version": 1,
        "name": "cluster",
        "devices": [
            {"name": f"host{i}.{j}", "type": "t4", "host": f"host{i}"}
            for i in (0, 1)
            for j in (0, 1)
        ],
        "switches": ["switch"],
        "links": [
            {"source": source, "target": target, "both_ways": True} | rates
            for i in (0, 1)
            for source, target, rates in (
                (f"host{i}.0", f"host{i}", pcie),
                (f"host{i}.1", f"host{i}", pcie),
                (f"host{i}", "switch", network),
            )
        ],
    }  # fmt: skip
    short, expected = hosts(count=2, devices="2 x t4", nics="10 Gb/s"), read(yaml.safe_dump(long))
    for name in ("name", "types", "devices", "switches", "links"):
        assert getattr(short, name) == getattr(expected, name), name


def test_a_saved_short_form_is_the_same_cluster(tmp_path: Path) -> None:
    cluster = read(DGX)
    cluster.save(tmp_path / "long.yaml")
    loaded = read_cluster(tmp_path / "long.yaml")
    for name in ("name", "types", "devices", "switches", "links"):
        assert getattr(loaded, name) == getattr(cluster, name), name
    (tmp_path / "short.yaml").write_text(DGX)
    with pytest.raises(InputError, match="short form; read it with meshwright"):
        Cluster.load(tmp_path / "short.yaml")


def test_hosts_with_a_nic_a_device_are_the_catalogues() -> None:
    ours, built = read(DGX), build.h100_spine_leaf(num_devices=32)
    assert ours.devices == built.devices
    np.testing.assert_array_equal(ours.plain.bandwidth, built.bandwidth)
    np.testing.assert_array_equal(ours.plain.latency, built.latency)


def test_bits_are_bits_and_bytes_are_bytes() -> None:
    bits, whole = (hosts(count=2, devices="t4", nics=nics) for nics in ("8 Gb/s", "8 GB/s"))
    assert (rate(bits, 0, 1), rate(whole, 0, 1)) == (1.0, 8.0)
    assert rate(hosts(count=2, devices="t4", nics=3e9), 0, 1) == 3.0


def test_two_types_in_a_host_share_pcie_only() -> None:
    cluster = hosts(devices=["2 x a100-80", "2 x t4"])
    assert [device.type for device in cluster.devices] == ["a100-80"] * 2 + ["t4"] * 2
    # NVLink among the A100; generation 3 of PCIe, the T4s', to and among these.
    assert [rate(cluster, *pair) for pair in ((0, 1), (0, 2), (2, 3))] == [300.0, 11.0, 11.0]
    same = hosts(devices=["2 x a100-80", "2 x h100"])
    assert [rate(same, *pair) for pair in ((0, 1), (1, 2), (2, 3))] == [300.0, 22.0, 450.0]


def test_bridges_of_nvlink_join_pairs() -> None:
    cluster = hosts(devices=["2 x a6000", "2 x a6000"], nvlink="56.25 GB/s")
    assert [rate(cluster, 0, other) for other in (1, 2, 3)] == [56.25, 22.0, 22.0]


def test_links_inside_a_host_may_be_said() -> None:
    given = {"devices": "4 x h100"}
    assert rate(hosts(**given), 0, 1) == 450.0
    assert rate(hosts(**given, nvlink="300 GB/s"), 0, 1) == 300.0
    assert rate(hosts(**given, nvlink="none"), 0, 1) == 44.0
    assert rate(hosts(**given, nvlink="none", pcie="30 GB/s"), 0, 1) == 30.0
    assert rate(hosts(devices="4 x mi300x", nvlink="200 GB/s"), 0, 1) == 200.0
    assert float(hosts(**given, latency="7 us").plain.latency[0, 1]) == pytest.approx(7e-6)
    # What leaves a host by fewer NICs than devices passes its PCIe, if that is said.
    slow = hosts(count=2, **given, nics="400 Gb/s", pcie="20 GB/s")
    assert (rate(slow, 0, 1), rate(slow, 0, 4)) == (450.0, 20.0)


def test_boards_with_links_for_all_pairs_have_them() -> None:
    assert rate(hosts(devices="8 x mi300x"), 0, 7) == 64.0
    assert rate(hosts(devices="8 x gaudi3"), 0, 7) == 75.0
    # There is no board of sixteen: these use PCIe.
    assert rate(hosts(devices="16 x mi300x"), 0, 7) == 44.0


def test_own_types_have_pcie_and_may_shadow_the_catalogues() -> None:
    kind = {"flops_per_second": {"fp32": 1e12}, "memory_bytes": 1e9, "memory_bytes_per_second": 1e9}
    text = {"types": {"toy": kind, "h100": kind}, "hosts": [{"devices": ["2 x toy", "1 x h100"]}]}
    cluster = read(yaml.safe_dump(text))
    assert rate(cluster, 0, 1) == 22.0
    assert cluster.devices[2].memory_bytes == 1e9


def test_a_transfer_takes_one_of_a_hosts_nics_and_several_spread() -> None:
    cluster = hosts(count=2, devices="4 x t4", nics="2 x 8 Gb/s").plain
    routes = cluster.routes_between([0] * 4, [4, 5, 6, 7])
    assert set((routes.bandwidth / 1e9).tolist()) == {1.0}
    named = [{cluster.links[i].target for i in routes.links[a:b]} & {"host0.nic0", "host0.nic1"}
             for a, b in zip(routes.starts, routes.starts[1:], strict=False)]  # fmt: skip
    assert Counter(next(iter(each)) for each in named) == {"host0.nic0": 2, "host0.nic1": 2}


@pytest.mark.parametrize("text", ["8 x t4", "8x t4", "8xt4", " 8 X t4 ", "8 \u00d7 t4", "08 x t4"])
def test_counts_may_be_written_in_several_ways(text: str) -> None:
    assert hosts(devices=text).num_devices == 8


def test_nics_beyond_the_devices_are_shared_out() -> None:
    cluster = hosts(count=2, devices="4 x h100", nics="8 x 100 Gb/s")
    assert rate(cluster, 0, 4) == 25.0


def test_racks_share_what_their_oversubscription_leaves() -> None:
    rack = {"count": 2, "oversubscription": 4,
            "hosts": [{"count": 2, "devices": "8 x h100", "nics": "8 x 400 Gb/s"}]}  # fmt: skip
    other = {"name": "edge", "uplink": "80 Gb/s",
             "hosts": [{"name": "box", "devices": "2 x t4", "nics": "20 GB/s"}]}  # fmt: skip
    cluster = read(yaml.safe_dump({"racks": [rack, other], "switch_latency": "1 us"}))
    assert cluster.hosts == ("host0", "host1", "host2", "host3", "box")
    up = {each.source: each.bytes_per_second for each in cluster.links if each.target == "spine"}
    # 2 hosts x 8 NICs x 50 GB/s over 4; as stated.
    assert up == {"rack0": 200e9, "rack1": 200e9, "edge": 10e9}
    assert [rate(cluster, 0, other) for other in (1, 8, 16, 32)] == [450.0, 50.0, 50.0, 10.0]
    # From rack to rack two more links: 4 us and 2 x 1 us.
    assert float(cluster.plain.latency[0, 16]) == pytest.approx(6e-6)


def test_names_are_numbered_where_they_stand_for_several() -> None:
    text = """
    hosts:
    - {name: big, devices: t4, nics: 1 GB/s}
    - {name: small, count: 2, devices: t4, nics: 1 GB/s}
    - {devices: t4, nics: 1 GB/s}
    - {name: small, devices: t4, nics: 1 GB/s}
    """
    assert read(text).hosts == ("big", "small0", "small1", "host0", "small2")


def test_stated_defaults_are_those_of_the_builder() -> None:
    read = HostsDocument()
    assert parse_seconds(read.network_latency, "") == pytest.approx(NETWORK_SECONDS)
    assert parse_seconds(read.switch_latency, "") == pytest.approx(SWITCH_LINK_SECONDS)
    assert UNKNOWN.pcie == 22e9
    assert (NVLINK_SECONDS, PCIE_SECONDS) == (1.9e-6, 2.5e-6)


def test_interfaces_may_be_named() -> None:
    text = """
    hosts: [{count: 2, devices: t4, nics: 1 GB/s}]
    interfaces:
    - {host: host0, switch: switch, name: ens1, address: 10.0.0.1/24}
    - {host: host1, switch: switch, name: ens1, address: 10.0.0.2/24}
    """
    assert [each.address for each in read(text).interface_of.values()] == [
        "10.0.0.1/24", "10.0.0.2/24",
    ]  # fmt: skip


def test_tpu_hosts_on_a_network_are_joined_by_it() -> None:
    cluster = hosts(count=2, devices="4 x tpuv5p", nics="200 Gb/s")
    assert (rate(cluster, 0, 1), rate(cluster, 0, 4)) == (100.0, 25.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: []", "must have hosts or racks, got none of either"),
        ("hosts: [{devices: t4}]\nracks: [{hosts: [{devices: t4}]}]", "hosts or racks, got both"),
        ("format: meshwright.cluster\nversion: 1\nhost: [{devices: t4}]",
         "must have hosts, racks, devices or build, has format, version, host"),
        ("hosts: [{devices: 8 x h1000}]", "hosts[0].devices: unknown device type 'h1000'; did you"),
        ("hosts: [{devices: t4}, {devices: ''}]", "hosts[1].devices: must be such as '8 x h100'"),
        ("hosts: [{devices: 0 x t4}]", "hosts[0].devices: must be from 1 to 16384, got '0'"),
        ("hosts: [{devices: []}]", "hosts[0].devices: must be at least one"),
        ("hosts: [{devices: 8}]", "`hosts[0].devices`"),
        ("hosts: [{count: 2, devices: t4}]", "hosts[0].nics: must be given where there are"),
        ("hosts: [{devices: t4, nics: 400G}]", "hosts[0].nics: '400G' may be bits or bytes"),
        ("hosts: [{devices: t4, nics: 8 x 400 gb/s}]", "hosts[0].nics: '400 gb/s' may be bits"),
        ("hosts: [{devices: t4, nics: 0 x 1 GB/s}]", "hosts[0].nics: must be from 1 to 16384"),
        ("hosts: [{devices: t4, nics: 99999999999999999999 x 1 GB/s}]", "hosts[0].nics: must be"),
        ("hosts: [{devices: t4, nics: 0}]", "hosts[0].nics: must be positive and finite, got 0"),
        ("hosts: [{devices: t4, nvlink: -1}]", "hosts[0].nvlink: must be positive and finite"),
        ("hosts: [{devices: t4, nvlink: 0 GB/s}]", "hosts[0].nvlink: must be positive and finite"),
        ("hosts: [{devices: t4, pcie: 5 us}]", "hosts[0].pcie: unknown unit 'us'"),
        ("hosts: [{devices: t4, latency: 5 GB}]", "hosts[0].latency: unknown unit 'GB'"),
        ("hosts: [{devices: t4, latency: -1}]", "hosts[0].latency: must be finite and not"),
        ("hosts: [{devices: t4, count: 0}]", "Expected `int` >= 1, got 0 - at `hosts[0].count`"),
        ("hosts: [{devices: 8 x A100}]", "type 'a100'; did you mean a100-40 or a100-80?"),
        ("hosts: [{devices: 8 h100}]", "must be such as '8 x h100'"),
        ("hosts: [{devices: t4, nic: 1}]", "field `nic`, did you mean nics? - at `hosts[0]`"),
        ("hosts: [{devices: 9 x t4, count: 9999, nics: 1}]", "16,384 devices in all, got 89,991"),
        ("hosts: [{devices: t4, count: 9999, nics: 14 x 1 GB/s}]", "at most 131072 NICs in all"),
        ("racks: [{hosts: [{devices: x9}]}]", "racks[0].hosts[0].devices: unknown device type"),
        ("racks: [{hosts: [{devices: t4}], uplink: 3 GB/s, oversubscription: 2}]",
         "racks[0]: must have oversubscription or uplink, got both"),
        ("racks: [{hosts: [{devices: t4}], oversubscription: 0}]",
         "racks[0].oversubscription: must be positive"),
        ("racks: [{hosts: [{devices: t4}], uplink: fast}]", "racks[0].uplink: must be a rate"),
        ("hosts: [{devices: t4}]\nnetwork_latency: x", "network_latency: must be a time"),
        ("hosts: [{devices: t4}]\nswitch_latency: -1", "switch_latency: must be finite"),
        ("hosts: [{devices: t4}]\nversion: 2", "version must be 1, got 2"),
        ("hosts: [{devices: t4}]\nformat: x", "format must be 'meshwright.cluster', got 'x'"),
        ("hosts: [{name: a, devices: t4, nics: 1}, {name: a0, devices: t4, nics: 1}, "
         "{name: a, devices: t4, nics: 1}]", "node names must be unique, 'a0.0' stands twice"),
    ],
)  # fmt: skip
def test_refusals_name_the_field_and_its_owner(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert message in str(caught.value)
    assert str(caught.value).count("file.yaml") == 1
