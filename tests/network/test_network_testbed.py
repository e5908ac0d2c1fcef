"""Testbeds: what is planned, by hand; what is built, measured; what is left afterwards: nothing."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_testbed import MBIT, namespaces_of, needs_namespaces, take_name

from meshwright.change.host import drop_hosts
from meshwright.cluster.build import hierarchical, multi_rail, spine_leaf
from meshwright.cluster.catalogue import find_cluster, list_clusters
from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.cluster.interface import Interface
from meshwright.errors import InputError
from meshwright.network.testbed import apply
from meshwright.network.testbed import testbed as plans
from meshwright.network.testbed.command import Command
from meshwright.network.testbed.flow import join_lanes
from meshwright.network.testbed.path import find_paths, find_switch_tree
from meshwright.network.testbed.port import (
    FlowLane,
    ShapedFlow,
    burst_bytes,
    packet_bytes,
    wire_kbit_per_second,
)
from meshwright.network.testbed.rail import find_rails
from meshwright.network.testbed.testbed import namespace_pattern, plan_testbed
from meshwright.plan.plan import Part, Plan
from quick import few
from rates_measured import Demand, measure_rates
from small import TYPE, connected, star
from waiting import wait_until

name = pytest.fixture(take_name)
ACKNOWLEDGEMENTS = (
    "filter add dev {} parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff match u8 0x05 "
    "0x0f at 0 match u16 0x0000 0xffc0 at 2 match u8 0x10 0xff at 33 flowid 1:"
)


def lines_of(testbed: plans.Testbed, program: str, namespace: str) -> list[str]:
    """What a program is told about a namespace."""
    wanted = (program, "-n", f"meshwright-{testbed.name}-{namespace}", "-batch", "-")
    return [line for each in testbed.build if each.argv == wanted for line in each.lines]


def test_tcp_carries_1448_of_every_1514_bytes() -> None:
    # 100 Mbit/s of payload: 100,000 kbit/s x 1514 / 1448 = 104,558.01.
    assert wire_kbit_per_second(100 * MBIT) == 104_558
    assert wire_kbit_per_second(500 * MBIT) == 522_790
    assert wire_kbit_per_second(1.0) == 1


def test_packets_last_200_us_and_bursts_100() -> None:
    # 522,790 kbit/s is 65,348.75 bytes a ms.
    assert (packet_bytes(500 * MBIT), burst_bytes(500 * MBIT)) == (13_070, 6_535)
    # A slow link's are two frames, a fast one's packets what IP allows.
    assert (packet_bytes(10 * MBIT), burst_bytes(10 * MBIT)) == (3_028, 3_028)
    assert packet_bytes(10_000 * MBIT) == 65_536
    # What 16 hosts send at once comes in as many packets a second as two cores can carry.
    assert packet_bytes(500 * MBIT, 4) == packet_bytes(500 * MBIT)
    assert packet_bytes(200 * MBIT, 16) == round(200e6 * 1514 / 1448 / 8 * 16 * 50e-6)


def test_hosts_are_namespaces_with_addresses_in_the_clusters_order() -> None:
    testbed = plan_testbed(star([100 * MBIT] * 3), "lab")
    assert [(each.name, each.namespace, each.address) for each in testbed.hosts] == [
        ("h0", "meshwright-lab-host0", "10.77.0.1"),
        ("h1", "meshwright-lab-host1", "10.77.0.2"),
        ("h2", "meshwright-lab-host2", "10.77.0.3"),
    ]
    assert testbed.namespaces == (
        *(each.namespace for each in testbed.hosts),
        "meshwright-lab-switch0",
    )
    assert [each.argv for each in testbed.remove] == [
        ("ip", "netns", "delete", each) for each in testbed.namespaces
    ]
    assert testbed.remarks == ()


def test_every_interface_is_made_inside_a_namespace() -> None:
    testbed = plan_testbed(star([100 * MBIT, 500 * MBIT]), "lab")
    assert lines_of(testbed, "ip", "switch0") == [
        "link add bridge type bridge",
        "link set dev bridge addrgenmode none up",
        "link add host0 type veth peer name eth0 netns meshwright-lab-host0",
        "link set dev host0 master bridge addrgenmode none up",
        "link add host1 type veth peer name eth0 netns meshwright-lab-host1",
        "link set dev host1 master bridge addrgenmode none up",
    ]
    assert lines_of(testbed, "ip", "host1") == [
        "link set dev lo up",
        "link set dev eth0 addrgenmode none gso_max_size 3028 up",
        "address add 10.77.0.2/24 dev eth0 noprefixroute",
        "route add 10.77.0.0/24 dev eth0 src 10.77.0.2 congctl cubic initcwnd 64 initrwnd 64 "
        "rto_min 20ms",
    ]
    limit = "/proc/sys/net/ipv4/tcp_limit_output_bytes"
    assert (
        Command(
            argv=("ip", "netns", "exec", "meshwright-lab-host1", "tee", limit),
            lines=("9084",),  # three packets of 3028
        )
        in testbed.build
    )


def test_flows_that_share_a_link_share_its_class() -> None:
    # Host 0 has 100 Mbit/s; to hosts 1 and 2 it could send 100 each.
    testbed = plan_testbed(star([100 * MBIT, 250 * MBIT, 500 * MBIT]))
    assert lines_of(testbed, "tc", "host0") == [
        "qdisc add dev eth0 root handle 1: htb",
        ACKNOWLEDGEMENTS.format("eth0"),
        "class add dev eth0 parent 1: classid 1:1 htb rate 104558kbit ceil 104558kbit "
        "burst 3028b cburst 3028b quantum 3028",
        "class add dev eth0 parent 1:1 classid 1:2 htb rate 12kbit ceil 104558kbit "
        "burst 1514b cburst 3028b quantum 3028",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.2/32 flowid 1:2",
        "class add dev eth0 parent 1:1 classid 1:3 htb rate 12kbit ceil 104558kbit "
        "burst 1514b cburst 3028b quantum 3028",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.3/32 flowid 1:3",
    ]


def test_flows_that_never_fill_their_link_have_classes_of_their_own() -> None:
    # Host 2 has 500 Mbit/s, and hosts 0 and 1 take 100 and 250 of it: 261,395 kbit/s on the wire.
    testbed = plan_testbed(star([100 * MBIT, 250 * MBIT, 500 * MBIT]))
    assert lines_of(testbed, "tc", "host2")[2:] == [
        "class add dev eth0 parent 1: classid 1:1 htb rate 104558kbit ceil 104558kbit "
        "burst 3028b cburst 3028b quantum 3028",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.1/32 flowid 1:1",
        "class add dev eth0 parent 1: classid 1:2 htb rate 261395kbit ceil 261395kbit "
        "burst 3267b cburst 3267b quantum 6535",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.77.0.2/32 flowid 1:2",
    ]


def test_a_switch_shapes_only_ports_that_can_be_short() -> None:
    # Into host 0 (100) come 100 + 100, into host 1 (250) 100 + 250, into host 2 (500) 100 + 250.
    lines = lines_of(plan_testbed(star([100 * MBIT, 250 * MBIT, 500 * MBIT])), "tc", "switch0")
    assert [line.split()[3] for line in lines if line.startswith("qdisc")] == ["host0", "host1"]
    # Sources have capped their flows already: here each may have the whole port.
    assert lines[-4:] == [
        "class add dev host1 parent 1:1 classid 1:2 htb rate 12kbit ceil 261395kbit "
        "burst 1514b cburst 3267b quantum 6535",
        "filter add dev host1 parent 1: protocol ip prio 1 u32 match ip src 10.77.0.1/32 "
        "flowid 1:2",
        "class add dev host1 parent 1:1 classid 1:3 htb rate 12kbit ceil 261395kbit "
        "burst 1514b cburst 3267b quantum 6535",
        "filter add dev host1 parent 1: protocol ip prio 1 u32 match ip src 10.77.0.3/32 "
        "flowid 1:3",
    ]


def test_direct_links_share_nothing() -> None:
    testbed = plan_testbed(connected(4, 100 * MBIT))
    assert len(testbed.namespaces) == 5
    assert lines_of(testbed, "tc", "switch0") == []
    classes = [line for line in lines_of(testbed, "tc", "host3") if line.startswith("class")]
    assert len(classes) == 3
    assert all("parent 1: " in line and "rate 104558kbit" in line for line in classes)


def test_a_tree_of_switches_is_built_switch_by_switch() -> None:
    cluster = hierarchical(
        devices_per_host=1,
        branching=(2, 2),
        oversubscription=(2,),
        device_type="cpu",
        host_bytes_per_second=100 * MBIT,
    )
    testbed = plan_testbed(cluster)
    assert [each.rpartition("-")[2] for each in testbed.namespaces[4:]] == [
        "switch0",
        "switch1",
        "switch2",
    ]
    # Leaves 0 and 1 hang on root 2; host 2 is on leaf 1.
    assert any("link add switch2 " in line for line in lines_of(testbed, "ip", "switch0"))
    assert lines_of(testbed, "ip", "switch2")[-2:] == [
        "link set dev switch0 master bridge addrgenmode none up",
        "link set dev switch1 master bridge addrgenmode none up",
    ]
    assert any("link add host2 " in line for line in lines_of(testbed, "ip", "switch1"))
    # The link upwards has 2 x 100 / 2 Mbit/s for the four pairs whose way it is.
    up = [line for line in lines_of(testbed, "tc", "switch0") if " dev switch2 " in line]
    assert [line.split(" htb ")[1].split(" burst")[0] for line in up if line.startswith("cla")] == [
        "rate 104558kbit ceil 104558kbit",
        *["rate 12kbit ceil 104558kbit"] * 4,
    ]
    assert sum("match ip src 10.77.0.1/32 match ip dst 10.77.0.3/32" in line for line in up) == 1
    assert any(" dev switch1 " in line for line in lines_of(testbed, "tc", "switch2"))


def test_several_spines_are_no_tree_and_said_so() -> None:
    cluster = spine_leaf(
        num_spines=2,
        num_leaves=2,
        hosts_per_leaf=2,
        devices_per_host=1,
        device_type="cpu",
        host_bytes_per_second=100 * MBIT,
    )
    assert find_switch_tree(cluster, find_paths(cluster)) is None
    testbed = plan_testbed(cluster)
    assert testbed.namespaces[4:] == ("meshwright-mw-switch0",)
    (remark,) = testbed.remarks
    assert remark.startswith("the network is no tree of switches: all hosts are on one switch, and")
    assert remark.endswith("inner links that several pairs of hosts share are not emulated")


RAILS = multi_rail(
    num_hosts=3,
    num_rails=2,
    devices_per_host=2,
    rail_bytes_per_second=100 * MBIT,
    device_type="cpu",
)


def test_hosts_have_a_cable_to_each_rail() -> None:
    testbed = plan_testbed(RAILS, "lab")
    assert testbed.remarks == ()
    assert testbed.namespaces[3:] == ("meshwright-lab-switch0", "meshwright-lab-switch1")
    assert [(each.name, each.address) for each in testbed.hosts[2].interfaces] == [
        ("eth0", "10.77.0.3"),
        ("eth1", "10.77.1.3"),
    ]
    assert (testbed.hosts[2].interface, testbed.hosts[2].address) == ("eth0", "10.77.0.3")
    assert lines_of(testbed, "ip", "switch1")[2:4] == [
        "link add host0 type veth peer name eth1 netns meshwright-lab-host0",
        "link set dev host0 master bridge addrgenmode none up",
    ]
    assert lines_of(testbed, "ip", "host0")[4:] == [
        "link set dev eth1 addrgenmode none gso_max_size 3028 up",
        "address add 10.77.1.1/24 dev eth1 noprefixroute",
        "route add 10.77.1.0/24 dev eth1 src 10.77.1.1 congctl cubic initcwnd 64 initrwnd 64 "
        "rto_min 20ms",
    ]


def test_each_cable_of_a_rail_is_shaped_alone() -> None:
    testbed = plan_testbed(RAILS, "lab")
    leaving = lines_of(testbed, "tc", "host0")
    classes = [line.split() for line in leaving if line.startswith("class")]
    # On each of two cables one class for 104,558 kbit/s and one leaf for each of two hosts.
    assert [(each[3], each[7], each[10], each[12]) for each in classes] == [
        (nic, number, rate, "104558kbit")
        for nic in ("eth0", "eth1")
        for number, rate in (("1:1", "104558kbit"), ("1:2", "12kbit"), ("1:3", "12kbit"))
    ]
    assert "match ip dst 10.77.1.2/32 flowid 1:2" in leaving[-3]
    entering = lines_of(testbed, "tc", "switch1")
    assert sum(line.startswith("qdisc") for line in entering) == 3
    assert any("dev host0" in line and "match ip src 10.77.1.3/32" in line for line in entering)


def test_interfaces_keep_the_names_that_the_cluster_gives_them() -> None:
    named = [
        Interface(
            host=f"host{host}", switch=f"rail{rail}", name=f"en{rail}p0", bridge=f"ovs{rail}",
            address=f"192.168.5.{10 * host + rail + 1}/24",
        )
        for host in range(3)
        for rail in range(2)
    ]  # fmt: skip
    testbed = plan_testbed(dataclasses.replace(RAILS, interfaces=tuple(named)), "lab")
    assert [(each.name, each.address) for each in testbed.hosts[1].interfaces] == [
        ("en0p0", "192.168.5.11"),
        ("en1p0", "192.168.5.12"),
    ]
    # Both cables are in one network: only routes to single addresses tell them apart.
    routes = [line for line in lines_of(testbed, "ip", "host1") if line.startswith("route")]
    assert [line.split(" src ")[0] for line in routes] == [
        "route add 192.168.5.1/32 dev en0p0",
        "route add 192.168.5.21/32 dev en0p0",
        "route add 192.168.5.2/32 dev en1p0",
        "route add 192.168.5.22/32 dev en1p0",
    ]
    with pytest.raises(InputError, match=r"needs an interface for the link 'host2' -> 'rail1'"):
        plan_testbed(dataclasses.replace(RAILS, interfaces=tuple(named[:-1])), "lab")


def test_two_links_to_one_switch_are_two_rails() -> None:
    links = [
        Link(source=one, target=other, bytes_per_second=rate)
        for host in ("h0", "h1")
        for rate in (100 * MBIT, 200 * MBIT)
        for one, other in ((host, "switch"), ("switch", host))
    ] + [
        Link(source=one, target=other, bytes_per_second=1e12)
        for host in ("0", "1")
        for one, other in ((f"d{host}", f"h{host}"), (f"h{host}", f"d{host}"))
    ]
    devices = [Device(name=f"d{k}", type="unit", host=f"h{k}", memory_bytes=1.0) for k in "01"]
    cluster = Cluster(
        name="double",
        types={"unit": TYPE},
        devices=tuple(devices),
        switches=("switch",),
        links=tuple(links),
    )
    testbed = plan_testbed(cluster, "lab")
    assert len(testbed.namespaces) == 4
    rates = [line for line in lines_of(testbed, "tc", "host1") if line.startswith("class")]
    assert [(line.split()[3], line.split()[10]) for line in rates] == [
        ("eth0", "104558kbit"),
        ("eth1", "209116kbit"),
    ]


def test_rails_whose_switches_are_joined_are_no_rails() -> None:
    ends = [(f"rail{rail}", "spine") for rail in range(2)]
    joined = [
        Link(source=one, target=other, bytes_per_second=1e12)
        for pair in ends
        for one, other in (pair, pair[::-1])
    ]
    alone = [each for each in RAILS.links if {each.source, each.target} != {"host2", "rail0"}]
    cluster = dataclasses.replace(
        RAILS, links=(*alone, *joined), switches=(*RAILS.switches, "spine")
    )
    # Host 2 is on rail 1 alone, and what comes from rail 0 can still reach it over the spine.
    assert len(plan_testbed(cluster, "lab").hosts[0].interfaces) == 2
    star = [each for each in alone if {each.source, each.target} != {"host0", "rail1"}]
    cluster = dataclasses.replace(
        RAILS, links=(*star, *joined), switches=(*RAILS.switches, "spine")
    )
    assert find_rails(cluster, find_paths(cluster)) == ()
    assert len(find_rails(RAILS, find_paths(RAILS))) == 2


def test_links_that_one_flow_may_take_are_one_lane() -> None:
    cluster = star([1.0, 2.0, 4.0])  # links in pairs: 1, 1, 2, 2, 4, 4
    one, two, three = (ShapedFlow(bytes_per_second=1.0, target=each) for each in "abc")
    assert join_lanes(cluster, [((0,), one), ((2,), two), ((2, 4), three)]) == [
        FlowLane(bytes_per_second=1.0, flows=(one,)),
        FlowLane(bytes_per_second=6.0, flows=(two, three)),
    ]
    assert join_lanes(cluster, [((0,), one), ((2,), two), ((0, 2), three)]) == [
        FlowLane(bytes_per_second=3.0, flows=(one, two, three))
    ]


def test_what_cannot_be_emulated_is_remarked() -> None:
    fast, late = connected(2, 6e9 / 8), star([100 * MBIT] * 2, latency=4e-3)
    (remark,) = plan_testbed(fast).remarks
    assert remark.startswith("2 of 2 pairs of hosts are faster than 5 Gbit/s (up to 750 MB/s)")
    assert plan_testbed(late).remarks == (
        "latencies (up to 4 ms) are not emulated, only bandwidths",
    )
    devices = [Device(name=name, type="unit", host="h", memory_bytes=1.0) for name in "ab"]
    ends = (("a", "b"), ("b", "a"))
    links = [Link(source=one, target=other, bytes_per_second=5e8) for one, other in ends]
    slow = Cluster(name="slow", types={"unit": TYPE}, devices=tuple(devices), links=tuple(links))
    assert plan_testbed(slow).remarks == (
        "devices of one host reach each other over its loopback, which is not shaped; the cluster "
        "has 500 MB/s there",
    )


def test_one_host_alone_needs_no_shaping() -> None:
    testbed = plan_testbed(star([1.0]))
    assert len(testbed.namespaces) == 2
    assert not any(each.argv[0] == "tc" for each in testbed.build)


CLUSTERS = [entry.example for entry in list_clusters()]


@pytest.mark.parametrize("name", few(CLUSTERS, *CLUSTERS[::4]))
def test_every_filter_of_every_kind_of_cluster_names_a_class(name: str) -> None:
    for command in plan_testbed(find_cluster(name)).build:
        words = [line.split() for line in command.lines]
        classes = [(each[3], each[7]) for each in words if each[0] == "class"]
        targets = [(each[3], each[-1]) for each in words if each[0] == "filter"]
        assert len(set(classes)) == len(classes)
        assert {each for each in targets if each[1] != "1:"} <= set(classes)
        assert not any("inf" in line or "nan" in line for line in command.lines)


def test_more_than_64_hosts_are_refused() -> None:
    with pytest.raises(InputError, match="a testbed has at most 64 hosts, got 65"):
        plan_testbed(star([1.0] * 65))


@pytest.mark.parametrize("name", ["", "A", "a-b", "../x", "a" * 17, "a\n"])
def test_names_that_could_touch_something_else_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="1 to 16 lower-case letters or digits"):
        plan_testbed(star([1.0]), name)
    with pytest.raises(InputError, match="1 to 16 lower-case letters or digits"):
        apply.remove(name)


def test_a_testbed_owns_only_its_own_namespaces() -> None:
    pattern = namespace_pattern("a")
    assert pattern.fullmatch("meshwright-a-host12")
    assert pattern.fullmatch("meshwright-a-switch0")
    for other in ("meshwright-ab-host1", "meshwright-a-host1x", "a-host1", "meshwright-a-"):
        assert not pattern.fullmatch(other)


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apply, "find_program", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="needs root to make network namespaces; run as root or"):
        apply.build(plan_testbed(star([1.0])), tmp_path)


def test_without_iproute2_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(InputError, match=r"needs the program 'ip'.*apt-get install iproute2"):
        apply.build(plan_testbed(star([1.0])), tmp_path)


def test_a_testbed_that_is_not_up_has_no_hosts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="testbed 'mw': is not up"):
        apply.find_host("mw", "h0", tmp_path)


# From here on namespaces are made.


def steady_rates(testbed: plans.Testbed, pairs: list[tuple[int, int]]) -> list[float]:
    """Of transfers between hosts at once, in bytes a second."""
    demands = [Demand(source=f"{testbed.hosts[one].name}", target=testbed.hosts[other].name)
               for one, other in pairs]  # fmt: skip
    return [each.steady_bytes_per_second for each in measure_rates(testbed, demands, 1.2)]


def nearest(testbed: plans.Testbed, pairs: list[tuple[int, int]], wanted: float) -> list[float]:
    """The best of some measurements: machines do stall."""
    best: list[float] = []
    for _ in range(8):
        rates = steady_rates(testbed, pairs)
        best = min((best or rates, rates), key=lambda each: max(abs(x / wanted - 1) for x in each))
        if best == pytest.approx([wanted] * len(pairs), rel=0.03):
            break
    return best


@needs_namespaces
def test_transfers_run_at_the_clusters_bandwidths(name: str, tmp_path: Path) -> None:
    cluster = star([500 * MBIT, 100 * MBIT, 250 * MBIT, 500 * MBIT])
    with apply.built(cluster, name, folder=tmp_path) as testbed:
        for target in (1, 2, 3):
            bandwidth = float(cluster.bandwidth[0, target])
            assert nearest(testbed, [(0, target)], bandwidth) == pytest.approx(
                [bandwidth], rel=0.05
            )
    assert list(tmp_path.iterdir()) == []


@needs_namespaces
def test_a_shared_link_between_switches_is_shared(name: str, tmp_path: Path) -> None:
    cluster = hierarchical(
        devices_per_host=1,
        branching=(2, 2),
        oversubscription=(2,),
        device_type="cpu",
        host_bytes_per_second=200 * MBIT,
    )
    with apply.built(cluster, name, folder=tmp_path) as testbed:
        rates = nearest(testbed, [(0, 2), (1, 3)], 100 * MBIT)
        assert rates == pytest.approx([100 * MBIT] * 2, rel=0.05)


@needs_namespaces
def test_ranks_find_their_hosts(name: str, tmp_path: Path) -> None:
    with apply.built(star([1e7] * 2), name, folder=tmp_path) as testbed:
        (first, second) = apply.rank_prefixes(name, ["h1", "h0"], tmp_path)
        assert first[1:] == ["netns", "exec", testbed.hosts[1].namespace]
        assert second[-1] == testbed.hosts[0].namespace
        address = apply.find_host(name, "h1", tmp_path).address
        shown = subprocess.run(
            [*first, "ip", "-brief", "address"], capture_output=True, text=True, timeout=10
        )
        (line,) = (each for each in shown.stdout.splitlines() if address in each)
        assert line.startswith(apply.find_host(name, "h1", tmp_path).interface)
        with pytest.raises(InputError, match="has no host 'h2', only h0, h1"):
            apply.rank_prefixes(name, ["h2"], tmp_path)


@needs_namespaces
def test_the_same_twice_is_fine_and_another_is_not(name: str, tmp_path: Path) -> None:
    testbed = plan_testbed(star([1e7] * 2), name)
    assert apply.build(testbed, tmp_path) is True
    try:
        assert apply.build(testbed, tmp_path) is False
        with apply.built(star([1e7] * 2), name, folder=tmp_path):
            pass
        assert sorted(namespaces_of(name)) == sorted(testbed.namespaces)  # it was up before
        with pytest.raises(InputError, match=r"is up for another .*'star'\); take it down"):
            apply.build(plan_testbed(star([2e7] * 2), name), tmp_path)
    finally:
        assert apply.remove(name, tmp_path) == testbed.namespaces
    assert apply.remove(name, tmp_path) == ()


@needs_namespaces
def test_a_testbed_is_built_anew_only_where_fewer_hosts_need_that(
    name: str, tmp_path: Path
) -> None:
    whole, plan = star([1e7] * 3), Plan(parts=(Part(ops=("op",), devices=("d0",)),))
    left = drop_hosts(whole, ["h1"], "lost")
    with apply.built(whole, name, folder=tmp_path):
        assert not apply.renew(left, name, plan, was_shaped=False, folder=tmp_path)
        assert not apply.renew(star([1e7]), name, plan, was_shaped=True, folder=tmp_path)
        assert apply.find_host(name, "h1", tmp_path).name == "h1"
        assert apply.renew(left, name, plan, was_shaped=True, folder=tmp_path)
        with pytest.raises(InputError, match="has no host 'h1', only h0, h2"):
            apply.find_host(name, "h1", tmp_path)
    assert not apply.is_up(name, tmp_path)


@needs_namespaces
def test_a_failure_in_the_middle_leaves_nothing(name: str, tmp_path: Path) -> None:
    testbed = plan_testbed(star([1e7] * 3), name)
    bad = Command(argv=("tc", "-n", testbed.namespaces[0], "-batch", "-"), lines=("no such",))
    for place in (1, len(testbed.build) // 2, len(testbed.build)):
        steps = (*testbed.build[:place], bad, *testbed.build[place:])
        with pytest.raises(InputError, match=r"`tc -n \S+ -batch -` failed: .*sch_htb"):
            apply.build(dataclasses.replace(testbed, build=steps), tmp_path)
        assert namespaces_of(name) == []
        assert list(tmp_path.iterdir()) == []


@needs_namespaces
def test_a_kernel_that_refuses_namespaces_is_named(name: str, tmp_path: Path) -> None:
    testbed = plan_testbed(star([1e7]), name)
    twice = (testbed.build[0], *testbed.build)  # fails as a refusal does: "File exists"
    with pytest.raises(InputError, match="does this kernel or container allow network namespaces"):
        apply.build(dataclasses.replace(testbed, build=twice), tmp_path)


@needs_namespaces
def test_leftovers_are_cleared_before_building_and_by_removing(name: str, tmp_path: Path) -> None:
    testbed = plan_testbed(star([1e7] * 2), name)
    left = f"meshwright-{name}-host7"
    subprocess.run(["ip", "netns", "add", left], check=True, timeout=10)
    apply.build(testbed, tmp_path)
    assert left not in namespaces_of(name)
    (tmp_path / f"{name}.json").unlink()  # as after a reboot of a container
    assert apply.remove(name, tmp_path) == testbed.namespaces


@needs_namespaces
def test_removing_ends_the_processes_inside(name: str, tmp_path: Path) -> None:
    with apply.built(star([1e7] * 2), name, folder=tmp_path):
        (prefix,) = apply.rank_prefixes(name, ["h0"], tmp_path)
        process = subprocess.Popen([*prefix, "sleep", "60"])
        namespace = Path(f"/var/run/netns/{prefix[-1]}").stat().st_ino
        own = Path(f"/proc/{process.pid}/ns/net")
        wait_until(lambda: own.stat().st_ino == namespace)
    assert process.wait() == -signal.SIGTERM


BUILD_SLOWLY = """
import dataclasses, sys
from pathlib import Path
from small import star
from meshwright.network.testbed.testbed import plan_testbed
from meshwright.network.testbed.command import Command
from meshwright.network.testbed.apply import build, raised_signals
testbed = plan_testbed(star([1e7] * 3), sys.argv[1])
steps = (*testbed.build, Command(argv=("sleep", "60")))
with raised_signals():
    build(dataclasses.replace(testbed, build=steps), Path(sys.argv[2]))
"""


@needs_namespaces
@pytest.mark.parametrize("number", few([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_a_signal_while_building_leaves_nothing(
    name: str, tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD_SLOWLY, name, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(namespaces_of(name)) == 4)
        process.send_signal(number)
        code = process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert code == (143 if number == signal.SIGTERM else -signal.SIGINT)
    assert namespaces_of(name) == []
    assert list(tmp_path.iterdir()) == []
