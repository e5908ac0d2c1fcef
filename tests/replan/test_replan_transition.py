"""What a transition says of steps, bytes and whether moving pays."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from json_schema import is_valid
from meshwright.change.host import drop_hosts
from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Part, Plan, place_ops
from meshwright.plan.request import Request
from meshwright.planned import Planned
from meshwright.replan.bandwidth import read_bandwidths
from meshwright.replan.change import change_devices
from meshwright.replan.difference import find_difference
from meshwright.replan.move import Moves
from meshwright.replan.replan import search_near
from meshwright.replan.transition import CarriedStep, Transition, compare_plans, plan_transition
from meshwright.search.judge import try_plan
from meshwright.source import load_graph

GRAPH = load_graph(
    "llama:hidden=64,heads=4,layers=4,sequence=16,vocabulary=64,intermediate=128,batch=12"
)
WHOLE = find_cluster("titan-v-4x2")
LEFT = drop_hosts(WHOLE, ["host1"], "without")
NAMES = tuple(device.name for device in WHOLE.devices)


def planned(plan: Plan | None, method: str = "data", **more: Any) -> Planned:
    request = Request(graph=GRAPH, cluster=WHOLE, method=method, budget_seconds=2.0, **more)
    return Planned(request=request, plan=plan, method=method)


def data(*devices: str) -> Plan:
    return Plan(parts=(Part(ops=GRAPH.op_names, devices=devices),))


def moves(seconds: float) -> Moves:
    return Moves(
        needed_bytes={"d": 8.0}, state_bytes=16.0, flows={}, between_hosts={},
        network_seconds=seconds, storage_seconds=0.0,
    )  # fmt: skip


def transition(
    carried: float, step: float, moving: float, *, left: float | None, obstacle: str = "",
    carried_moving: float = 0.0,
) -> Transition:  # fmt: skip
    answer = Answer(
        method="data", plan=data(*NAMES[:2]), step_seconds=step, bound_seconds=0.0, stop=Stop.ENDED
    )
    return Transition(
        model="m", cluster=LEFT, before_seconds=1.0,
        carried=CarriedStep(
            description="", step_seconds=math.inf if obstacle else carried, obstacle=obstacle,
            moves=None if obstacle else moves(carried_moving),
        ),
        answer=answer, difference=None, moves=moves(moving), steps_to_checkpoint=left,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("carried", "step", "moving", "left", "even", "pays", "words"),
    [
        (3.0, 1.0, 10.0, 5, 5.0, True, "pays after 5 steps, and 5 steps are left"),
        (3.0, 1.0, 10.0, 4, 5.0, False, "does not pay before the next checkpoint"),
        (3.0, 1.0, 10.0, None, 5.0, None, "Moving pays after 5 steps: moving 8 B takes 10 s"),
        (1.0, 1.0, 10.0, 100, math.inf, False, "Stay with the plan as it is carried over"),
        (1.0, 2.0, 10.0, None, math.inf, False, "Stay with the plan as it is carried over"),
        (3.0, 1.0, 0.0, 1, 0.0, True, "Moving pays at once"),
    ],
)
def test_moving_pays_where_the_steps_that_are_left_gain_more(
    carried: float, step: float, moving: float, left: float | None, even: float,
    pays: bool | None, words: str,
) -> None:  # fmt: skip
    found = transition(carried, step, moving, left=left)
    assert (found.break_even_steps, found.pays) == (even, pays)
    assert words in found.verdict


def test_what_moves_in_any_case_counts_on_neither_side() -> None:
    found = transition(3.0, 1.0, 10.0, left=3, carried_moving=6.0)
    assert (found.moving_seconds, found.break_even_steps) == (4.0, 2.0)


def test_moving_is_forced_where_the_old_plan_cannot_run() -> None:
    found = transition(0.0, 1.0, 10.0, left=1, obstacle="stage 0 of 2 has no device left")
    assert found.is_forced
    assert found.pays
    assert found.verdict.startswith("Moving is forced, since the old plan cannot run (stage 0")


def test_all_steps_are_the_simulators() -> None:
    before = planned(data(*NAMES))
    found = plan_transition(before, LEFT, budget_seconds=2.0)
    assert before.plan is not None
    assert found.before_seconds == try_plan(GRAPH, WHOLE, before.plan).step_seconds
    kept = data(*NAMES[:2], *NAMES[4:])
    assert found.carried.step_seconds == try_plan(GRAPH, LEFT, kept).step_seconds
    assert found.answer.plan is not None
    assert found.answer.step_seconds == try_plan(GRAPH, LEFT, found.answer.plan).step_seconds
    assert found.answer.step_seconds <= found.carried.step_seconds
    assert found.answer.request is not None
    assert found.answer.request.cluster is LEFT
    document = json.loads(json.dumps(found.to_dict()))
    assert is_valid(document, mw.schema("replan"), mw.schema("replan"))


@pytest.mark.parametrize("method", ["data", "placement", "pipeline", "hybrid", "deploy", "auto"])
def test_every_method_plans_anew_and_is_no_slower_than_what_is_left(method: str) -> None:
    request = Request(graph=GRAPH, cluster=WHOLE, method=method, budget_seconds=1.0)
    answer = mw.plan(GRAPH, WHOLE, method=method, budget_seconds=1.0)
    before = Planned(request=request, plan=answer.plan, method=answer.method)
    found = compare_plans(search_near(before, LEFT, budget_seconds=1.0))
    assert found.fits
    assert found.answer.step_seconds <= found.carried.step_seconds * (1 + 1e-9)
    assert found.answer.bound_seconds <= found.answer.step_seconds * (1 + 1e-9)
    assert found.moves is not None
    gone = set(NAMES[2:4])
    assert not any(gone & {source, target} for source, target in found.moves.flows)


def test_where_nothing_fits_that_is_said_with_what_would_do() -> None:
    need = float(GRAPH.state_bytes.sum())
    tight = replace(
        WHOLE, devices=tuple(replace(each, memory_bytes=0.3 * need) for each in WHOLE.devices)
    )
    left = drop_hosts(tight, tight.hosts[1:], "without")
    device_of_op = [number * 8 // GRAPH.num_ops for number in range(GRAPH.num_ops)]
    of_group: dict[int, int] = {}
    for op, group in enumerate(GRAPH.group.tolist()):
        if group >= 0:
            device_of_op[op] = of_group.setdefault(group, device_of_op[op])
    plan = place_ops(GRAPH.op_names, device_of_op, NAMES)
    request = Request(graph=GRAPH, cluster=tight, method="metis", budget_seconds=0.2)
    before = Planned(request=request, plan=plan, method="metis")
    assert search_near(before, left, budget_seconds=0.2).answer.plan is None
    found = plan_transition(before, left, budget_seconds=0.2)
    assert not found.fits
    assert found.pays is False
    assert {each.kind for each in found.remedies} >= {"devices", "memory"}
    assert found.verdict.startswith("No plan fits: ")


def test_a_plan_must_have_been_there() -> None:
    with pytest.raises(InputError, match="must have a plan to start from"):
        search_near(planned(None), LEFT, budget_seconds=1.0)


def test_a_difference_names_what_runs_elsewhere() -> None:
    half = GRAPH.num_ops // 2
    layers = [
        Plan(parts=(Part(layers="embedding-2", devices=(a,)), Part(layers="3-head", devices=(b,))))
        .in_ops(GRAPH)
        for a, b in (("x", "y"), ("x", "z"))
    ]  # fmt: skip
    found = find_difference(GRAPH, *layers)
    assert found.moved_layers == ("3", "4", "head")
    assert 0 < found.moved_ops < half * 2
    assert (found.left, found.joined) == (("y",), ("z",))
    assert [each.number for each in found.parts] == [1]
    assert "layers '3-head' on y" in found.parts[0].before
    assert find_difference(GRAPH, layers[0], layers[0]).is_same


def test_measured_bandwidths_take_the_place_of_the_clusters(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text('{"host0": "4 Gb/s", "inside": 5e9}')
    changed = change_devices(WHOLE, None, [], path)
    rates = {(each.source, each.target): each.bytes_per_second for each in changed.links}
    old = {(each.source, each.target): each.bytes_per_second for each in WHOLE.links}
    changes = {pair: rate for pair, rate in rates.items() if rate != old[pair]}
    assert set(changes.values()) == {0.5e9, 5e9}
    assert {pair for pair, rate in changes.items() if rate == 0.5e9} == {
        pair for pair in old if "host0" in pair and "switch" in " ".join(pair)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "must name at least one link"),
        ('{"host0": "fast"}', r"link 'host0'"),
        ('{"": "1 GB/s"}', "links: must be named, got ''"),
        ('{"host0": -1}', r"link 'host0'"),
        ('{"host0": [1]}', "measured.json"),
        ("[1]", "measured.json"),
        ('{"leaf9": "1 GB/s"}', "link 'leaf9': no node, kind or level of that name"),
    ],
)
def test_wrong_bandwidths_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "measured.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        change_devices(WHOLE, None, [], path)
    if "leaf9" in text:
        assert len(read_bandwidths(path)) == 1


def test_something_must_have_changed() -> None:
    with pytest.raises(InputError, match="must have something that has changed"):
        change_devices(WHOLE, None, [], None)
