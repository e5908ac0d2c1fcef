"""Plans run over real networks of this machine, on hosts with two interfaces (root)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from rails import rails_cluster

from meshwright.cli.start import rank_commands
from meshwright.errors import InputError
from meshwright.network.testbed import apply as testbed_apply
from meshwright.plan.plan import Allocation, Part, Plan
from meshwright.simulate.measured import Run
from meshwright.simulate.simulate import simulate
from small import dag, layers, stages
from waiting import wait_until

NAME = f"way{os.getpid():x}"
"""Of this process alone: tests run side by side."""
RATE = 200e6 / 8
NUM_BYTES = 4 * 2**20


def _missing(kind: Literal["tc", "ovs"] = "tc") -> str:
    """What this machine lacks to build a testbed; empty if nothing."""
    try:
        testbed_apply.check_machine(kind)
        subprocess.run(["unshare", "--net", "true"], check=True, capture_output=True, timeout=10)
    except (InputError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


_REASON = _missing()
needs_namespaces = pytest.mark.skipif(bool(_REASON), reason=f"cannot build: {_REASON}")
_SWITCH_REASON = _missing("ovs")
needs_switch = pytest.mark.skipif(bool(_SWITCH_REASON), reason=f"cannot build: {_SWITCH_REASON}")


@pytest.fixture(autouse=True)
def _taken_down() -> Iterator[None]:
    yield
    if not _REASON:
        assert testbed_apply.remove(NAME) == (), "nothing is left of a testbed"


def write_plan(folder: Path, allocations: tuple[Allocation, ...]) -> float:
    """One transfer between two hosts; how long it is predicted to take."""
    graph = dag([0.01, 0.01], {(0, 1): NUM_BYTES})
    cluster = rails_cluster(2, (RATE, RATE))
    parts = (Part(ops=("o0",), devices=("d0",)), Part(ops=("o1",), devices=("d1",)))
    plan = Plan(parts=parts, allocations=allocations)
    folder.mkdir()
    plan.save(folder / "plan.json")
    graph.save(folder / "graph.json.gz")
    cluster.save(folder / "cluster.yaml")
    return simulate(graph, cluster, plan).step_seconds - 0.02


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "meshwright", *words, "--testbed", "--name", NAME]


def run(folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        command("run", "plan", "--emulate", "--steps", "6", "--json", "-o", "ran", *words),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def transfer_seconds(folder: Path) -> float:
    """Of a step that was timed: from when the tensor was ready to when its reader began."""
    ran = Run.load(folder / "ran" / "run.json.gz")
    first, last = min(ran.finish), max(ran.start)  # of the two ops
    return float(last - first)


@needs_namespaces
@pytest.mark.parametrize(
    "network", ["tc", pytest.param("ovs", marks=[needs_switch, pytest.mark.slow])]
)
def test_a_transfer_over_two_interfaces_takes_its_predicted_time(
    tmp_path: Path, network: str
) -> None:
    # 1.5 links' rate, two thirds of it on the first: 4 MiB in 112 ms, on one link 168 ms.
    allocation = Allocation(
        source="h0", target="h1", bytes_per_second=1.5 * RATE, shares=(2 / 3, 1 / 3)
    )
    predicted = write_plan(tmp_path / "plan", (allocation,))
    assert predicted == pytest.approx(NUM_BYTES / RATE / 1.5, rel=1e-6)
    document = run(tmp_path, "--network", network)
    assert document["ranks"] == 2
    # Other work on this machine may delay it; nothing makes it faster.
    assert 0.97 * predicted < document["step_seconds"] - 0.02 < 1.25 * predicted
    assert 0.97 * predicted < transfer_seconds(tmp_path) < 1.35 * predicted


@needs_namespaces
@pytest.mark.slow
def test_without_allocations_a_transfer_has_one_interface(tmp_path: Path) -> None:
    predicted = write_plan(tmp_path / "plan", ())
    assert predicted == pytest.approx(NUM_BYTES / RATE, rel=1e-6)
    document = run(tmp_path)
    assert 0.97 * predicted < document["step_seconds"] - 0.02 < 1.25 * predicted


@needs_namespaces
@pytest.mark.slow
def test_a_signal_takes_ranks_and_testbed_down(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan", ())
    process = subprocess.Popen(
        command("run", "plan", "--emulate", "--steps", "100000"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(_namespaces)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors == "meshwright: interrupted\n"
    assert _namespaces() == []


def _namespaces() -> list[str]:
    return [each for each in os.listdir(testbed_apply.NAMESPACE_FOLDER) if f"-{NAME}-" in each]


def test_within_a_testbed_no_other_is_built(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan", ())
    done = subprocess.run(
        command("run", "plan", "--emulate"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        env={**os.environ, "MESHWRIGHT_TESTBED": "outer"},
    )
    assert done.returncode == 2
    assert done.stderr == "meshwright: error: --testbed: this runs in testbed 'outer' already\n"


def test_on_the_loopback_ranks_are_told_of_no_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo9")
    assert rank_commands(["h 0", "h1"], None) == [
        ["env", "MESHWRIGHT_HOST=h 0", "GLOO_SOCKET_IFNAME=lo9", "MESHWRIGHT_INTERFACES="],
        ["env", "MESHWRIGHT_HOST=h1", "GLOO_SOCKET_IFNAME=lo9", "MESHWRIGHT_INTERFACES="],
    ]


@needs_namespaces
@pytest.mark.slow
def test_pipelines_with_and_without_shares_run_in_a_testbed(tmp_path: Path) -> None:
    graph = layers(2, forward=0.08, backward=0.08, activation=4e6, batch=4)
    plan = stages(graph, [["d0"], ["d1"]], "1f1b", 4)
    cluster = rails_cluster(2, (RATE, RATE))
    both = tuple(
        Allocation(source=one, target=other, bytes_per_second=2 * RATE, shares=(0.5, 0.5))
        for one, other in (("h0", "h1"), ("h1", "h0"))
    )
    (tmp_path / "plan").mkdir()
    graph.save(tmp_path / "plan" / "graph.json.gz")
    cluster.save(tmp_path / "plan" / "cluster.yaml")
    for allocations in ((), both):
        Plan(parts=plan.parts, schedule=plan.schedule, allocations=allocations).save(
            tmp_path / "plan" / "plan.json"
        )
        document = run(tmp_path)
        predicted = document["predicted_seconds"]
        assert 0.97 * predicted < document["step_seconds"] < 1.2 * predicted
