"""Piper's search against trying everything, and against what the authors' program found."""

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import event, given, settings
from piper_strategies import Document, as_problem, documents, least_time

from meshwright.plan.answer import Stop
from solver.piper import solve as solving
from solver.piper.enough import explain_misfit, find_enough_memory
from solver.piper.order import (
    keep_abreast,
    order_by_branch,
    order_by_level,
    reorder,
    restore,
)
from solver.piper.problem import find_fault, plan_seconds
from solver.piper.read import read_problem
from solver.piper.solve import Found, solve

GIB = 2**30
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "piper.py"


@pytest.mark.slow
@settings(max_examples=300)
@given(documents())
def test_the_plan_is_as_fast_as_the_best_of_all(document: Document) -> None:
    problem = as_problem(document)
    found = solve(problem)
    expected = least_time(document)
    event("fits" if expected < math.inf else "does not fit")
    assert found.seconds == pytest.approx(expected, rel=1e-9)
    assert found.bound_seconds == found.seconds
    if expected < math.inf:
        assert found.stop is Stop.PROVED
        assert find_fault(problem, found.plan) == ""
        assert plan_seconds(problem, found.plan) == found.seconds
    else:
        assert found.stop is Stop.INFEASIBLE
        assert found.plan == ()


@settings(max_examples=50)
@given(documents())
def test_plans_over_some_upsets_first_change_nothing(document: Document) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "_MANY_UPSETS", 0)
        found = solve(as_problem(document))
    assert found.seconds == pytest.approx(least_time(document), rel=1e-9)
    assert found.bound_seconds == found.seconds


@settings(max_examples=50)
@given(documents())
def test_plans_over_some_upsets_alone_are_plans_and_their_bound_is_one(document: Document) -> None:
    problem = as_problem(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "_MAX_BYTES", 0.0)  # so that no upset can be listed
        found = solve(problem)
    best = least_time(document)
    assert found.stop is Stop.LIMIT
    assert found.bound_seconds <= best * (1 + 1e-9)
    assert found.seconds >= best * (1 - 1e-9)
    if found.plan:
        assert find_fault(problem, found.plan) == ""


@settings(max_examples=50)
@given(documents(most_nodes=4, most_devices=4))
def test_the_memory_that_would_do_does_and_less_does_not(document: Document) -> None:
    problem = as_problem(document)
    if solve(problem).plan:
        return
    if "no way to run" in explain_misfit(problem):
        return
    enough = find_enough_memory(problem)
    assert enough is not None
    if enough == math.inf:
        assert least_time(document | {"maxMemoryPerDevice": 1e9}) == math.inf
        assert "need more than" in explain_misfit(problem)
        return
    assert least_time(document | {"maxMemoryPerDevice": enough}) < math.inf
    assert least_time(document | {"maxMemoryPerDevice": enough * 0.998}) == math.inf


@settings(max_examples=100)
@given(documents(most_nodes=8))
def test_orders_are_topological_and_stages_return_from_them(document: Document) -> None:
    problem = as_problem(document)
    for order in (order_by_level(problem), order_by_branch(problem)):
        assert sorted(order) == [*range(len(problem.nodes))]
        place = {node: number for number, node in enumerate(order)}
        assert all(place[edge.source] < place[edge.target] for edge in problem.edges)
        moved = reorder(problem, order)
        assert solve(moved).seconds == pytest.approx(solve(problem).seconds, rel=1e-9)
        restored = [restore(stage, order) for stage in solve(moved).plan]
        assert not restored or find_fault(problem, restored) == ""


def test_branches_run_side_by_side_or_one_after_the_other() -> None:
    # 0 before 1 and 2, 1 before 3, 2 before 4: two branches of two nodes.
    ids = {"0": ("1", "2"), "1": ("3",), "2": ("4",), "3": (), "4": ()}
    way = {"id": "plain", "timePerSample": 1.0, "parameterSize": 0.0}
    way |= {"memoryUsageA": 0.0, "memoryUsageB": 0.0}
    document = json.loads(BENCH_DOCUMENT)
    document["edges"] = [
        {"sourceId": u, "destId": v, "communicationCost": 0.0} for u in ids for v in ids[u]
    ]
    document["nodes"] = [
        {
            "id": v,
            "TMPCs": {
                "1": [
                    way
                    | {
                        "syncTimeFw": {u: 0.0 for u in ids if v in ids[u]},
                        "syncTimeBw": dict.fromkeys(ids[v], 0.0),
                    }
                ]
            },
        }
        for v in ids
    ]
    problem = as_problem(document)
    assert order_by_level(problem) == [0, 1, 2, 3, 4]
    assert order_by_branch(problem) == [0, 1, 3, 2, 4]
    assert keep_abreast(problem, 1) == [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4)]
    assert keep_abreast(problem, 2) == [(0, 3), (0, 4)]


def test_a_node_without_a_way_is_named() -> None:
    document = json.loads(BENCH_DOCUMENT)
    ways = document["nodes"][1]["TMPCs"]
    ways["4"] = ways.pop("1")
    problem = as_problem(document)
    assert solve(problem).stop is Stop.INFEASIBLE
    assert explain_misfit(problem) == (
        "devices: node b has no way to run on 2 or fewer, it needs 4"
    )
    ways.clear()
    problem = as_problem(document)
    assert solve(problem).stop is Stop.INFEASIBLE
    assert explain_misfit(problem) == "devices: node b has no way to run on 2 or fewer"


def test_widths_that_do_not_go_together_are_told() -> None:
    # Node a runs on one device only, node b on two only: three devices, of which there are two.
    document = json.loads(BENCH_DOCUMENT)
    ways = document["nodes"][1]["TMPCs"]
    ways["2"] = ways.pop("1")
    problem = as_problem(document)
    assert solve(problem).stop is Stop.INFEASIBLE
    assert find_enough_memory(problem) == math.inf
    assert explain_misfit(problem) == ("devices: the nodes' widths need more than 2 of any memory")


def test_without_time_there_is_no_claim() -> None:
    document = json.loads(BENCH_DOCUMENT)
    found = solve(as_problem(document), budget_seconds=0.0)
    assert (found.plan, found.stop) == ((), Stop.LIMIT)
    assert 0 < found.bound_seconds < math.inf


BENCH_DOCUMENT = json.dumps(
    {
        "maxDevices": 2,
        "maxMemoryPerDevice": 4 * GIB,
        "bandwidth": GIB,
        "mbsInBatch": 2,
        "nodes": [
            {
                "id": name,
                "TMPCs": {
                    "1": [
                        {
                            "id": "vanilla",
                            "timePerSample": 2.0,
                            "parameterSize": 0.0,
                            "memoryUsageA": GIB,
                            "memoryUsageB": 0.0,
                            "syncTimeFw": {"a": 0.0} if name == "b" else {},
                            "syncTimeBw": {"b": 0.0} if name == "a" else {},
                        }
                    ]
                },
            }
            for name in ("a", "b")
        ],
        "edges": [{"sourceId": "a", "destId": "b", "communicationCost": GIB / 4}],
    }
)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("piper_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, Any]:
    path = tmp_path / "two.json"
    path.write_text(BENCH_DOCUMENT)
    assert benchmark.main([str(path), "--json", *arguments]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_the_benchmark_prints_the_plan(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Both nodes on two replicas: 4 / 2; two stages would take 2 + 2 x 1/4 each.
    record = run(benchmark, tmp_path, capsys)
    assert record["objective"] == record["bound"] == 2.0
    assert record["stop"] == "PROVED"
    assert record["seconds"] < 1
    (stage,) = record["stages"]
    assert (stage["nodes"], stage["d"], stage["t"]) == (["a", "b"], 2, 1)
    assert stage["ways"] == ["vanilla", "vanilla"]
    # Half the bandwidth and three samples: no replicas, and the edge costs 2 x 1/4 / (1/2).
    record = run(benchmark, tmp_path, capsys, "--samples", "3", "--bandwidth-gib", "0.5")
    assert record["objective"] == 3.0
    assert [stage["d"] for stage in record["stages"]] == [1, 1]


def test_the_benchmark_says_what_would_fit(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first of two stages has two microbatches in flight, one replica of both nodes two nodes.
    record = run(benchmark, tmp_path, capsys, "--memory-gib", "1.5")
    assert record["objective"] is None
    assert record["bound"] is None
    assert record["stages"] == []
    assert record["reason"] == ("memory: no plan fits 2 devices of 1.5 GiB, 2.000 GiB would do")


def test_the_benchmark_refuses_what_makes_no_sense(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark.main(["x.json", "--devices", "0"]) == 2
    assert "--devices must be positive and finite, got 0" in capsys.readouterr().err


def solve_bert(shared: Path, num_devices: int, memory_gib: float) -> Found:
    path = shared / "piper" / "bert32a100.json"
    problem = read_problem(
        path.read_bytes(),
        str(path),
        num_devices=num_devices,
        memory_bytes=memory_gib * GIB,
        num_microbatches=1920,
        bytes_per_second=25 * GIB,
    )
    return solve(problem)


@pytest.mark.parametrize(
    ("num_devices", "memory_gib", "published"),
    [
        (8, 8, 0.16585575),
        (8, 80, 0.122007269),
        (32, 2, 0.0665495),
        (32, 8, 0.0415154504),
        (64, 8, 0.0202005503),
        (8, 2, math.inf),
    ],
)
def test_no_published_value_is_better(
    shared: Path, num_devices: int, memory_gib: float, published: float
) -> None:
    found = solve_bert(shared, num_devices, memory_gib)
    assert found.seconds == pytest.approx(published, rel=1e-6)
    assert found.bound_seconds == found.seconds


def test_more_memory_and_more_devices_are_never_worse(shared: Path) -> None:
    seconds = {
        (devices, memory): solve_bert(shared, devices, memory).seconds
        for devices in (4, 6, 16)
        for memory in (1, 3, 9)
    }
    for (devices, memory), value in seconds.items():
        for (more_devices, more_memory), other in seconds.items():
            if more_devices >= devices and more_memory >= memory:
                assert other <= value
