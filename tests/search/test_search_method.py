"""What the methods promise: groups, memory, seeds, budgets, interruption, messages."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs, make_cluster

from counted import counted_clock
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Stop
from meshwright.plan.check import resolve
from meshwright.plan.plan import Plan
from meshwright.search import run
from meshwright.search.bound.work import memory_bound
from meshwright.search.clock import Clock
from meshwright.search.instance import make_instance
from meshwright.search.method import table
from meshwright.search.method.mcmc import MetropolisWalk, propose_moves
from meshwright.search.method.metis import partition_units
from meshwright.search.method.name import BASELINES, METHODS, SEARCHES
from meshwright.search.portfolio import find_plan, search_by
from meshwright.search.problem import Problem
from meshwright.search.replica import divide_batch
from meshwright.zoo.shipped import read_shipped
from synthetic import synthetic_gpt

mcmc = partial(search_by, "mcmc")


def chain(num_ops: int, state_bytes: float = 0.0) -> Graph:
    builder = GraphBuilder("chain")
    for number in range(num_ops):
        builder.add_op(f"op{number}", seconds={"any": 1.0}, state_bytes=state_bytes)
        if number:
            builder.add_tensor(number - 1, 1.0, [number])
    return builder.finish()


def device_of(plan: Plan, op: str) -> tuple[str, ...]:
    return next(part.devices for part in plan.parts if op in part.ops)


@given(graphs(), clusters(), st.sampled_from(METHODS))
@settings(max_examples=60)
def test_every_plan_is_legal_and_the_same_for_the_same_seed(
    graph: Graph, cluster: Cluster, method: str
) -> None:
    # `resolve` refuses plans that tear a co-location group apart.
    first = find_plan(graph, cluster, method, seed=5)
    second = find_plan(graph, cluster, method, seed=5)
    assert first.plan == second.plan
    assert first.step_seconds == second.step_seconds
    if first.plan is not None:
        resolve(graph, cluster, first.plan)
        assert len(first.peak_bytes) == cluster.num_devices


def test_round_robin_deals_ops_out_in_turn_and_keeps_groups_together() -> None:
    builder = GraphBuilder("groups")
    for number, group in enumerate([-1, 7, -1, 7]):
        builder.add_op(f"op{number}", seconds={"any": 1.0}, group=group)
    answer = find_plan(builder.finish(), make_cluster(["fast"] * 3), "round-robin")
    assert answer.plan is not None
    places = [device_of(answer.plan, f"op{number}") for number in range(4)]
    assert places == [("d0",), ("d1",), ("d2",), ("d1",)]


def test_single_takes_the_fastest_type_that_fits() -> None:
    graph = chain(3, state_bytes=10.0)
    builder = GraphBuilder("typed")
    builder.add_op("only", seconds={"fast": 1.0, "slow": 3.0})
    answer = find_plan(builder.finish(), make_cluster(["slow", "fast"]), "single")
    assert answer.plan is not None
    assert device_of(answer.plan, "only") == ("d1",)
    assert answer.stop is Stop.PROVED
    assert find_plan(graph, make_cluster(["fast"]), "single").step_seconds == 3.0


def test_heft_keeps_a_chain_on_one_device() -> None:
    graph = chain(10)
    cluster = make_cluster(["fast"] * 4)
    assert find_plan(graph, cluster, "heft").step_seconds == 10.0
    assert find_plan(graph, cluster, "mcmc").step_seconds == 10.0


def test_metis_balances_independent_ops_by_device_speed() -> None:
    # Three times as fast: 75 of 100 ops, give or take METIS's tolerance.
    builder = GraphBuilder("independent")
    for number in range(100):
        builder.add_op(f"op{number}", seconds={"fast": 1.0, "slow": 3.0})
    answer = find_plan(builder.finish(), make_cluster(["fast", "slow"]), "metis")
    assert answer.plan is not None
    assert 70 <= len(answer.plan.parts[0].ops) <= 80


def test_metis_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    # 128 parts of one heavy and many light ops: METIS remarks on empty bisections.
    builder = GraphBuilder("heavy")
    for number in range(200):
        builder.add_op(f"op{number}", seconds={"any": 1e6 if number == 0 else 1e-6})
        if number:
            builder.add_tensor(0, 1.0, [number])
    partition_units(make_instance(builder.finish(), make_cluster(["fast"] * 128)), 0)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", ["inception-v3", "unet"])
def test_searches_beat_one_device_where_ops_are_parallel(name: str) -> None:
    graph, cluster = read_shipped(name), find_cluster("a100-80-x4")
    alone = find_plan(graph, cluster, "single").step_seconds
    for method in ("heft", "mcmc"):
        assert find_plan(graph, cluster, method).step_seconds < alone


def test_mcmc_is_never_worse_than_its_start_and_differs_by_seed() -> None:
    graph, cluster = read_shipped("unet"), find_cluster("a100-80-x4")
    answers = [mcmc(graph, cluster, seed=seed, steps=2000, sharing="none") for seed in (1, 2)]
    for answer in answers:
        assert answer.step_seconds <= answer.statistics["first_seconds"] * (1 + 1e-9)
        assert answer.step_seconds == pytest.approx(answer.statistics["unshared_seconds"])
    assert answers[0].plan != answers[1].plan


def test_mcmc_leaves_a_device_that_is_too_small() -> None:
    # Ten ops that hold 10 bytes each, devices of 60: at least two devices must be used.
    graph = chain(10, state_bytes=10.0)
    answer = find_plan(graph, make_cluster(["fast"] * 2, memory_bytes=60.0), "mcmc")
    assert answer.plan is not None
    assert max(answer.peak_bytes) <= 60.0


def test_shares_are_whole_samples() -> None:
    assert (divide_batch(8, np.ones(3)) * 8).tolist() == [3, 3, 2]
    assert (divide_batch(2, np.ones(3)) * 2).tolist() == [1, 1, 0]
    assert (divide_batch(8, np.array([3.0, 1.0])) * 8).tolist() == [6, 2]
    assert divide_batch(1, np.ones(4)).tolist() == [0.25] * 4


def test_data_parallelism_gives_the_faster_device_more() -> None:
    graph = read_shipped("mlp", 32)
    plan = find_plan(graph, find_cluster("tag-testbed"), "data-proportional").plan
    assert plan is not None
    shares = dict(zip(plan.parts[0].devices, plan.parts[0].shares, strict=True))
    assert shares["v100-host0.0"] > shares["1080ti-host0.0"]
    assert sum(shares.values()) == pytest.approx(1.0)


def test_what_lacks_memory_names_the_device_the_bytes_and_the_devices_needed() -> None:
    # 3 x 100 bytes of state on one device of 250: 50 are missing, and by state two would do.
    graph = chain(3, state_bytes=100.0)
    reason = memory_bound(graph, make_cluster(["fast"], memory_bytes=250.0))
    assert reason is not None
    assert "(50 bytes) are missing" in reason
    assert "2 devices" in reason
    # On two such devices there is room, but not on one alone (nor for what ops make besides).
    answer = find_plan(graph, make_cluster(["fast"] * 2, memory_bytes=250.0), "single")
    assert answer.plan is None
    assert answer.stop is Stop.INFEASIBLE
    assert answer.step_seconds == math.inf
    assert "device 'd0'" in answer.binding
    assert "are missing" in answer.binding


def test_auto_says_that_state_alone_does_not_fit() -> None:
    graph = chain(3, state_bytes=100.0)
    answer = find_plan(graph, make_cluster(["fast"], memory_bytes=250.0))
    assert answer.stop is Stop.INFEASIBLE
    assert answer.plan is None
    assert "or 2 such devices" in answer.binding


def test_a_group_too_large_for_any_device_is_named() -> None:
    builder = GraphBuilder("grouped")
    for number in range(2):
        builder.add_op(f"op{number}", group=4, state_bytes=200.0)
    reason = memory_bound(builder.finish(), make_cluster(["fast"] * 4, memory_bytes=300.0))
    assert reason is not None
    assert "group 4" in reason
    assert "100 bytes" in reason


def test_an_op_that_can_run_nowhere_is_an_answer() -> None:
    builder = GraphBuilder("nowhere")
    builder.add_op("impossible", seconds={"fast": math.inf})
    for method in METHODS:
        answer = find_plan(builder.finish(), make_cluster(["fast"] * 2), method)
        assert answer.stop is Stop.INFEASIBLE, method
        assert answer.binding, method


def test_ops_go_where_they_can_run() -> None:
    builder = GraphBuilder("picky")
    builder.add_op("left", seconds={"fast": 1.0, "slow": math.inf})
    builder.add_op("right", seconds={"fast": math.inf, "slow": 1.0})
    cluster = make_cluster(["fast", "slow"])
    for method in ("round-robin", "metis", "mcmc", "heft", "auto"):
        answer = find_plan(builder.finish(), cluster, method)
        assert answer.step_seconds == 1.0, method
    assert find_plan(builder.finish(), cluster, "single").stop is Stop.INFEASIBLE


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"must be one of single, .*, auto, got 'magic'"):
        find_plan(chain(2), make_cluster(["fast"]), "magic")
    with pytest.raises(InputError, match="budget_seconds"):
        find_plan(chain(2), make_cluster(["fast"]), budget_seconds=0)


def test_auto_names_the_winner_and_reports_every_method() -> None:
    lines: list[str] = []
    answer = find_plan(chain(4), make_cluster(["fast"] * 2), progress=lines.append)
    assert answer.method.startswith("auto:")
    named = {line.split(":")[0] for line in lines}
    assert named == set(SEARCHES)
    assert set(METHODS) - named == {*BASELINES, "auto"}
    hopeless = {line.split(":")[0] for line in lines if "not tried" in line}
    others = [answer.statistics[f"{name}_seconds"] for name in named - hopeless]
    assert answer.step_seconds == min(others)


def test_the_budget_is_kept() -> None:
    graph, cluster = synthetic_gpt(700), find_cluster("a100-80-x4")
    with counted_clock(0.05):  # a slice of steps takes as long as it should
        answer = mcmc(graph, cluster, steps=10**9, budget_seconds=0.3)
    assert 0 < answer.statistics["evaluations"] < 200
    assert answer.stop is Stop.LIMIT


def test_ctrl_c_ends_mcmc_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def interrupted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:  # after one of no steps, one of 16 and one of 32
            raise KeyboardInterrupt
        propose_moves(*arguments)

    monkeypatch.setattr("meshwright.search.method.mcmc.propose_moves", interrupted)
    answer = mcmc(read_shipped("unet"), find_cluster("a100-80-x4"))
    assert answer.plan is not None
    assert answer.stop is Stop.INTERRUPTED
    assert answer.statistics["evaluations"] == 16 + 32


def test_ctrl_c_ends_auto_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(problem: Problem, _: object) -> None:
        if problem.graph.name == "mlp":  # not while kernels are compiled on the smallest step
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "METHODS", {**table.METHODS, "metis": interrupted})
    answer = find_plan(read_shipped("mlp"), find_cluster("a100-80-x4"))
    assert answer.method == "auto:data"
    assert answer.stop is Stop.INTERRUPTED


def test_a_walk_never_takes_what_does_not_fit_once_it_fits() -> None:
    graph = chain(12, state_bytes=10.0)
    cluster = make_cluster(["fast"] * 3, memory_bytes=55.0)
    instance = make_instance(graph, cluster)
    walk = MetropolisWalk(instance, np.zeros(12, dtype=np.int32), 0, beta=1e-3)
    walk.run(200, Clock())
    for _ in range(50):
        walk.run(1, Clock())
        used = np.bincount(walk.device_of_op, weights=graph.state_bytes, minlength=3)
        assert used.max() <= 55.0


def test_pipelines_use_the_microbatches_that_are_asked_for() -> None:
    graph = read_shipped("mlp", 32)
    cluster = find_cluster("a100-80-x4")
    for count in (2, 4):
        answer = find_plan(graph, cluster, "consecutive", microbatches=(count,))
        assert answer.plan is not None
        assert answer.plan.schedule is not None
        assert answer.plan.schedule.microbatches == count
    refused = find_plan(graph, cluster, "consecutive", microbatches=(64,))
    assert refused.stop is Stop.INFEASIBLE
    assert "64 microbatches on 1 replicas leave less than a sample" in refused.binding
    with pytest.raises(InputError, match="microbatches: must be from 1 to 1000000, got 0"):
        find_plan(graph, cluster, "consecutive", microbatches=(0,))
