"""What a rank does in a step, and when: everything that is waited for has been started."""

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from small_models import captured
from small_plans import data_plan, hybrid, pipeline_plan

from meshwright.execute.bind import bind_part
from meshwright.execute.item import Part, RunSegment
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import Lowered, lower_frozen
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, Recompute, ScheduleKind, Sync
from small import connected

RATES = (1e5, 1e7, 1e10)
"""Bytes a second: communication takes most of a step, some, none."""


def plans(graph: Graph) -> list[Plan]:
    kinds = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE)
    found = [pipeline_plan(graph, 4, 2, kind, 4) for kind in kinds]
    found += [data_plan(graph, 4), data_plan(graph, 4, sync=Sync.PARAMETER_SERVER)]
    again = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    return [
        hybrid(plan, zero, each)
        for plan in found
        for zero in (range(4) if plan.parts[0].sync is Sync.ALL_REDUCE else [0])
        for each in again
    ]


def parts(lowered: Lowered) -> list[Part]:
    return [bind_part(Lookup.of(lowered), device) for device in lowered.devices]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", ["odd", "unet"])
def test_all_that_is_waited_for_has_been_started_before(name: str, rate: float) -> None:
    graph = captured(name, "adamw")
    for plan in plans(graph):
        for part in parts(lower_frozen(graph, connected(4, rate), plan)):
            place = {each.instruction: each.place for each in part.receives}
            waited: set[int] = set()
            for number, item in enumerate(part.items):
                assert not waited & set(item.waits), "nothing is waited for twice"
                waited |= set(item.waits)
                for each in item.waits:
                    assert place[each] <= number, part.items[number]
                if not isinstance(item, RunSegment) and item.group >= 0:
                    place[item.instruction] = number
            assert {each.instruction for each in part.receives} <= waited


def test_a_collective_waits_for_those_of_its_lane_that_the_simulation_has_done() -> None:
    # The main thread makes buffers of a collective: as many as predicted, not as many as fit.
    graph = captured("odd", "adamw")
    plan = hybrid(pipeline_plan(graph, 4, 2, ScheduleKind.ONE_F_ONE_B, 4), 2, Recompute.NONE)
    lowered = lower_frozen(graph, connected(4, 1e7), plan)
    stream = lowered.program.instructions["stream"]
    count = 0
    for part in parts(lowered):
        now, waited = 0.0, set[int]()
        before: dict[int, list[int]] = {}
        for item in part.items:
            waited |= set(item.waits)
            if isinstance(item, RunSegment):
                now = float(lowered.start[item.instructions[0]])
            elif item.group >= 0:
                lane = before.setdefault(int(stream[item.instruction]), [])
                done = {each for each in lane if lowered.finish[each] < now}
                assert done <= waited
                count += len(done)
                lane.append(item.instruction)
    assert count


def test_receives_come_when_the_simulation_has_their_transfers_start() -> None:
    graph = captured("odd", "adamw")
    lowered = lower_frozen(
        graph, connected(4, 1e7), pipeline_plan(graph, 4, 2, ScheduleKind.GPIPE, 4)
    )
    late = 0
    for part in parts(lowered):
        begins = [
            float(lowered.start[item.instructions[0]]) if isinstance(item, RunSegment) else -1.0
            for item in part.items
        ]
        for each in part.receives:
            start = float(lowered.start[each.instruction])
            assert begins[each.place] <= start * (1 + 1e-12)
            after = [begin for begin in begins[each.place + 1 :] if begin >= 0]
            assert all(begin > start for begin in after[:1])
            late += each.place > 0
    assert late, "some are posted in the course of the step"
