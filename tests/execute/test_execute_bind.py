"""What a rank does in a step, and when: everything that is waited for has been started."""

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from small_models import captured
from small_plans import data_plan, hybrid, pipeline_plan

from meshwright.execute.bind import bind_part
from meshwright.execute.item import RankPart, RunSegment
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import Lowered, lower_frozen
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, Recompute, ScheduleKind, Sync
from meshwright.program.program import JOINS, Kind
from quick import few
from small import connected

RATES = (1e5, 1e7, 1e10)
"""Bytes a second: communication takes most of a step, some, none."""


HYBRIDS = (
    (0, Recompute.FULL),
    (1, Recompute.SELECTIVE),
    (2, Recompute.NONE),
    (3, Recompute.FULL),
)


def plans(graph: Graph) -> list[Plan]:
    kinds = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE)
    found = [pipeline_plan(graph, 4, 2, kind, 4) for kind in kinds] + [data_plan(graph, 4)]
    hybrids = [hybrid(plan, *each) for plan in found for each in HYBRIDS]
    return [*hybrids, data_plan(graph, 4, sync=Sync.PARAMETER_SERVER)]


@cache
def lower_all(name: str, rate: float) -> list[Lowered]:
    graph, cluster = captured(name, "adamw"), connected(4, rate)
    copying = {
        each: replace(kind, memory_bytes_per_second=1e9) for each, kind in cluster.types.items()
    }
    cluster = replace(cluster, types=copying)  # a server's sum takes time
    return [lower_frozen(graph, cluster, plan) for plan in plans(graph)]


def parts(lowered: Lowered) -> list[RankPart]:
    return [bind_part(Lookup(lowered=lowered), device) for device in lowered.devices]


@pytest.mark.parametrize("rate", few(RATES, 1e7))
@pytest.mark.parametrize("name", ["odd", "unet"])
def test_all_that_is_waited_for_has_been_started_before(name: str, rate: float) -> None:
    for lowered in lower_all(name, rate):
        for part in parts(lowered):
            place = {each.instruction: each.place for each in part.receives}
            waited: set[int] = set()
            for number, item in enumerate(part.items):
                assert not waited & set(item.waits), "nothing is waited for twice"
                waited |= set(item.waits)
                for each in item.waits:
                    assert place[each] <= number, part.items[number]
                    assert lowered.program.instructions["kind"][each] not in JOINS
                if not isinstance(item, RunSegment):
                    place[item.instruction] = number
            assert {each.instruction for each in part.receives} <= waited


def freed(lowered: Lowered) -> dict[int, float]:
    """By instruction the bytes that the simulation frees when it ends."""
    program, finish = lowered.program, lowered.timeline.finish
    last = {number: int(each) for number, each in enumerate(program.buffers["writer"])}
    for instruction, buffer in program.reads.tolist():
        if finish[instruction] > finish[last[buffer]]:
            last[buffer] = instruction
    found = dict(enumerate(program.instructions["workspace_bytes"].tolist()))
    for buffer, instruction in last.items():
        found[instruction] += float(program.buffers["bytes"][buffer])
    return found


@pytest.mark.parametrize("rate", few(RATES, 1e7))
@pytest.mark.parametrize("name", ["odd", "unet"])
def test_late_communication_and_early_receives_hold_no_more_than_was_predicted(
    name: str, rate: float
) -> None:
    late, early = 0, 0
    for lowered in lower_all(name, rate):
        start, finish = lowered.timeline.start, lowered.timeline.finish
        frees = freed(lowered)
        for part in parts(lowered):
            when, held = lowered.timeline.memory(part.device)
            started: dict[int, float] = {}
            sent = 0.0
            for number, item in enumerate(part.items):
                for each in item.waits:
                    started.pop(each, None)
                if not isinstance(item, RunSegment):
                    end = float(finish[item.instruction])
                    if item.kind == Kind.SEND:
                        end = sent = max(sent, end)  # their ends are seen in their order
                    is_late = item.kind not in JOINS
                    if is_late and finish[item.instruction] > start[item.instruction]:
                        started[item.instruction] = end
                    continue
                for each in item.instructions:
                    now, until = float(start[each]), float(finish[each])
                    most = held[(when > now) & (when < until)].max(initial=held[when <= now][-1])
                    lingering = sum(frees[c] for c, end in started.items() if end <= now)
                    ahead = sum(
                        r.bytes
                        for r in part.receives
                        if r.place <= number and start[r.instruction] >= until
                    )
                    late, early = late + (lingering > 0), early + (ahead > 0)
                    assert most + lingering + ahead <= held.max() * (1 + 1e-9)
    assert late, "there is room for some"
    assert early


def test_a_segment_ends_where_a_large_receive_starts() -> None:
    # The simulation has it start in the middle of what computes, and all of that needs memory.
    graph = captured("unet", "adamw")
    plan = pipeline_plan(graph, 4, 2, ScheduleKind.ONE_F_ONE_B, 4)
    cuts = 0
    for part in parts(lower_frozen(graph, connected(4, 1e7), plan)):
        for each in part.receives:
            before, after = part.items[max(each.place - 1, 0)], part.items[each.place]
            if isinstance(before, RunSegment) and isinstance(after, RunSegment):
                cuts += before.microbatch == after.microbatch and not after.waits
    assert cuts


def test_receives_come_when_the_simulation_has_their_transfers_start() -> None:
    graph = captured("odd", "adamw")
    lowered = lower_frozen(
        graph, connected(4, 1e7), pipeline_plan(graph, 4, 2, ScheduleKind.GPIPE, 4)
    )
    starts, late = lowered.timeline.start, 0
    for part in parts(lowered):
        begins = [
            float(lowered.timeline.start[item.instructions[0]])
            if isinstance(item, RunSegment)
            else -1.0
            for item in part.items
        ]
        for each in part.receives:
            start = float(starts[each.instruction])
            assert begins[each.place] <= start * (1 + 1e-12)
            after = [begin for begin in begins[each.place + 1 :] if begin >= 0]
            assert all(begin > start for begin in after[:1])
            late += each.place > 0
    assert late, "some are posted in the course of the step"
