"""`meshwright network`: rates, folders, and this host put in order and back."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import refusal, run

from meshwright.cluster.interface import Interface
from meshwright.plan.plan import Allocation, Part, Plan
from small import dag, rails

GBIT = 1e9 / 8


def write_plan(folder: Path, *, bridge: str = "", num_allocations: int = 2) -> Path:
    """Three hosts, two switches, links of 1 Gbit/s; allocations from h0 to h1 and h2."""
    graph = dag([1.0, 1.0], {(0, 1): 1e6})
    cluster = rails(3, rail=GBIT)
    if bridge:
        cluster = replace(
            cluster,
            interfaces=tuple(
                Interface(host=f"h{host}", switch=f"s{rail}", name=f"eth{rail}",
                          address=f"10.77.{rail}.{host + 1}/24", bridge=f"{bridge}{rail}")
                for host in range(3)
                for rail in range(2)
            ),
        )  # fmt: skip
    plan = Plan(
        parts=(Part(ops=("o0",), devices=("d0",)), Part(ops=("o1",), devices=("d1",))),
        allocations=(
            Allocation(source="h0", target="h1", bytes_per_second=GBIT, shares=(0.6, 0.4)),
            Allocation(source="h0", target="h2", bytes_per_second=0.25 * GBIT, shares=(1.0, 0.0)),
        )[:num_allocations],
    )
    folder.mkdir()
    plan.save(folder / "plan.json")
    graph.save(folder / "graph.json.gz")
    cluster.save(folder / "cluster.yaml")
    return folder


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(tmp_path / "plan")


def test_rates_are_shown_a_line_each(plan: Path) -> None:
    result = run("network", plan)
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines() if line.startswith("h")][1:]
    assert lines == [
        ["h0", "eth0", "h1", "10.77.0.2", "600,000", "60", "%"],
        ["h0", "eth0", "h2", "10.77.0.3", "250,000", "25", "%"],
        ["h0", "eth1", "h1", "10.77.1.2", "400,000", "40", "%"],
    ]


def test_rates_for_programs(plan: Path) -> None:
    hosts = run("network", plan, "--json").json["hosts"]
    assert [each["name"] for each in hosts] == ["h0", "h1", "h2"]
    assert hosts[0]["interfaces"][1]["queues"] == [
        {"number": 1, "target": "h1", "address": "10.77.1.2", "kbit_per_second": 400_000}
    ]
    assert hosts[2]["interfaces"][0]["queues"] == []


@pytest.mark.parametrize("kind", ["tc", "ovs"])
def test_a_folder_is_written(tmp_path: Path, kind: str) -> None:
    plan = write_plan(tmp_path / "plan", bridge="br")
    result = run("network", plan, "--emit", kind, "-o", tmp_path / "out")
    assert (result.code, result.out) == (0, "")
    assert f"wrote scripts for 3 hosts to {tmp_path / 'out'}" in result.err
    assert (tmp_path / "out" / "h2" / "undo.sh").exists()


def test_what_cannot_be_configured_is_refused(tmp_path: Path, plan: Path) -> None:
    assert "has no allocations" in refusal(
        "network", write_plan(tmp_path / "none", num_allocations=0)
    )
    assert "must be a port of an Open vSwitch bridge" in refusal(
        "network", plan, "--emit", "ovs", "-o", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()
    assert "no such plan" in refusal("network", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "x"], "-o needs --emit ovs or --emit tc"),
        (["--apply"], "--apply needs --emit ovs or --emit tc"),
        (["--emit", "tc"], "--emit needs -o, --apply, --verify or --undo"),
        (["--host", "h0"], "--host needs --apply, --verify or --undo"),
        (["--emit", "nft", "-o", "x"], "invalid choice: 'nft'"),
        (["--apply", "--undo", "--emit", "tc"], "not allowed with argument"),
        (["--emit", "tc", "-o", "/dev/null"], "/dev/null: must be a folder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    plan: Path, words: list[str], message: str
) -> None:
    assert message in refusal("network", plan, *words)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[list[str]]:
    """What to put before a command so that it runs where h0's two interfaces are."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make network namespaces")
    name = f"meshwright-cli-{os.getpid()}"
    made = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, timeout=20, check=False
    )
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    prefix = ["ip", "netns", "exec", name]
    try:
        for k in range(2):
            for words in (
                f"link add eth{k} type veth peer name far{k}",
                f"link set dev eth{k} addrgenmode none up",
                f"link set dev far{k} addrgenmode none up",
                f"address add 10.77.{k}.1/24 dev eth{k}",
            ):
                subprocess.run([*prefix, "ip", *words.split()], check=True, timeout=20)
        yield [*prefix, "env", f"MESHWRIGHT_STATE={tmp_path}/state"]
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=20)


def test_this_host_is_configured_verified_and_put_back(
    space: list[str], plan: Path, tmp_path: Path
) -> None:
    def network(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*space, sys.executable, "-m", "meshwright", "network", str(plan), "--emit", "tc",
             *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    differs = network("--verify", "--host", "h0")
    assert differs.returncode == 1
    assert "eth0 qdisc root: must be htb 4d57: default 1, is missing\n" in differs.stdout
    assert "error: host h0 differs in " in differs.stderr
    applied = network("--apply", "--host", "h0")
    assert (applied.returncode, applied.stdout) == (0, ""), applied.stderr
    assert "host h0: configured" in applied.stderr
    verified = network("--verify", "--host", "h0", "--json")
    assert json.loads(verified.stdout) == {"host": "h0", "verb": "verify", "differences": []}
    # The address is another host's, and so is nothing here.
    refused = network("--apply", "--host", "h1", "-o", str(tmp_path / "out"))
    assert refused.returncode == 2
    assert "error: host 'h1': apply.sh failed: interface eth0: must have the address 10.77.0.2" in (
        refused.stderr
    )
    assert network("--verify", "--host", "h0").returncode == 0
    assert network("--undo", "--host", "h0").returncode == 0
    shown = subprocess.run([*space, "tc", "qdisc"], capture_output=True, text=True, check=True)
    assert "htb" not in shown.stdout


def test_an_unknown_host_is_refused(space: list[str], plan: Path) -> None:
    assert space
    assert "host 'x': the plan configures no such host, only h0, h1, h2" in refusal(
        "network", plan, "--emit", "tc", "--verify", "--host", "x"
    )
