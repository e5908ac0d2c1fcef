"""Relief: plans that lack memory divide state and compute activations again, as little as does."""

from dataclasses import replace
from itertools import product
from string import ascii_lowercase

import pytest

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.part import Part, Recompute, Schedule, ScheduleKind, Sync
from meshwright.plan.plan import Plan
from meshwright.search.bound.work import memory_bound
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.portfolio import search_by
from meshwright.search.problem import Problem
from meshwright.search.relief import Reliever
from small import star

LAYERS = 4
ACTIVATION, WEIGHTS, STATE = 100.0, 20.0, 40.0
"""Bytes of a layer: what it passes on of the whole batch, its weights, and the optimiser's state
besides them."""


def step(batch: float = 4, layers: int = LAYERS) -> Graph:
    """Layers of a product with weights and two functions of its result, which backward reads."""
    builder = GraphBuilder("layers", batch=batch)
    kinds = ("mm", "gelu", "relu")
    forward = [
        [
            builder.add_op(
                f"{kind}{i}", kind=kind, seconds={"any": 1.0}, group=i if kind == "mm" else -1,
                parameter_bytes=WEIGHTS if kind == "mm" else 0.0,
                state_bytes=WEIGHTS + STATE if kind == "mm" else 0.0,
            )
            for kind in kinds
        ]
        for i in range(layers)
    ]  # fmt: skip
    backward = {
        (i, k): builder.add_op(
            f"b{kind}{i}", kind=f"{kind}_backward", seconds={"any": 2.0},
            group=i if kind == "mm" else -1, phase=Phase.BACKWARD, partner=forward[i][k],
        )
        for i in reversed(range(layers))
        for k, kind in reversed(list(enumerate(kinds)))
    }  # fmt: skip
    chain = [(i, k) for i in range(layers) for k in range(len(kinds))]
    for (i, k), after in zip(chain, [*chain[1:], None], strict=True):
        later = (
            [backward[i, k]] if after is None else [forward[after[0]][after[1]], backward[after]]
        )
        builder.add_tensor(forward[i][k], ACTIVATION, later)
        if after is not None:
            builder.add_tensor(backward[after], ACTIVATION, [backward[i, k]])
    for i in range(layers):
        update = builder.add_op(
            f"u{i}", seconds={"any": 0.1}, group=i, phase=Phase.UPDATE, split=Split.NONE
        )
        builder.add_tensor(backward[i, 0], WEIGHTS, [update], partial=True, fixed_bytes=WEIGHTS)
    return builder.finish()


def cluster_of(count: int, memory_bytes: float = 1e12) -> Cluster:
    made = star([1000.0] * count)
    devices = tuple(replace(each, memory_bytes=memory_bytes) for each in made.devices)
    return replace(made, devices=devices)


def replicas(graph: Graph, cluster: Cluster, microbatches: int = 0) -> Plan:
    schedule = None
    if microbatches:
        schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=microbatches)
    part = Part(ops=graph.op_names, devices=tuple(each.name for each in cluster.devices))
    return Plan(parts=(part,), schedule=schedule)


def two_stages(graph: Graph, cluster: Cluster) -> Plan:
    """Two layers a stage, two replicas of both."""
    names = [each.name for each in cluster.devices]
    layer = [int(name.strip(ascii_lowercase)) for name in graph.op_names]
    parts = tuple(
        Part(
            ops=tuple(
                name
                for name, each in zip(graph.op_names, layer, strict=True)
                if each // (LAYERS // 2) == number
            ),
            devices=tuple(names[2 * number : 2 * number + 2]),
        )
        for number in range(2)
    )
    return Plan(parts=parts, schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2))


def relieved(graph: Graph, cluster: Cluster, plan: Plan) -> Attempt:
    problem = Problem(graph=graph, cluster=cluster, clock=Clock())
    attempt = Incumbent(problem.clock).begin("tested", Claim.UNDIVIDED)
    Reliever(problem, problem.clock).offer([[plan]], attempt)
    return attempt


def every_relief(graph: Graph, cluster: Cluster, plan: Plan) -> list[Verdict]:
    """By brute force: each part with each manner and each division."""
    problem = Problem(graph=graph, cluster=cluster)
    choices = list(product(Recompute, range(4)))
    found = []
    for chosen in product(choices, repeat=len(plan.parts)):
        parts = tuple(
            replace(part, recompute=manner, zero=zero)
            for part, (manner, zero) in zip(plan.parts, chosen, strict=True)
        )
        try:
            found.append(problem.settle(replace(plan, parts=parts)))
        except InputError:
            continue
    return found


def peak(graph: Graph, cluster: Cluster, plan: Plan) -> float:
    return max(Problem(graph=graph, cluster=cluster).settle(plan).peak_bytes)


@pytest.mark.parametrize("microbatches", [0, 4])
@pytest.mark.parametrize("part_of_peak", [0.95, 0.8, 0.65, 0.5])
def test_one_part_saves_no_more_than_it_must(microbatches: int, part_of_peak: float) -> None:
    graph, roomy = step(), cluster_of(2)
    plan = replicas(graph, roomy, microbatches)
    cluster = cluster_of(2, part_of_peak * peak(graph, roomy, plan))
    attempt = relieved(graph, cluster, plan)
    every = every_relief(graph, cluster, plan)
    fitting = [each for each in every if each.fits]
    assert attempt.fits == bool(fitting)
    if fitting:
        best = min(each.step_seconds for each in fitting)
        assert attempt.step_seconds == pytest.approx(best, rel=0.02)


@pytest.mark.parametrize("part_of_peak", [0.9, 0.6, 0.3])
def test_of_two_parts_the_one_that_lacks_saves(part_of_peak: float) -> None:
    graph, roomy = step(), cluster_of(4)
    plan = two_stages(graph, roomy)
    cluster = cluster_of(4, part_of_peak * peak(graph, roomy, plan))
    attempt = relieved(graph, cluster, plan)
    fitting = [each for each in every_relief(graph, cluster, plan) if each.fits]
    assert attempt.fits == bool(fitting)
    if fitting:
        assert attempt.step_seconds <= 1.05 * min(each.step_seconds for each in fitting)


def test_lighter_plans_of_a_front_are_found_after_one_that_was_seen_before() -> None:
    graph, roomy = step(), cluster_of(2)
    plans = [replicas(graph, roomy, microbatches) for microbatches in (1, 2)]
    heavy, light = (
        min(max(each.peak_bytes) for each in every_relief(graph, roomy, plan)) for plan in plans
    )
    assert light < heavy
    cluster = cluster_of(2, (light + heavy) / 2)
    problem = Problem(graph=graph, cluster=cluster, clock=Clock())
    attempt = Incumbent(problem.clock).begin("tested", Claim.UNDIVIDED)
    reliever = Reliever(problem, problem.clock)
    reliever.offer([[plans[0]]], attempt)
    assert not attempt.fits
    # Halving looks at the second of three first: it is known, and does not fit.
    reliever.offer([[replicas(graph, roomy), plans[0], plans[1]]], attempt)
    assert attempt.fits


def test_nothing_is_proved_that_computing_again_would_beat() -> None:
    # Two devices hold what five ops save, over a link of 20 s a tensor: 38.2 s. One device that
    # computes some of it again takes 23.
    builder = GraphBuilder("chain", batch=1)
    forward = [builder.add_op(f"f{k}", kind=f"k{k}", seconds={"any": 1.0}) for k in range(6)]
    backward = {
        k: builder.add_op(
            f"b{k}", kind=f"kb{k}", seconds={"any": 2.0}, phase=Phase.BACKWARD, partner=forward[k]
        )
        for k in reversed(range(6))
    }
    for k in range(6):
        later = [forward[k + 1], backward[k + 1]] if k < 5 else [backward[k]]
        builder.add_tensor(forward[k], 100.0, later)
        if k:
            builder.add_tensor(backward[k], 1.0, [backward[k - 1]])
    graph, made = builder.finish(), star([5.0] * 2)
    devices = tuple(replace(each, memory_bytes=500.0) for each in made.devices)
    answer = search_by(
        "placement", graph, replace(made, devices=devices), sharing="none", budget_seconds=0.5
    )
    assert answer.step_seconds == pytest.approx(23.0)
    assert answer.bound_seconds <= answer.step_seconds


def test_a_plan_that_fits_stays_as_it_is() -> None:
    graph, cluster = step(), cluster_of(2)
    plan = replicas(graph, cluster)
    assert relieved(graph, cluster, plan).plan == plan


def test_replicas_that_duplicate_divide_nothing() -> None:
    graph, roomy = step(), cluster_of(2)
    plan = replicas(graph, roomy)
    plan = replace(plan, parts=(replace(plan.parts[0], sync=Sync.DUPLICATE),))
    cluster = cluster_of(2, 0.9 * peak(graph, roomy, plan))
    found = relieved(graph, cluster, plan).plan
    assert found is not None
    assert {part.zero for part in found.parts} == {0}


@pytest.mark.parametrize(
    ("method", "memory_bytes"), [("pipeline", 550.0), ("deploy", 700.0), ("placement", 940.0)]
)
def test_searches_relieve_what_lacks_memory(
    method: str, memory_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, cluster = step(batch=2), cluster_of(2, memory_bytes)
    answer = search_by(method, graph, cluster, budget_seconds=0.5)
    assert answer.plan is not None
    assert any(part.zero or part.recompute is not Recompute.NONE for part in answer.plan.parts)
    assert try_plan(graph, cluster, answer.plan).fits
    monkeypatch.setattr(Reliever, "offer", lambda *_: None)
    assert search_by(method, graph, cluster, budget_seconds=0.5).plan is None


def test_state_of_an_update_is_no_bound_on_what_a_device_holds() -> None:
    # 480 bytes of state in all, of a layer 60, of which weights are 20.
    graph = step()
    assert memory_bound(graph, cluster_of(16, 50.0)) is None
    alone = cluster_of(1, 50.0)
    assert "group 0" in str(memory_bound(graph, alone))
    assert memory_bound(graph, cluster_of(16, 15.0)) is not None
