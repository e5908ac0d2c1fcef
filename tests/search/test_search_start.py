"""Searches that start from plans: none is slower than its starts, whatever their kind."""

from dataclasses import replace

import numpy as np
import pytest

from counted import counted_clock
from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind, Sync, place_ops
from meshwright.search.claim import Claim
from meshwright.search.judge import try_plan
from meshwright.search.method.deploy.analysis import analyse
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.near import read_strategy
from meshwright.search.method.deploy.option import GroupAction, GroupOption
from meshwright.search.method.hybrid.near import near_scope
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import find_plan
from meshwright.search.start import kind_of, near_methods, suits
from meshwright.source import load_graph

GRAPH = load_graph(
    "llama:hidden=64,heads=4,layers=4,sequence=16,vocabulary=64,intermediate=128,batch=8"
)
CLUSTER = find_cluster("titan-v-2x2")
NAMES = tuple(device.name for device in CLUSTER.devices)
MLP = load_graph("mlp")


def placed() -> Plan:
    device_of_op, of_group = [], dict[int, int]()
    for number, group in enumerate(GRAPH.group.tolist()):
        device = number * 4 // GRAPH.num_ops
        device_of_op.append(of_group.setdefault(group, device) if group >= 0 else device)
    return place_ops(GRAPH.op_names, device_of_op, NAMES)


def staged() -> Plan:
    parts = (
        Part(layers="embedding-2", devices=NAMES[:2]),
        Part(layers="3-head", devices=NAMES[2:]),
    )
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2)
    return Plan(parts=parts, schedule=schedule).in_ops(GRAPH)


def divided() -> Plan:
    part = Part(ops=GRAPH.op_names, devices=NAMES, tensor=2, zero=1, recompute=Recompute.SELECTIVE)
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2)
    return Plan(parts=(part,), schedule=schedule)


def deployed() -> Plan:
    shares = (0.25, 0.25, 0.375, 0.125)
    return Plan(parts=(Part(ops=GRAPH.op_names, devices=NAMES, shares=shares),))


STARTS = {
    "placement": placed, "pipeline": staged, "hybrid": divided, "deploy": deployed,
}  # fmt: skip


@pytest.mark.parametrize("kind", STARTS)
def test_a_plans_form_tells_its_method(kind: str) -> None:
    plan = STARTS[kind]()
    assert kind_of(plan) == kind
    assert suits(Claim.LAYERED, plan)
    assert suits(Claim.UNDIVIDED, plan) == (kind != "hybrid")
    assert suits(Claim.PLACEMENT, plan) == (kind == "placement")


def test_methods_near_a_plan_are_its_own_and_the_quick() -> None:
    assert near_methods(GRAPH, [divided()]) == ("hybrid",)
    assert near_methods(GRAPH, [placed()])[-1] == "placement"
    assert near_methods(GRAPH, [staged()])[-3:] == ("pipeline", "hybrid", "deploy")


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("method", ["own", "auto"])
def test_a_search_is_never_slower_than_its_start(kind: str, method: str) -> None:
    plan = STARTS[kind]()
    start = try_plan(GRAPH, CLUSTER, plan)
    with counted_clock():
        answer = find_plan(
            GRAPH,
            CLUSTER,
            method=kind if method == "own" else method,
            budget_seconds=0.05,
            starts=[plan],
        )
    assert answer.plan is not None
    assert answer.step_seconds <= start.step_seconds * (1 + 1e-9)
    assert answer.bound_seconds <= answer.step_seconds * (1 + 1e-9)


def test_a_start_that_cannot_run_is_passed_over() -> None:
    elsewhere = replace(staged(), parts=(replace(staged().parts[0], devices=("nowhere",)),))
    with counted_clock():
        answer = find_plan(
            GRAPH, CLUSTER, method="hybrid", budget_seconds=0.05, starts=[divided(), elsewhere]
        )
    assert answer.plan is not None


def test_widths_near_a_plan_are_halved_and_doubled() -> None:
    scope = near_scope(Scope(), [divided()])
    assert (scope.tensor, scope.context, scope.expert) == ((1, 2, 4), (1, 2), (1, 2))
    assert scope.microbatches == scope.data == scope.pipeline == ()
    limited = near_scope(Scope(tensor=(2, 8)), [divided()])
    assert limited.tensor == (2,)
    assert near_scope(Scope(tensor=(8,)), [divided()]).tensor == (8,)  # none is near
    assert near_scope(Scope(), []) == Scope()


@pytest.mark.parametrize("seed", range(8))
def test_a_strategy_is_read_off_its_plan(seed: int) -> None:
    analysis = analyse(MLP, CLUSTER)
    draw = np.random.default_rng(seed)
    menu = [each for each in analysis.actions if each.option is not GroupOption.MODEL]
    strategy = tuple(menu[int(draw.integers(len(menu)))] for _ in range(analysis.num_groups))
    bundles = tuple(int(draw.integers(3)) for _ in strategy)
    plan = make_plan(analysis, strategy, bundles=bundles)
    read = read_strategy(analysis, plan)

    def key(action: GroupAction) -> object:
        option = action.option if len(action.devices) > 1 else GroupOption.ALL_REDUCE
        return action.devices, action.shares, option

    assert [key(each) for each in read.strategy] == [key(each) for each in strategy]
    again = make_plan(analysis, read.strategy, read.duplicated, read.bundles)
    assert set(again.parts) == set(plan.parts)


def test_ops_that_are_duplicated_beside_their_group_are_read_too() -> None:
    analysis = analyse(MLP, CLUSTER)
    strategy = (analysis.actions[0],) * analysis.num_groups
    ops = {int(np.flatnonzero(analysis.group_of == 0)[0])}
    plan = make_plan(analysis, strategy, ops)
    assert any(part.sync is Sync.DUPLICATE for part in plan.parts)
    assert (analysis.group_of == 0).sum() > 1
    assert read_strategy(analysis, plan).duplicated == ops
