"""`meshwright plan` with teams: what is shown and written, limits and engines."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Result, refusal, run

from meshwright import api
from meshwright.cli import plan as plan_command
from meshwright.cluster.catalogue import load_cluster
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.answer import Answer, RunnerUp, Stop
from meshwright.plan.facts import StageFacts
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind
from meshwright.report.hybrid_facts import (
    hybrid_facts,
    name_devices,
    word_binding,
)

MODEL = "gpt:hidden=128,heads=4,layers=2,sequence=64,vocabulary=512,batch=8"
CLUSTER = "h100-x4"
LIMITS = ("--tensor", "2", "--context", "1", "--zero", "1", "--recompute", "full")
FILES = [
    "answer.json", "cluster.yaml", "graph.json.gz", "plan.html", "plan.json", "trace.json",
]  # fmt: skip


def plan_small(*options: object, budget: float = 2) -> Result:
    words = ("plan", MODEL, "--cluster", CLUSTER, "--method", "hybrid", "--budget", budget)
    return run(*words, *options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with teams of two, ZeRO and recomputation, as written."""
    folder = tmp_path_factory.mktemp("hybrid") / "out"
    assert plan_small("-o", folder, *LIMITS, "--schedule", "1f1b", "--json").code == 0
    return folder


def small_plan(graph: Graph) -> Plan:
    """Two stages of two teams of two on eight devices; the first recomputes and shards."""
    halves: list[list[str]] = [[], []]
    for name, layer in zip(graph.op_names, find_layers(graph).layer_of_op.tolist(), strict=True):
        halves[layer > 1].append(name)
    options: list[dict[str, Any]] = [{"zero": 1, "recompute": Recompute.FULL}, {"sequence": True}]
    parts = tuple(
        Part(
            ops=tuple(ops),
            devices=tuple(f"host0.{4 * k + i}" for i in range(4)),
            tensor=2,
            **options[k],
        )
        for k, ops in enumerate(halves)
    )
    return Plan(parts=parts, schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=4))


def stand_in(monkeypatch: pytest.MonkeyPatch, cluster: str = "h100-x8") -> Answer:
    """An answer with a plan of teams and two runner-ups, in the place of a search."""
    graph = api.load_graph(MODEL)
    plan = small_plan(graph)
    step = api.simulate(graph, cluster, plan).step_seconds
    other = RunnerUp(
        plan=plan, step_seconds=1.25 * step, description="tensor 4, pipeline 1, data 2"
    )
    answer = Answer(
        method="hybrid",
        plan=plan,
        step_seconds=step,
        bound_seconds=step / 2,
        stop=Stop.LIMIT,
        runner_ups=(other, replace(other, step_seconds=2 * step)),
        notes=("only hybrid was tried: because",),
    )

    monkeypatch.setattr(plan_command, "recall_or_search", lambda *_, **__: answer)
    return answer


def test_a_screen_has_degrees_use_and_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    result = run("plan", MODEL, "--cluster", "h100-x8")
    assert result.code == 0
    for text in (
        "tokens/s",
        "of the peak (MFU)",
        " tensor 2, pipeline 2, data 2, 1f1b x 4, zero 0-1, recompute full/none",
        "binding ",
        "on the fullest device; nvidia-smi shows ",
        "only hybrid was tried: because",
        "stage 1  ",
        "2 - head; dp2 tp2",
    ):
        assert text in result.out, text
    assert max(map(len, result.out.splitlines())) <= 100
    assert len(result.out.splitlines()) <= 23


def test_text_has_degrees_stages_memory_and_runner_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    result = run("plan", MODEL, "--cluster", "h100-x8", "--verbose")
    assert result.code == 0
    for text in (
        "tokens/s",
        " tensor 2, pipeline 2, data 2, 1f1b x 4, zero 0-1, recompute full/none",
        "4 microbatches, samples of each on a replica 1",
        "of the bf16 peak of 8 devices",
        "binding ",
        "embedding - 1",
        "2 - head",
        "host0.0-host0.3",
        "dp2 tp2",
        "optimiser",
        "tensor 4, pipeline 1",
        "25.00 %",
        "100.00 %",
        "only hybrid was tried: because",
        "stage 1  ",
        "critical path",
    ):
        assert text in result.out, text
    assert max(map(len, result.out.splitlines())) <= 100


def test_json_has_the_same_in_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = stand_in(monkeypatch)
    document = run("plan", MODEL, "--cluster", "h100-x8", "--json").json
    facts = document["hybrid"]
    assert document["notes"] == list(answer.notes)
    assert [each["step_seconds"] for each in document["runner_ups"]] == pytest.approx(
        [1.25 * answer.step_seconds, 2 * answer.step_seconds]
    )
    assert facts["samples_per_second"] == pytest.approx(8 / answer.step_seconds)
    assert facts["tokens_per_second"] == pytest.approx(64 * 8 / answer.step_seconds)
    assert 0 < facts["mfu"] < 1
    first, second = facts["stages"]
    assert (first["tensor"], first["zero"], first["recompute"]) == (2, 1, "full")
    assert (second["sequence"], second["replicas"], second["num_devices"]) == (True, 2, 4)
    assert first["devices"] == "host0.0-host0.3 (4 devices)"
    assert (first["layers"], first["num_layers"]) == (["embedding", "layer 1"], 2)
    for stage in facts["stages"]:
        assert stage["microbatch_samples"] == 1
        assert sum(stage["memory_bytes"].values()) == pytest.approx(stage["peak_bytes"])
        assert 0 < stage["peak_bytes"] <= stage["usable_bytes"]
        assert 0 < stage["forward_collective_seconds"] < stage["forward_seconds"]
        assert 0 < stage["busy"] <= 1


def test_mfu_is_model_flops_over_all_devices_at_peak() -> None:
    graph, cluster = api.load_graph(MODEL), load_cluster("h100-x8")
    plan = small_plan(graph)
    timeline = api.simulate(graph, cluster, plan, granularity="part")
    facts = hybrid_facts(graph, cluster, plan, timeline)
    assert facts is not None
    peak = cluster.types["h100"].peak_flops_per_second("bf16")
    assert facts.mfu == pytest.approx(facts.model_flops / (timeline.step_seconds * 8 * peak))
    # Products alone make up nearly all FLOPs of forward and backward, whatever the teams do.
    assert facts.model_flops == pytest.approx(graph.flops.sum(), rel=0.1)


def test_a_search_writes_a_plan_that_simulates_alike(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == FILES
    answer = json.loads((folder / "answer.json").read_text())
    words = ("simulate", folder / "graph.json.gz", "--cluster", folder / "cluster.yaml")
    again = run(*words, "--plan", folder / "plan.json", "--json").json
    assert again["step_seconds"] == pytest.approx(answer["step_seconds"])
    assert again["fits"] is True
    assert "peak memory" in run(*words, "--plan", folder / "plan.json").out
    by_layer = run(*words, "--plan", folder / "plan.json", "--granularity", "layer", "--json").json
    assert again["step_seconds"] == pytest.approx(by_layer["step_seconds"], rel=0.1)


def test_options_limit_what_is_searched(folder: Path) -> None:
    plan = Plan.load(folder / "plan.json")
    for part in plan.parts:
        assert (part.tensor, part.context, part.zero) == (2, 1, 1)
        assert part.recompute is Recompute.FULL
    assert plan.schedule is None or plan.schedule.kind is ScheduleKind.ONE_F_ONE_B


@pytest.mark.parametrize("engine", ["one", "local", pytest.param("ray", marks=pytest.mark.slow)])
def test_engines_find_the_same_plan(engine: str, folder: Path, tmp_path: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'meshwright[ray]'")
    options = ("-o", tmp_path / "out", *LIMITS, "--schedule", "1f1b", "--engine", engine, "--json")
    assert plan_small(*options, budget=20).code == 0
    assert Plan.load(tmp_path / "out" / "plan.json") == Plan.load(folder / "plan.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tensor", "0"), "argument --tensor: must be a whole number from 1, got '0'"),
        (("--tensor", "1,,2"), "argument --tensor: must be a whole number from 1, got ''"),
        (
            ("--zero", "4"),
            "argument --zero: must be some of 0, 1, 2, 3, with commas between them, got '4'",
        ),
        (
            ("--keys", "rings"),
            "argument --keys: must be some of gathered, ring, with commas between them, "
            "got 'rings'",
        ),
        (
            ("--recompute", "none,some"),
            "argument --recompute: must be some of none, selective, full, with commas between "
            "them, got 'some'",
        ),
        (
            ("--schedule", "1f2b"),
            "argument --schedule: must be some of gpipe, 1f1b, interleaved-1f1b, zero-bubble, "
            "with commas between them, got '1f2b'",
        ),
        (("--engine", "two"), "engine: must be one of local, one, ray, ray:ADDRESS, got 'two'"),
    ],
)
def test_bad_limits_are_one_line(options: tuple[str, ...], message: str) -> None:
    found = refusal("plan", MODEL, "--cluster", CLUSTER, *options)
    assert found.removesuffix(" (see `meshwright plan --help`)") == message


def test_limits_and_ray_are_for_hybrid_only() -> None:
    words = ("plan", "mlp", "--cluster", "v100-32-x2", "--method", "data")
    message = "must be hybrid or auto, got 'data'"
    assert refusal(*words, "--tensor", "2") == f"--tensor: the method {message}"
    assert refusal(*words, "--engine", "ray") == f"--engine ray: the method {message}"


def test_a_ray_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'meshwright[ray]'")
    words = ("plan", MODEL, "--cluster", CLUSTER, "--method", "hybrid", "--engine")
    message = "engine ray: '127.0.0.1:9' does not answer: Connection refused"
    assert refusal(*words, "ray:127.0.0.1:9") == message
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert refusal(*words, "ray") == message


def test_what_cannot_fit_is_code_3_with_what_would_do() -> None:
    words = ("--cluster", "1080ti-x2", "--method", "hybrid", "--budget", 5)
    result = run("plan", "gpt:hidden=4096,heads=32,layers=24,sequence=64,batch=4", *words)
    assert (result.code, result.out) == (3, "")
    lines = [line for line in result.err.splitlines() if "no plan fits" in line]
    assert len(lines) == 1
    assert "would do" in lines[0]


def test_whole_hosts_and_runs_are_named() -> None:
    cluster = load_cluster("h100-x4x3")
    names = [device.name for device in cluster.devices]
    assert name_devices(cluster, names) == "host0-host2 (12 devices)"
    assert name_devices(cluster, names[4:8]) == "host1 (4 devices)"
    assert name_devices(cluster, names[5:9]) == "host1.1-host2.0 (4 devices)"
    assert name_devices(cluster, names[3:4]) == "host0.3 (1 device)"
    assert name_devices(cluster, [names[k] for k in (9, 0, 8, 2)]) == (
        "host0.0, host0.2, host2.0-host2.1 (4 devices)"
    )
    assert name_devices(cluster, names[::2]) == (
        "host0.0, host0.2, host1.0, ... 3 more ranges (6 devices)"
    )


def test_the_busiest_stage_and_full_memory_bind() -> None:
    graph = api.load_graph(MODEL)
    plan = small_plan(graph)
    timeline = api.simulate(graph, "h100-x8", plan, granularity="part")
    stage = StageFacts(
        layers=("embedding", "layer 1"),
        num_layers=2,
        part=plan.parts[0],
        devices="host0.0-host0.3 (4 devices)",
        samples=1.0,
        forward_seconds=1.0,
        backward_seconds=2.0,
        forward_call_seconds=0.2,
        backward_call_seconds=0.4,
        busy=0.5,
        calling=0.1,
        memory={"parameters": 95.0},
        beside={},
        usable_bytes=100.0,
        memory_bytes=105.0,
    )
    busy = replace(stage, part=plan.parts[1], busy=0.9, calling=0.5)
    text = word_binding((stage, busy), timeline)
    assert text.startswith("collectives of stage 1 50 %, compute of stage 1 40 %, ")
    assert text.endswith("; memory makes stage 0 recompute")
    assert math.isclose(busy.peak_bytes, 95.0)
