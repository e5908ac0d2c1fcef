"""Exports of plans: files, the page beside them, and what cannot be exported."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.export.page import PAGE_FILE
from meshwright.export.write import export_plan, write_files
from meshwright.plan.plan import place_ops
from meshwright.plan.request import Request

MODEL = "llama:hidden=64,heads=8,layers=4,sequence=64,intermediate=128,vocabulary=512,batch=16"


def request_of(cluster: str = "h100-x4") -> Request:
    return Request(graph=mw.load_graph(MODEL), cluster=mw.cluster(cluster))


def test_an_answer_is_exported_with_a_page(tmp_path: Path) -> None:
    answer = mw.plan(MODEL, "h100-x4", method="data", budget_seconds=1)
    exported = mw.export(answer, "deepspeed", tmp_path / "out")
    assert exported.left_out == ()
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        PAGE_FILE, "deepspeed.json", "launch",
    ]  # fmt: skip
    page = (tmp_path / "out" / PAGE_FILE).read_text()
    assert "Everything that the plan says is in these files." in page
    assert max(map(len, page.splitlines())) <= 100


PROGRAMS = ("torchrun", "accelerate", "python")
SAY = '#!/bin/bash\necho "$RANK|$CUDA_VISIBLE_DEVICES|$(basename "$0") $*"\n'
TRAINED = {
    "torchtitan": "-m torchtitan.train --module torchtitan_0_3 --config train",
    "megatron": "pretrain_gpt.py --num-layers 4",
    "deepspeed": "train.py --deepspeed --deepspeed_config deepspeed.json",
    "accelerate": "train.py",
}
PLANS = (
    {"tensor": 2, "pipeline": 2, "microbatches": 4},
    {"data": 8, "zero": 3},
)


def start(folder: Path, *words: str, **variables: str) -> list[list[str]]:
    """What is started by a launch file: the rank, the visible devices, and the command."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (tools / name).write_text(SAY)
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["bash", *words], env={"PATH": f"{tools}:{os.environ['PATH']}", **variables}, cwd=folder,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [line.split("|") for line in done.stdout.splitlines()]


def read_ranks(folder: Path) -> list[tuple[str, str, str]]:
    """By rank its host, the number of its device there, and the device."""
    lines = (folder / "launch" / "ranks.txt").read_text().splitlines()[1:]
    return [(host, index, name) for _, host, index, name in map(str.split, lines)]


@pytest.mark.parametrize("words", PLANS, ids=str)
@pytest.mark.parametrize("target", TRAINED)
def test_every_program_is_started_on_the_devices_of_its_plan(
    tmp_path: Path, target: str, words: dict[str, int]
) -> None:
    request = request_of("h100-x4x2")
    plan = mw.Plan.from_degrees(request.graph, request.cluster, **words)
    exported = export_plan(request, plan, target)
    write_files(exported, tmp_path)
    ranks = read_ranks(tmp_path)
    assert exported.plan is not None
    devices = [device for part in exported.plan.parts for device in part.devices]
    assert [name for _, _, name in ranks] == list(dict.fromkeys(devices))
    for number, host in enumerate(dict.fromkeys(host for host, _, _ in ranks)):
        ((_, visible, command),) = start(tmp_path, "launch/torchrun.sh", host)
        assert visible.split(",") == [index for each, index, _ in ranks if each == host]
        assert TRAINED[target] in command
        order = "--machine_rank" if target == "accelerate" else "--node-rank"
        assert f"{order} {number}" in command


@pytest.mark.parametrize("target", ["torchtitan", "megatron", "deepspeed"])
def test_slurm_starts_the_same_command_as_every_rank(tmp_path: Path, target: str) -> None:
    request = request_of("h100-x4x2")
    plan = mw.Plan.from_degrees(request.graph, request.cluster, pipeline=2, microbatches=4)
    write_files(export_plan(request, plan, target), tmp_path)
    (line,) = [
        each for each in (tmp_path / "launch" / "slurm.sbatch").read_text().splitlines()
        if each.startswith("srun ")
    ]  # fmt: skip
    for rank, (host, index, _) in enumerate(read_ranks(tmp_path)):
        local = {"SLURMD_NODENAME": host, "SLURM_LOCALID": index}
        ((own, visible, command),) = start(tmp_path, "-c", line.removeprefix("srun "), **local)
        assert (own, visible) == (str(rank), "0,1,2,3")
        assert command.startswith("python ")
        assert TRAINED[target] in command


def test_pipelines_of_replicas_far_apart_keep_a_replica_together(tmp_path: Path) -> None:
    """Megatron-LM's --use-tp-pp-dp-mapping numbers the stages of a replica one after the other."""
    request = request_of("h100-x4x2")
    words = {"tensor": 2, "pipeline": 2, "data": 2, "pods": 2, "microbatches": 4}
    plan = mw.Plan.from_degrees(request.graph, request.cluster, **words)
    exported = export_plan(request, plan, "megatron")
    write_files(exported, tmp_path)
    assert "--use-tp-pp-dp-mapping" in (tmp_path / "megatron.sh").read_text()
    stages = [part.devices for part in plan.parts]
    assert [name for _, _, name in read_ranks(tmp_path)] == [
        *stages[0][:2], *stages[1][:2], *stages[0][2:], *stages[1][2:]
    ]  # fmt: skip


def test_unlike_hosts_have_no_words_in_accelerate() -> None:
    request = request_of("mixed-s3")
    count = request.cluster.num_devices
    sized = replace(request, graph=request.graph.at_batch(2 * count))
    plan = mw.Plan.from_degrees(sized.graph, sized.cluster, data=count)
    sizes = {each.host: 0 for each in sized.cluster.devices}
    assert len(sizes) > 1
    exported = export_plan(sized, plan, "accelerate")
    assert not any(name.startswith("launch/") for name in exported.files)
    assert any(each.startswith("launch files:") for each in exported.left_out)


def test_the_page_prices_what_is_left_out() -> None:
    request = request_of()
    words = {"pipeline": 2, "microbatches": 4, "layers": (2, 4), "schedule": "gpipe"}
    plan = mw.Plan.from_degrees(request.graph, request.cluster, **words)
    exported = export_plan(request, plan, "deepspeed")
    assert exported.left_out == (
        "schedule gpipe: stages run 1f1b",
        "layers by stage, 1, 3: 2, 2, as many in each",
    )
    assert exported.plan is not None
    assert exported.plan.degrees(request.graph, request.cluster).layers == ()  # type: ignore[union-attr]


def test_unlike_stages_get_the_fastest_degrees_of_one_of_them() -> None:
    request = request_of()
    plan = mw.Plan.from_degrees(request.graph, request.cluster, pipeline=2, microbatches=2)
    full = mw.Plan.from_degrees(
        request.graph, request.cluster, pipeline=2, microbatches=2, recompute="full"
    )
    mixed = mw.Plan(parts=(full.parts[0], plan.parts[1]), schedule=plan.schedule)
    exported = export_plan(request, mixed, "megatron")
    assert exported.left_out == ("stages that differ in recompute: all have recompute none",)
    assert exported.plan is not None
    assert exported.plan.parts == plan.parts  # what is not computed again is faster, and fits


def test_placements_cannot_be_exported() -> None:
    request = request_of()
    names = request.graph.op_names
    plan = place_ops(names, [0] * (len(names) - 1) + [1], ["host0.0", "host0.1"])
    with pytest.raises(InputError, match="places single ops or unequal replicas"):
        export_plan(request, plan, "megatron")


def test_gpipe_of_several_stages_a_device_ends_under_runtimes_that_wait() -> None:
    request = request_of()
    plan = mw.Plan.from_degrees(
        request.graph, request.cluster, pipeline=2, chunks=2, microbatches=4, schedule="gpipe"
    )
    steps = [
        mw.simulate(request.graph, request.cluster, plan, runtime=runtime).step_seconds
        for runtime in ("meshwright", "torchtitan")
    ]
    assert steps[1] >= steps[0] > 0
