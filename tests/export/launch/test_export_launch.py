"""Launch files, parsed back and run: every rank is where the plan has it."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from meshwright.cluster.cluster import Cluster
from meshwright.export.launch.file import (
    job_name,
    python_start,
    rank_file,
    slurm_batch,
    slurm_rank_script,
    torchrun_script,
    train_job,
    write_launch,
)
from meshwright.export.launch.place import find_runs, order_devices, place_ranks
from meshwright.plan.part import Part, Sync
from meshwright.plan.plan import Plan
from small import connected

WORDS = ["train.py", "--text", "two words"]
START = python_start(*WORDS)
A, B, C, D, E = (device.name for device in connected(5).devices)
"""Three devices of host h0 and two of host h1."""
EQUAL = [A, B, D, E]
SHUFFLED = [B, A, E, D]
CROSSED = [A, D, B, E]
UNEQUAL = [C, A, E]


def cluster() -> Cluster:
    made = connected(5)
    hosts = ("h0", "h0", "h0", "h1", "h1")
    pairs = zip(made.devices, hosts, strict=True)
    return replace(made, devices=tuple(replace(each, host=host) for each, host in pairs))


def plan(devices: list[str], sync: Sync = Sync.ALL_REDUCE) -> Plan:
    return Plan(parts=(Part(ops=("op",), devices=tuple(devices), sync=sync),))


def started(tmp_path: Path, script: str, host: str) -> list[tuple[str, ...]]:
    """What torchrun is called with on one host: its variables and options."""
    tool = tmp_path / "bin" / "torchrun"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text('#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES|$2|$4|$6|$8|${10}|${13}"\n')
    tool.chmod(0o755)
    file = tmp_path / "torchrun.sh"
    file.write_text(script)
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    path = f"{tool.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(file), host],
        env={"PATH": path}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return sorted(tuple(line.split("|")) for line in done.stdout.splitlines())


def slurm_ranks(tmp_path: Path, script: str, host: str, tasks: int) -> list[str]:
    """What each task of a host runs as: its rank and the number of its device there."""
    file = tmp_path / "slurm-rank.sh"
    file.write_text(script)
    found = []
    for local in range(tasks):
        words = ["bash", str(file), "bash", "-c", 'echo "$RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"']
        env = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": host, "SLURM_LOCALID": str(local)}
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=60, check=True
        )
        if done.stdout:
            rank, own, visible = done.stdout.split()
            found.append(f"{rank} {host} {visible.split(',')[int(own)]}")
    return found


def test_runs_of_ranks_end_where_the_host_changes() -> None:
    # Ranks 0 and 1 are on h0; crossed, no two neighbours share a host.
    assert [len(run) for run in find_runs(place_ranks(cluster(), SHUFFLED))] == [2, 2]
    assert [len(run) for run in find_runs(place_ranks(cluster(), CROSSED))] == [1, 1, 1, 1]


def test_devices_follow_members_then_replicas_then_stages() -> None:
    first = Part(ops=("a",), devices=(D, B))
    second = Part(ops=("b",), devices=(A,))
    assert order_devices(Plan(parts=(first, second, first))) == (D, B, A)


def test_a_host_has_an_agent_for_each_run_of_its_ranks(tmp_path: Path) -> None:
    script = torchrun_script(cluster(), plan(CROSSED), place_ranks(cluster(), CROSSED), START)
    # Agents 0 and 2 of four, one rank each, on h0's devices 0 and 1.
    assert started(tmp_path, script, "h0") == [
        ("0", "4", "0", "1", "h0", "29500", "two words"),
        ("1", "4", "2", "1", "h0", "29500", "two words"),
    ]


def test_the_order_of_devices_is_the_plans(tmp_path: Path) -> None:
    script = torchrun_script(cluster(), plan(SHUFFLED), place_ranks(cluster(), SHUFFLED), START)
    assert started(tmp_path, script, "h1") == [("1,0", "2", "1", "2", "h0", "29500", "two words")]


def test_another_host_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "torchrun.sh"
    places = place_ranks(cluster(), EQUAL)
    file.write_text(torchrun_script(cluster(), plan(EQUAL), places, START))
    done = subprocess.run(
        ["bash", str(file), "h7"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (2, "no rank runs on host h7\n")


@pytest.mark.parametrize("devices", [EQUAL, SHUFFLED, CROSSED, UNEQUAL])
def test_slurm_gives_every_rank_the_device_of_the_rank_file(
    tmp_path: Path, devices: list[str]
) -> None:
    places = place_ranks(cluster(), devices)
    script = slurm_rank_script(cluster(), plan(devices), places)
    found = slurm_ranks(tmp_path, script, "h0", 2) + slurm_ranks(tmp_path, script, "h1", 2)
    lines = [line.split()[:3] for line in rank_file(places).splitlines()[1:]]
    assert sorted(found) == sorted(" ".join(line) for line in lines)


def test_a_batch_file_asks_for_the_hosts_and_the_most_ranks_of_one() -> None:
    text = slurm_batch("my model", place_ranks(cluster(), UNEQUAL), START)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --nodelist=h0,h1\n" in text
    assert text.endswith("srun bash launch/slurm-rank.sh python train.py --text 'two words'")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_train_job_has_the_fields_of_kubeflows_definition() -> None:
    devices = plan(SHUFFLED, Sync.RING)
    job = train_job("GPT 2", cluster(), devices, place_ranks(cluster(), SHUFFLED), START)
    assert job is not None
    read = yaml.safe_load(yaml.safe_dump(job))
    assert (read["apiVersion"], read["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert read["metadata"] == {"name": "gpt-2"}
    trainer = read["spec"]["trainer"]
    assert read["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 2)
    assert trainer["command"] == ["torchrun", *WORDS]
    assert trainer["env"] == [
        {"name": "NCCL_ALGO", "value": "Ring"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "1,0"},
    ]


@pytest.mark.parametrize("devices", [CROSSED, UNEQUAL])
def test_pods_are_alike_so_that_unlike_hosts_have_no_manifest(devices: list[str]) -> None:
    assert train_job("m", cluster(), plan(devices), place_ranks(cluster(), devices), START) is None
    files = write_launch("m", cluster(), plan(devices), devices, START)
    assert "launch/trainjob.yaml" not in files


def test_names_of_jobs_are_labels() -> None:
    assert job_name("small:GPT") == "small-gpt"
    assert job_name("7b") == "train-7b"
    assert len(job_name("m" * 90)) == 63


def test_a_ring_and_a_tree_in_one_plan_leave_the_choice_to_nccl() -> None:
    both = Plan(
        parts=(
            Part(ops=("a",), devices=(A, B), sync=Sync.RING),
            Part(ops=("b",), devices=(D, E), sync=Sync.TREE),
        )
    )
    assert "NCCL_ALGO" not in slurm_rank_script(cluster(), both, place_ranks(cluster(), EQUAL))
