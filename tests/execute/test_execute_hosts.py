"""Ranks on several hosts, started as `run --commands` says, by real torchrun processes."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from emulated_hosts import Hosts, Names, emulated, hosts_of
from forked import start_forked
from places import FACTORIES, Place, save_plan
from small_plans import data_plan

from meshwright.cli.commands import launch_commands
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.execute.launch import find_free_port
from meshwright.graph.graph import Graph
from meshwright.network import testbed_apply
from meshwright.plan.plan import Plan
from slurm import play_srun, seen_by_task


@pytest.mark.slow
def test_torchrun_on_two_hosts_trains_as_one_launcher(place: Place) -> None:
    training = ["data", "--model", "factories:train", "--json", "--steps", "4"]
    code, out, said = place.run(*training)
    assert code == 0, said
    code, lines, said = place.run(
        *training, "--commands", "--master", f"127.0.0.1:{find_free_port()}"
    )
    assert code == 0, said
    commands = [shlex.split(line) for line in lines.splitlines() if line.startswith("env ")]
    assert len(commands) == 2
    paths = [str(place.folder), *sys.path]
    # As many threads as ranks of a launcher have, which decides in which order sums are added up.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    processes = [
        subprocess.Popen(
            [part for word in words for part in (torchrun if word == "torchrun" else [word])],
            cwd=place.folder, env=environment, stdout=subprocess.PIPE, text=True,
        )
        for words in reversed(commands)
    ]  # fmt: skip
    said_by = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    (found,) = [each for each in said_by if each]
    assert json.loads(found)["losses"] == json.loads(out)["losses"]


def _missing() -> str:
    """What this machine lacks to play several hosts; empty if nothing."""
    try:
        testbed_apply.check_machine("tc")
        apart = ["unshare", "--net", "--uts", "--mount", "true"]
        subprocess.run(apart, check=True, capture_output=True, timeout=10)
    except (InputError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


_REASON = _missing()
needs_namespaces = pytest.mark.skipif(bool(_REASON), reason=f"cannot build: {_REASON}")

PAIR = {"zeta": 1, "alpha": 1}
MIXED = {"zeta": 2, "alpha": 1, "mid": 1}
TRAIN = ["--model", "factories:train", "--json", "--steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """A model's step, and its losses in one process."""

    graph: Graph
    losses: list[float]


@pytest.fixture(scope="module")
def step(plans: Path) -> Step:
    """The step of the first of the factories."""
    code, out, said = start_forked(["run", "single", *TRAIN, "6"], plans).finish()
    assert code == 0, said
    return Step(Graph.load(plans / "single" / "graph.json.gz"), json.loads(out)["losses"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that all hosts see, with the factories."""
    (tmp_path / "factories.py").write_text(FACTORIES)
    return tmp_path


def on_hosts(plan: Plan, cluster: Cluster) -> Plan:
    """A plan for devices d0, d1, ... on those of a cluster, in their order."""
    names = {f"d{place}": each.name for place, each in enumerate(cluster.devices)}
    parts = (replace(part, devices=tuple(names[d] for d in part.devices)) for part in plan.parts)
    return replace(plan, parts=tuple(parts))


def lines_for(hosts: Hosts, cluster: Cluster, words: Sequence[str], **more: Any) -> str:
    """What `run --commands` prints; hosts without names need an address."""
    more.setdefault("master", hosts.address if hosts.names == "unknown" else "")
    command = ["-m", "meshwright", "run", "plan", *words]
    return "\n".join(launch_commands(cluster, range(cluster.num_devices), command, **more))


@needs_namespaces
@pytest.mark.parametrize("names", ["unknown", "own"])
def test_ranks_find_each_other_whatever_hosts_know_of_names(
    step: Step, folder: Path, names: Names
) -> None:
    # Gloo alone would take the address of the host's name: 127.0.1.1, or none.
    cluster = hosts_of(**PAIR)
    save_plan(folder / "plan", step.graph, cluster, on_hosts(data_plan(step.graph, 2), cluster))
    with emulated(cluster, folder, names) as hosts:
        line = lines_for(hosts, cluster, [*TRAIN, "3"]).splitlines()[-1]
        ranks = [
            hosts.fork(host, ["run", "plan", *TRAIN, "3"], seen_by_task(argv, given))
            for host, argv, given in play_srun(line)
        ]
        found = [each.finish() for each in ranks]
    assert [code for code, _, _ in found] == [0, 0], found
    (out,) = [out for _, out, _ in found if out]
    assert json.loads(out)["losses"] == pytest.approx(step.losses[:3], rel=1e-5)
