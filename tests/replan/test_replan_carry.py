"""What of a plan stays where it is on another cluster, and where the rest goes."""

from collections.abc import Sequence

import pytest

from meshwright.change.host import drop_hosts
from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind, place_ops
from meshwright.replan.carry import carry_plan
from meshwright.simulate.simulate import simulate
from meshwright.source import load_graph

LLAMA = "llama:hidden=64,heads=4,layers=4,sequence=16,vocabulary=64,intermediate=128,batch=12"
WHOLE = find_cluster("titan-v-4x2")
LEFT = drop_hosts(WHOLE, ["host1"], "without")
NAMES = tuple(device.name for device in WHOLE.devices)
"""Two a host: those of host1 are the third and the fourth."""


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(LLAMA)


def pipeline(graph: Graph, homes: Sequence[tuple[str, ...]], layers: Sequence[str]) -> Plan:
    parts = tuple(Part(layers=each, devices=home) for each, home in zip(layers, homes, strict=True))
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2)
    return Plan(parts=parts, schedule=schedule).in_ops(graph)


def check_all_run(graph: Graph, plans: tuple[Plan, ...]) -> None:
    for plan in plans:
        assert simulate(graph, LEFT, plan).step_seconds > 0


def test_replicas_that_are_gone_leave_their_samples_to_the_others(graph: Graph) -> None:
    plan = Plan(parts=(Part(ops=graph.op_names, devices=NAMES),))
    carried = carry_plan(graph, WHOLE, LEFT, plan)
    assert carried.plan is not None
    (part,) = carried.plan.parts
    assert part.devices == NAMES[:2] + NAMES[4:]
    assert part.shares == ()  # 12 samples are 2 for each of 6
    assert carried.dropped == {0: 2}
    check_all_run(graph, carried.starts)


def test_shares_are_whole_samples_in_the_old_proportion(graph: Graph) -> None:
    shares = tuple(each / 12 for each in (1, 1, 1, 1, 2, 2, 2, 2))
    plan = Plan(parts=(Part(ops=graph.op_names, devices=NAMES, shares=shares),))
    carried = carry_plan(graph, WHOLE, LEFT, plan)
    assert carried.plan is not None
    # Of 12 samples 1.2 and 2.4 each: what rounding down leaves, two, goes to the largest rests.
    samples = [round(12 * each) for each in carried.plan.parts[0].shares]
    assert samples == [1, 1, 3, 3, 2, 2]


def test_a_team_goes_with_any_of_its_devices(graph: Graph) -> None:
    order = (NAMES[0], NAMES[2], NAMES[1], NAMES[4], NAMES[5], NAMES[6])
    plan = Plan(parts=(Part(ops=graph.op_names, devices=order, tensor=2),))
    carried = carry_plan(graph, WHOLE, LEFT, plan)
    assert carried.plan is not None
    assert carried.plan.parts[0].teams() == ((NAMES[1], NAMES[4]), (NAMES[5], NAMES[6]))
    check_all_run(graph, carried.starts)


def test_zero_goes_with_the_last_but_one_holder(graph: Graph) -> None:
    plan = Plan(parts=(Part(ops=graph.op_names, devices=NAMES[1:4], zero=3),))
    carried = carry_plan(graph, WHOLE, LEFT, plan)
    assert carried.plan is not None
    assert (carried.plan.parts[0].devices, carried.plan.parts[0].zero) == ((NAMES[1],), 0)


def test_a_stage_without_a_device_goes_to_idle_ones_or_to_its_neighbours(graph: Graph) -> None:
    homes = [(NAMES[0],), (NAMES[2],), (NAMES[4],)]
    plan = pipeline(graph, homes, ["embedding-1", "2-3", "4-head"])
    carried = carry_plan(graph, WHOLE, LEFT, plan)
    assert (carried.plan, carried.homeless, carried.dropped) == (None, (1,), {1: 1})
    idle, joins_next, joins_last = carried.repaired
    assert idle.parts[1].devices == (NAMES[1],)
    assert [part.what for part in joins_next.in_layers(graph).parts] == [
        "layers 'embedding-1'", "layers '2-head'",
    ]  # fmt: skip
    assert [part.what for part in joins_last.in_layers(graph).parts] == [
        "layers 'embedding-3'", "layers '4-head'",
    ]  # fmt: skip
    check_all_run(graph, carried.starts)


def test_idle_devices_may_stand_in_for_those_that_are_gone(graph: Graph) -> None:
    plan = Plan(parts=(Part(ops=graph.op_names, devices=NAMES[2:6]),))
    carried = carry_plan(graph, WHOLE, LEFT, plan)
    assert carried.plan is not None
    assert carried.plan.parts[0].devices == NAMES[4:6]
    (other,) = carried.repaired
    assert other.parts[0].devices == (NAMES[0], NAMES[1], NAMES[4], NAMES[5])
    check_all_run(graph, carried.starts)


def test_ops_without_a_device_are_dealt_out(graph: Graph) -> None:
    device_of_op = [2 if number % 3 else 0 for number in range(graph.num_ops)]
    of_group: dict[int, int] = {}
    for op, group in enumerate(graph.group.tolist()):
        if group >= 0:
            device_of_op[op] = of_group.setdefault(group, device_of_op[op])
    plan = place_ops(graph.op_names, device_of_op, NAMES)
    carried = carry_plan(graph, WHOLE, LEFT, plan)
    assert carried.plan is None
    assert carried.repaired
    check_all_run(graph, carried.repaired)


def test_on_the_same_cluster_a_plan_stays_as_it_is(graph: Graph) -> None:
    part = Part(ops=graph.op_names, devices=NAMES, tensor=2, zero=1, recompute=Recompute.FULL)
    plan = Plan(parts=(part,))
    carried = carry_plan(graph, WHOLE, WHOLE, plan)
    assert carried.starts == (plan,)
    assert not carried.dropped


def test_devices_of_other_names_hold_nothing(graph: Graph) -> None:
    plan = Plan(parts=(Part(ops=graph.op_names, devices=NAMES),))
    other = find_cluster("dgx1")  # whose devices are in another host, or of other names
    carried = carry_plan(graph, drop_hosts(WHOLE, ["host0"], "without"), other, plan)
    assert carried.plan is None
