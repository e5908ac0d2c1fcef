"""A small plan with allocations, what hosts make of it, and namespaces to try it in."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.interface import Interface
from meshwright.network.shape import HostNetwork, Queue, ShapedInterface
from meshwright.plan.plan import Allocation, Part, Plan
from small import rails

GBIT = 1e9 / 8
HOSTILE = (
    "a b", "a'b", 'a"b', "$(touch canary)", "`touch canary`", "a\nb", "a;touch canary", "-rf",
    "a&b", "a|b", "a>b", "*", "~", "é", "a\\b", "", ".", "..", "a/b", "../x", "a\0b", "#a", "!a",
    "a" * 64, "{{ x }}", "a\tb", "--help", "a=b", "a\u202eb", "a\r",
)  # fmt: skip
"""Names that a shell, a path, a program or a playbook could take for something else."""


def example_cluster(*, is_named: bool = False, bridge: str = "") -> Cluster:
    """Hosts h0, h1, h2 with links of 1 Gbit/s to the switches s0 and s1."""
    cluster = rails(3, rail=GBIT)
    interfaces = tuple(
        Interface(
            host=f"h{host}",
            switch=f"s{rail}",
            name=f"ens{rail}",
            address=f"192.168.{rail}.{10 + host}/24",
            bridge=f"{bridge}{rail}" if bridge else "",
        )
        for host in range(3)
        for rail in range(2)
    )
    return replace(cluster, interfaces=interfaces) if is_named else cluster


def example_plan(*allocations: Allocation) -> Plan:
    """With h0 -> h1 at 1.5 Gbit/s over both ways and h0 -> h2 at 400 Mbit/s over the second."""
    return Plan(
        parts=(Part(ops=("o0",), devices=("d0",)),),
        allocations=allocations
        or (
            Allocation(
                source="h0", target="h1", bytes_per_second=1.5 * GBIT, shares=(2 / 3, 1 / 3)
            ),
            Allocation(source="h0", target="h2", bytes_per_second=0.4 * GBIT, shares=(0.0, 1.0)),
        ),
    )


def example_host(bridge: str = "") -> HostNetwork:
    """Host h0 of the example, made by hand."""
    return HostNetwork(
        host="h0",
        interfaces=(
            ShapedInterface(
                name="eth0",
                address="10.77.0.1/24",
                bridge=f"{bridge}0" if bridge else "",
                kbit_per_second=1_000_000,
                queues=(
                    Queue(number=1, target="h1", address="10.77.0.2", kbit_per_second=1_000_000),
                ),
                table=7700,
                peers=("10.77.0.2",),
            ),
            ShapedInterface(
                name="eth1",
                address="10.77.1.1/24",
                bridge=f"{bridge}1" if bridge else "",
                kbit_per_second=1_000_000,
                queues=(
                    Queue(number=1, target="h1", address="10.77.1.2", kbit_per_second=500_000),
                    Queue(number=2, target="h2", address="10.77.1.3", kbit_per_second=400_000),
                ),
                table=7701,
                peers=("10.77.1.2", "10.77.1.3"),
            ),
        ),
    )


def missing_for_namespaces() -> str:
    """What this machine lacks for network namespaces with HTB; empty if nothing."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"needs the program {program}"
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && tc qdisc add dev lo root htb"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return f"no namespaces with HTB here: {tried.stderr.strip()}" if tried.returncode else ""


def missing_for_ovs() -> str:
    """What this machine lacks for Open vSwitch in a namespace; empty if nothing."""
    for program in ("ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"):
        if shutil.which(program) is None:
            return f"needs the program {program} (openvswitch-switch)"
    return missing_for_namespaces()


class Space:
    """A namespace with the interfaces eth0, eth1 (addresses 10.77.k.1/24) and eth2."""

    def __init__(self, folder: Path) -> None:
        self.name = f"meshwright-test-{os.getpid()}-{time.monotonic_ns()}"
        self.state = folder / "state"
        self.environment = {
            **os.environ,
            "MESHWRIGHT_STATE": str(self.state),
            **{f"OVS_{what}DIR": str(folder) for what in ("RUN", "LOG", "DB")},
        }

    def run(self, *argv: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *map(str, argv)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )
        assert code is None or done.returncode == code, (argv, done)
        return done

    def snapshot(self, bridges: Sequence[str] = ()) -> str:
        """Everything that scripts may change, and its surroundings."""
        commands = [("ip", "rule"), ("ip", "route", "show", "table", "all")]
        for device in ("lo", "eth0", "eth1", "eth2", *bridges):
            commands += [("tc", what, "show", "dev", device) for what in
                         ("qdisc", "class", "filter")]  # fmt: skip
            commands.append(("grep", ".", "-r", f"/proc/sys/net/ipv4/conf/{device}"))
        if bridges:
            commands += [("ovs-vsctl", "show"), ("ovs-vsctl", "list", "port")]
            commands += [("ovs-vsctl", "list", table) for table in ("qos", "queue")]
            commands += [("ovs-ofctl", "--no-stats", "dump-flows", each) for each in bridges]
        return "".join(f"$ {' '.join(argv)}\n{self.run(*argv).stdout}" for argv in commands)


@contextmanager
def namespace(folder: Path, *, has_addresses: bool = True) -> Iterator[Space]:
    """Within this the namespace is there."""
    space = Space(folder)
    subprocess.run(["ip", "netns", "add", space.name], check=True, timeout=20)
    try:
        # Addresses of IPv6 come some time after a link is up: not while we compare.
        for place in ("all", "default"):
            path = f"/proc/sys/net/ipv6/conf/{place}/disable_ipv6"
            space.run("sh", "-c", f"if [ -e {path} ]; then echo 1 >{path}; fi")
        space.run("ip", "link", "set", "lo", "up")
        for k in range(3):
            space.run("ip", "link", "add", f"eth{k}", "type", "veth", "peer", "name", f"far{k}")
            for name in (f"eth{k}", f"far{k}"):
                space.run("ip", "link", "set", "dev", name, "addrgenmode", "none", "up")
            if has_addresses:
                space.run("ip", "address", "add", f"10.77.{k}.1/24", "dev", f"eth{k}")
        yield space
    finally:
        subprocess.run(["ip", "netns", "delete", space.name], check=True, timeout=20)


@contextmanager
def switched_namespace(folder: Path) -> Iterator[Space]:
    """The same with Open vSwitch: bridges br0, br1 hold the addresses, eth0 and eth1 are ports."""
    with namespace(folder, has_addresses=False) as space:
        quiet = ("--detach", "--no-chdir", "-vconsole:off", "-vsyslog:off")
        space.run("ovsdb-tool", "create", folder / "conf.db")
        try:
            space.run("ovsdb-server", folder / "conf.db", f"--remote=punix:{folder}/db.sock",
                      f"--pidfile={folder}/ovsdb-server.pid", *quiet)  # fmt: skip
            space.run("ovs-vsctl", "--no-wait", "init")
            space.run("ovs-vswitchd", f"unix:{folder}/db.sock",
                      f"--pidfile={folder}/ovs-vswitchd.pid", *quiet)  # fmt: skip
            for k in range(2):
                bridge = f"br{k}"
                space.run("ovs-vsctl", "-t", "20", "add-br", bridge,
                          "--", "set", "bridge", bridge, "datapath_type=netdev",
                          "--", "add-port", bridge, f"eth{k}")  # fmt: skip
                space.run("ip", "link", "set", "dev", bridge, "addrgenmode", "none", "up")
                space.run("ip", "address", "add", f"10.77.{k}.1/24", "dev", bridge)
            yield space
        finally:
            for name in ("ovs-vswitchd", "ovsdb-server"):
                _end_process(folder / f"{name}.pid")


def _end_process(path: Path) -> None:
    """End a daemon at once (asked to, it takes seconds), and wait until it has."""
    if not path.exists():
        return
    process = int(path.read_text())
    os.kill(process, signal.SIGKILL)
    for _ in range(200):
        try:
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return
        if status.rpartition(")")[2].split()[0] == "Z":  # whoever adopted it has yet to notice
            return
        time.sleep(0.02)


def killing(folder: Path, program: str, call: int) -> str:
    """A PATH on which the call of that number of a program kills the script that makes it."""
    folder = folder / f"kill-{program}-{call}"
    folder.mkdir()
    (folder / program).write_text(
        f'#!/bin/sh\necho >>{folder}/calls\n[ "$(wc -l <{folder}/calls)" != {call} ] || '
        f'{{ kill -KILL "$PPID"; exit 1; }}\nexec {shutil.which(program)} "$@"\n'
    )
    (folder / program).chmod(0o755)
    return f"PATH={folder}:{os.environ['PATH']}"


def forge(network: HostNetwork, changes: Mapping[str, str]) -> HostNetwork:
    """The same host with names that its classes would refuse: `host`, `name`, `bridge`, ..."""
    made = HostNetwork(host=network.host, interfaces=tuple(map(replace, network.interfaces)))
    for interface in made.interfaces:
        for field in ("name", "bridge"):
            if field in changes:
                object.__setattr__(interface, field, changes[field])
    if "host" in changes:
        object.__setattr__(made, "host", changes["host"])
    return made
