"""Testbeds with Open vSwitch and generated configuration: what is planned, and that all of it ends.

What such testbeds carry is measured in test_network_testbed_rate.py.
"""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_testbed import (
    MBIT,
    allocated,
    both_kinds,
    daemons_of,
    namespaces_of,
    needs_ovs,
    rails,
    take_name,
)

from meshwright.cluster.interface import Interface
from meshwright.errors import InputError
from meshwright.network.script import Kind
from meshwright.network.testbed import apply
from meshwright.network.testbed import testbed as plans
from meshwright.network.testbed.command import Command
from meshwright.network.testbed.config import script_command
from meshwright.network.testbed.testbed import host_folder, plan_testbed
from small import star
from waiting import wait_until

name = pytest.fixture(take_name)
PLAN = allocated((0, 1, 60, (0.5, 0.5)), (1, 0, 40, (1.0, 0.0)))


def words_of(testbed: plans.Testbed, program: str, host: int = 0) -> list[tuple[str, ...]]:
    """The arguments of each call of a program on a host."""
    here = f"meshwright-{testbed.name}-host{host}"
    return [
        each.argv[each.argv.index(program) + 1 :]
        for each in testbed.build
        if program in each.argv and here in each.argv
    ]


def test_addresses_are_on_bridges_and_cables_are_their_ports(tmp_path: Path) -> None:
    testbed = plan_testbed(rails(100), "lab", kind="ovs", folder=tmp_path)
    first, second = testbed.hosts[1].interfaces
    assert (first.name, first.address, first.wire) == ("br-eth0", "10.77.0.2", "eth0")
    assert (second.name, second.address, second.wire) == ("br-eth1", "10.77.1.2", "eth1")
    (bridges,) = (each for each in words_of(testbed, "ovs-vsctl", 1) if "add-br" in each)
    assert " ".join(bridges).split(" -- ")[1:] == [
        "add-br br-eth0",
        "set bridge br-eth0 datapath_type=netdev",
        "add-port br-eth0 eth0",
        "add-br br-eth1",
        "set bridge br-eth1 datapath_type=netdev",
        "add-port br-eth1 eth1",
    ]
    lines = [line for each in testbed.build for line in each.lines]
    assert "address add 10.77.0.2/24 dev br-eth0 noprefixroute" in lines
    assert "link set dev eth0 addrgenmode none up" in lines
    assert not any("address add 10.77.0.2/24 dev eth0" in line for line in lines)


def test_bridges_have_the_clusters_names_where_those_are_free(tmp_path: Path) -> None:
    bridges = {0: ("ovs0", "ovs0"), 1: ("ovs0", "ovs0"), 2: ("", ""), 3: ("", "a-long-name-0")}
    named = [
        Interface(
            host=f"host{host}",
            switch=f"rail{rail}",
            name=f"a-long-name-{rail}",
            bridge=bridges[host][rail],
            address=f"10.0.{rail}.{host + 1}/24",
        )
        for host in range(4)
        for rail in range(2)
    ]
    cluster = dataclasses.replace(rails(100), interfaces=tuple(named))
    testbed = plan_testbed(cluster, "lab", kind="ovs", folder=tmp_path)
    # Both cables of a host are on one bridge there; here each has its own. "br-a-long-name-0" is
    # longer than an interface's name may be.
    assert [[each.name for each in host.interfaces] for host in testbed.hosts] == [
        ["ovs0", "bridge1"],
        ["ovs0", "bridge1"],
        ["bridge0", "bridge1"],
        ["bridge0", "bridge1"],
    ]
    plain = plan_testbed(cluster, "lab", folder=tmp_path)
    assert [each.name for each in plain.hosts[0].interfaces] == ["a-long-name-0", "a-long-name-1"]


def test_without_allocations_open_vswitch_leaves_queues_alone(tmp_path: Path) -> None:
    testbed = plan_testbed(rails(100), "lab", kind="ovs", folder=tmp_path)
    calls = words_of(testbed, "ovs-vsctl")
    assert sum(each.count("type=linux-noop") for each in calls) == 2
    (shaping,) = (
        each.lines
        for each in testbed.build
        if each.argv[:3] == ("tc", "-n", "meshwright-lab-host0")
    )
    classes = [line for line in shaping if line.startswith("class")]
    assert len(classes) == 8
    # Turns are as long as the packets that Open vSwitch passes on.
    assert all(line.endswith("quantum 32768") for line in classes)


@pytest.mark.parametrize("kind", ["tc", "ovs"])
def test_generated_scripts_shape_what_is_allocated_and_the_rest_is_as_without(
    tmp_path: Path, kind: Kind
) -> None:
    testbed = plan_testbed(rails(100), "lab", PLAN, kind, tmp_path)
    folder = host_folder(tmp_path, "lab", 0)
    written = [each for each in testbed.build if each.argv == ("tee", f"{folder}/network.sh")]
    assert len(written) == 1
    text = "\n".join(written[0].lines)
    # 30 Mbit/s of payload are 31,367 kbit/s on the wire; routes have the testbed's options.
    assert "31367" in text
    assert "congctl cubic" in text
    assert script_command(testbed.hosts[0], folder, "apply") in testbed.build
    shaped = {
        (each.argv[2].rpartition("-")[2], line.split()[3])
        for each in testbed.build
        if each.argv[0] == "tc"
        for line in each.lines
        if line.startswith("qdisc")
    }
    # Host 0 sends by both interfaces, host 1 by the first alone, hosts 2 and 3 have no part in it.
    assert {each for each in shaped if each[0].startswith("host")} == {
        ("host1", "eth1"),
        *((host, nic) for host in ("host2", "host3") for nic in ("eth0", "eth1")),
    }
    assert {each for each in shaped if each[0].startswith("switch")} == {
        (f"switch{rail}", f"host{host}") for rail in range(2) for host in range(4)
    }


def test_hosts_without_a_cable_of_their_own_cannot_have_allocations() -> None:
    plan = dataclasses.replace(
        PLAN,
        allocations=tuple(
            dataclasses.replace(each, source="h0", target="h1", shares=())
            for each in PLAN.allocations[:1]
        ),
    )
    with pytest.raises(InputError, match="cluster 'star': allocations cannot be had in a testbed"):
        plan_testbed(star([100 * MBIT] * 2), "lab", plan)


def test_other_networks_are_refused() -> None:
    with pytest.raises(InputError, match="testbed: a network is by tc or ovs, got 'dpdk'"):
        plan_testbed(rails(100), "lab", kind="dpdk")  # type: ignore[arg-type]


def test_fast_links_are_remarked_earlier_than_with_tc(tmp_path: Path) -> None:
    (remark,) = plan_testbed(rails(2000), "lab", kind="ovs", folder=tmp_path).remarks
    assert remark.startswith("12 of 12 pairs of hosts are faster than 1 Gbit/s")
    assert plan_testbed(rails(2000), "lab").remarks == ()


def test_without_open_vswitch_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    testbed = plan_testbed(rails(100), "lab", kind="ovs", folder=tmp_path)
    find = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, **more: None if "ovs" in name else find(name, **more)
    )
    with pytest.raises(InputError, match=r"'ovsdb-tool'.*apt-get install openvswitch-switch"):
        apply.build(testbed, tmp_path)


# From here on namespaces are made.


def inside(host: str, folder: Path, *argv: str) -> str:
    """What a program says in a host's namespace."""
    words = ["ip", "netns", "exec", host, "env", f"OVS_RUNDIR={folder}", *argv]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def snapshot(host: str, folder: Path, kind: Kind) -> list[str]:
    """Everything that configuration may change."""
    calls = [
        ["tc", "qdisc", "show"],
        *(["tc", "class", "show", "dev", nic] for nic in ("eth0", "eth1")),
        *(["tc", "filter", "show", "dev", nic] for nic in ("eth0", "eth1")),
        ["ip", "rule", "show"],
        ["ip", "-4", "route", "show", "table", "all"],  # IPv6's come when they come
        ["grep", "-r", ".", *(f"/proc/sys/net/ipv4/conf/{nic}" for nic in ("eth0", "eth1", "all"))],
    ]  # fmt: skip
    if kind == "ovs":
        calls += [
            ["ovs-vsctl", "show"],
            *(["ovs-vsctl", "list", table] for table in ("port", "qos", "queue")),
            *(["ovs-ofctl", "dump-flows", "--no-stats", f"br-{nic}"] for nic in ("eth0", "eth1")),
        ]
    return [_steady(inside(host, folder, *each)) for each in calls]


def _steady(text: str) -> str:
    """Without counters."""
    return "\n".join(
        line for line in text.splitlines() if not line.startswith(("statistics", "status"))
    )


@both_kinds
def test_undone_a_host_is_as_it_was_and_down_nothing_is_left(
    name: str, tmp_path: Path, kind: Kind
) -> None:
    testbed = plan_testbed(rails(100), name, PLAN, kind, tmp_path)
    host, folder = testbed.hosts[0], host_folder(tmp_path, name, 0)
    applying = script_command(host, folder, "apply")
    steps = tuple(each for each in testbed.build if each != applying)
    try:
        apply.build(dataclasses.replace(testbed, build=steps), tmp_path)
        before = snapshot(host.namespace, folder, kind)
        for verb in ("apply", "verify"):
            apply._run(script_command(host, folder, verb), name)
        assert snapshot(host.namespace, folder, kind) != before
        apply._run(script_command(host, folder, "undo"), name)
        assert snapshot(host.namespace, folder, kind) == before
        assert list((folder / "state").iterdir()) == []
    finally:
        apply.remove(name, tmp_path)
    assert namespaces_of(name) == []
    assert daemons_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_ovs
def test_the_machines_own_settings_stay_as_they_are(name: str, tmp_path: Path) -> None:
    settings = [*Path("/proc/sys/net/core").glob("[rw]mem_*"), *Path("/var/run").glob("openvsw*")]
    before = [each.read_text() if each.is_file() else sorted(each.iterdir()) for each in settings]
    with apply.built(rails(100), name, PLAN, "ovs", folder=tmp_path):
        assert len(daemons_of(tmp_path)) == 8
        now = [each.read_text() if each.is_file() else sorted(each.iterdir()) for each in settings]
        assert now == before
    assert daemons_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_ovs
def test_a_failure_in_the_middle_leaves_no_daemon(name: str, tmp_path: Path) -> None:
    testbed = plan_testbed(rails(100), name, PLAN, "ovs", tmp_path)
    daemons = [place for place, each in enumerate(testbed.build) if "ovs-vswitchd" in each.argv]
    for place in (daemons[1], len(testbed.build) - 1):
        steps = (*testbed.build[: place + 1], Command(argv=("false",)))
        with pytest.raises(InputError, match="`false` failed: exit code 1"):
            apply.build(dataclasses.replace(testbed, build=steps), tmp_path)
        assert namespaces_of(name) == []
        assert daemons_of(tmp_path) == []
        assert list(tmp_path.iterdir()) == []


BUILD_SLOWLY = """
import dataclasses, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from made_testbed import allocated, rails
from meshwright.network.testbed.testbed import plan_testbed
from meshwright.network.testbed.command import Command
from meshwright.network.testbed.apply import build, raised_signals
plan, folder = allocated((0, 1, 60, (0.5, 0.5))), Path(sys.argv[2])
testbed = plan_testbed(rails(100), sys.argv[1], plan, "ovs", folder)
steps = (*testbed.build, Command(argv=("sleep", "60")))
with raised_signals():
    build(dataclasses.replace(testbed, build=steps), folder)
"""


@needs_ovs
def test_a_signal_ends_the_daemons(name: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD_SLOWLY, name, str(tmp_path), str(Path(__file__).parent)],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(daemons_of(tmp_path)) >= 8)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
    finally:
        process.kill()
        process.wait()
    assert namespaces_of(name) == []
    assert daemons_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_ovs
def test_what_a_killed_process_left_is_cleared_by_removing(name: str, tmp_path: Path) -> None:
    testbed = plan_testbed(rails(100), name, PLAN, "ovs", tmp_path)
    apply.build(testbed, tmp_path)
    (tmp_path / f"{name}.json").unlink()
    assert os.listdir(tmp_path) == [f"{name}.d"]
    assert apply.remove(name, tmp_path) == testbed.namespaces
    assert daemons_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
