"""Ranks on several hosts, started as `run --commands` says, by real torchrun processes."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

import torch
from emulated_hosts import Hosts, Names, emulated, hosts_of, needs_namespaces
from forked import start_forked
from places import FACTORIES, Place, save_plan, saved_steps
from small_models import Language
from small_plans import data_plan, pipeline_plan

from meshwright.cluster.cluster import Cluster
from meshwright.execute.launch import find_free_port
from meshwright.export.launch.command import launch_commands
from meshwright.graph.graph import Graph
from meshwright.network.testbed import apply as testbed_apply
from meshwright.plan.plan import Plan, ScheduleKind
from slurm import play_srun, seen_by_task
from waiting import wait_until


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


def finish(started: Mapping[str, "subprocess.Popen[str]"]) -> dict[str, tuple[int, str, list[str]]]:
    """Of each: exit code, standard output, and the lines that are ours."""
    found = {}
    for host, process in started.items():
        out, said = process.communicate(timeout=400)
        print(said)  # pytest shows it where the test fails
        ours = [line for line in said.splitlines() if line.startswith("meshwright: ")]
        found[host] = process.returncode, out, ours
    return found


def degrees(graph: Graph, cluster: Cluster) -> Plan:
    """Tensor parallelism in hosts of two devices, data parallelism between them."""
    return Plan.from_degrees(graph, cluster, tensor=2)


def backwards(graph: Graph, cluster: Cluster) -> Plan:
    """A stage a device, the first one on the last device."""
    count = cluster.num_devices
    plan = pipeline_plan(graph, count, count, ScheduleKind.ONE_F_ONE_B, 4)
    turned = {f"d{place}": f"d{count - 1 - place}" for place in range(count)}
    parts = (replace(part, devices=tuple(turned[d] for d in part.devices)) for part in plan.parts)
    return on_hosts(replace(plan, parts=tuple(parts)), cluster)


def shared_unequally(graph: Graph, cluster: Cluster) -> Plan:
    return on_hosts(data_plan(graph, 4, (1 / 8, 3 / 8, 1 / 4, 1 / 4)), cluster)


Make = Callable[[Graph, Cluster], Plan]


@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "counts", "order", "names"),
    [
        (shared_unequally, MIXED, ["mid", "alpha", "zeta"], "own"),
        (backwards, MIXED, ["alpha", "zeta", "mid"], "unknown"),
        (degrees, {"zeta": 2, "alpha": 2}, ["alpha", "zeta"], "unknown"),
    ],
)
def test_torchrun_on_hosts_trains_as_one_process(
    step: Step, folder: Path, make: Make, counts: dict[str, int], order: list[str], names: Names
) -> None:
    cluster = hosts_of(**counts)
    save_plan(folder / "plan", step.graph, cluster, make(step.graph, cluster))
    with emulated(cluster, folder, names) as hosts:
        found = finish(hosts.start_lines(lines_for(hosts, cluster, [*TRAIN, "4"]), order))
    assert {host: code for host, (code, _, _) in found.items()} == dict.fromkeys(order, 0), found
    assert [host for host, (_, out, _) in found.items() if out] == ["zeta"]  # has the first rank
    assert json.loads(found["zeta"][1])["losses"] == pytest.approx(step.losses[:4], rel=1e-5)


SCRIPT = """
import socket, sys, torch
import meshwright as mw
from factories import train

torch.manual_seed(0)
model, batch = train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
plan = mw.Plan.load("plan/plan.json")
with mw.training(plan, "plan/cluster.yaml", model, batch, optimizer=optimizer) as trainer:
    for _ in range(int(sys.argv[1])):
        trainer.step(*batch)
    losses = trainer.losses()
held = "words.weight" in trainer.trainer.state, "head.weight" in trainer.trainer.state
print([socket.gethostname(), *held, losses])
"""


def plain_losses(steps: int) -> list[float]:
    """Those of the script without a plan."""
    torch.manual_seed(0)
    model, batch = Language(is_tied=False), (torch.randint(0, 40, (16, 6)),)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().item())
    return losses


def numbered_by_rendezvous(lines: str) -> str:
    """The same by torchrun's other way to meet, which numbers hosts as it likes."""
    return re.sub(
        r"--node-rank \d+ (.*)--master-addr (\S+) --master-port (\S+)",
        r"\1--rdzv-backend c10d --rdzv-id run --rdzv-endpoint \2:\3",
        lines,
    )


@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize("way", [str, numbered_by_rendezvous])
def test_scripts_compute_on_each_host_what_the_plan_has_there(
    step: Step, folder: Path, way: Callable[[str], str]
) -> None:
    cluster = hosts_of(**PAIR)
    save_plan(folder / "plan", step.graph, cluster, backwards(step.graph, cluster))
    (folder / "train.py").write_text(SCRIPT)
    with emulated(cluster, folder, "own") as hosts:
        lines = way("\n".join(launch_commands(cluster, range(2), ["train.py", "3"])))
        found = finish(hosts.start_lines(lines, ["alpha", "zeta"]))
    assert [code for code, _, _ in found.values()] == [0, 0], found
    # The first stage, with the embedding, is on the last device.
    expected = pytest.approx(plain_losses(3), rel=1e-5)
    for host, has_words in (("alpha", True), ("zeta", False)):
        assert ast.literal_eval(found[host][1]) == [host, has_words, not has_words, expected]


def start_long(
    hosts: Hosts, cluster: Cluster, folder: Path, restarts: int = 0
) -> dict[str, "subprocess.Popen[str]"]:
    """Torchrun on all hosts, in training that has kept a checkpoint and will not end by itself."""
    keeping = [*TRAIN, "1000000", "--checkpoint", "kept", "--every", "20"]
    lines = lines_for(hosts, cluster, keeping, restarts=restarts)
    started = hosts.start_lines(lines, ["alpha", "zeta"])
    wait_until(lambda: saved_steps(folder / "kept"))
    return started


@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "other", "line"),
    [
        ("alpha", "zeta", "rank 1 (alpha.0) has gone without a word: killed, or the host is lost"),
        (
            "zeta",
            "alpha",
            "the store at zeta:29500 is gone, and with it the process that served it",
        ),
    ],
)
def test_a_killed_torchrun_ends_all_and_is_named(
    step: Step, folder: Path, host: str, other: str, line: str
) -> None:
    cluster = hosts_of(**PAIR)
    save_plan(folder / "plan", step.graph, cluster, on_hosts(data_plan(step.graph, 2), cluster))
    with emulated(cluster, folder, "own") as hosts:
        started = start_long(hosts, cluster, folder)
        started[host].kill()  # the very process: the others of its host die with it
        found = finish(started)
        assert testbed_apply._processes_inside(hosts.testbed.namespaces) == []
    assert (found[host][0], found[other][0]) == (-signal.SIGKILL, 1)
    (said,) = found[other][2]
    assert said.startswith(f"meshwright: error: {line}")


@needs_namespaces
@pytest.mark.slow
def test_a_run_stopped_on_one_host_goes_on_under_slurm(step: Step, folder: Path) -> None:
    cluster = hosts_of(**PAIR)
    save_plan(folder / "plan", step.graph, cluster, on_hosts(data_plan(step.graph, 2), cluster))
    with emulated(cluster, folder, "own") as hosts:
        # The torchrun of the other host was not asked, and might start its rank again.
        started = start_long(hosts, cluster, folder, restarts=2)
        started["alpha"].send_signal(signal.SIGTERM)
        found = finish(started)
        last = saved_steps(folder / "kept")[-1]
        stopped = f"meshwright: stopped after step {last}, with a checkpoint to go on from"
        assert found["zeta"][2] == [stopped]
        assert {code for code, _, _ in found.values()} == {1}  # torchrun's, whatever its ranks'
        words = [*TRAIN, str(last + 3), "--checkpoint", "kept"]
        line = lines_for(hosts, cluster, words).splitlines()[-1]
        tasks = {host: hosts.start(host, argv, given) for host, argv, given in play_srun(line)}
        found = finish(tasks)
    assert [code for code, _, _ in found.values()] == [0, 0], found
    assert f"meshwright: resuming after step {last}" in found["zeta"][2]
    report = json.loads(found["zeta"][1])
    assert (report["first_step"], len(report["losses"])) == (last, last + 3)
    assert report["losses"][:6] == pytest.approx(step.losses, rel=1e-5)
