"""What tests of testbeds that are really built have in common."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.network.script import Kind
from meshwright.network.testbed import apply
from meshwright.plan.plan import Allocation, Part, Plan

MBIT = 1e6 / 8


def missing(kind: Kind) -> str:
    """What this machine lacks to build a testbed; empty if nothing."""
    try:
        apply.check_machine(kind)
        subprocess.run(["unshare", "--net", "true"], check=True, capture_output=True, timeout=10)
    except (InputError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


needs_namespaces = pytest.mark.skipif(bool(missing("tc")), reason=f"cannot build: {missing('tc')}")
needs_ovs = pytest.mark.skipif(bool(missing("ovs")), reason=f"cannot build: {missing('ovs')}")
both_kinds = pytest.mark.parametrize(
    "kind", [pytest.param("tc", marks=needs_namespaces), pytest.param("ovs", marks=needs_ovs)]
)


def namespaces_of(name: str) -> list[str]:
    """As the system has them."""
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=10)
    names = [line.split()[0] for line in shown.stdout.splitlines() if line]
    return [each for each in names if each.startswith(f"meshwright-{name}-")]


DAEMONS = ("ovsdb-server", "ovs-vswitchd")


def daemons_of(folder: Path) -> list[str]:
    """The command lines of Open vSwitch's daemons that name a folder, each once: one that starts
    is two processes for a moment."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            line = words.decode(errors="replace")  # of others it may be anything
            if str(folder) in line and Path(line.split()[0]).name in DAEMONS:
                found.add(line)
    return sorted(found)


def take_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A testbed of this test alone; whatever it leaves is taken away."""
    name = f"t{os.getpid():x}{abs(hash(request.node.name)) % 16**6:x}"
    yield name
    left = namespaces_of(name)
    apply._clear(name, Path("/nonexistent"))
    assert left == []


def rails(mbit_per_second: float) -> Cluster:
    """Four hosts with two cables."""
    return multi_rail(
        num_hosts=4,
        num_rails=2,
        devices_per_host=1,
        rail_bytes_per_second=mbit_per_second * MBIT,
        device_type="cpu",
    )


def allocated(*wanted: tuple[int, int, float, tuple[float, ...]]) -> Plan:
    """A plan that allocates Mbit/s from host to host, by shares."""
    return Plan(
        parts=(Part(ops=("op",), devices=("host0.0",)),),
        allocations=tuple(
            Allocation(
                source=f"host{source}",
                target=f"host{target}",
                bytes_per_second=rate * MBIT,
                shares=shares,
            )
            for source, target, rate, shares in wanted
        ),
    )
