"""Where the granularities `op` and `part` could part, worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.program.unit import merge_units
from meshwright.program.work import prepare_work
from meshwright.simulate.simulate import simulate
from small import connected, dag, layers, stages

GRANULARITIES = pytest.mark.parametrize("granularity", ["op", "part"])


@GRANULARITIES
@pytest.mark.parametrize(("sharing", "seconds"), [("none", 3 + 4), ("fair", 3 + 6)])
def test_tensors_of_one_action_travel_side_by_side_unless_links_are_shared(
    granularity: str, sharing: str, seconds: float
) -> None:
    # f0 and f1 end at 2; f2 waits for 4 and 2 bytes, at a byte a second.
    graph = dag([1.0, 1.0, 1.0], {(0, 2): 4.0, (1, 2): 2.0})
    plan = _stages_of(graph, [(0, 1), (2,)], [["d0"], ["d1"]])
    timeline = simulate(graph, connected(2), plan, sharing=sharing, granularity=granularity)
    assert timeline.step_seconds == pytest.approx(seconds)


@GRANULARITIES
def test_an_action_sends_in_the_order_of_its_ops(granularity: str) -> None:
    # o0 and o1 end at 2. The 5 bytes of o0, for the second stage of d1, arrive at 7, and only then
    # the byte of o1, which the first needs, at 8: o2 ends at 9, o3 at 10.
    graph = dag([1.0, 1.0, 1.0, 1.0], {(0, 3): 5.0, (1, 2): 1.0, (2, 3): 0.0})
    plan = _stages_of(graph, [(0, 1), (2,), (3,)], [["d0"], ["d1"], ["d1"]])
    timeline = simulate(graph, connected(2), plan, sharing="fair", granularity=granularity)
    assert timeline.step_seconds == pytest.approx(10)


@GRANULARITIES
def test_what_is_fixed_takes_its_memory_on_every_replica(granularity: str) -> None:
    # o0 hands o1 8 bytes of which nothing shrinks with the rows, on half of half the batch.
    builder = GraphBuilder("fixed", batch=4)
    first = builder.add_op("o0", seconds={"any": 1.0})
    second = builder.add_op("o1", seconds={"any": 1.0})
    builder.add_tensor(first, 8.0, [second], fixed_bytes=8.0)
    graph = builder.finish()
    plan = _stages_of(graph, [(0, 1)], [["d0", "d1"]], microbatches=2)
    timeline = simulate(graph, connected(2), plan, granularity=granularity)
    assert timeline.peak_bytes == (8, 8)


@pytest.mark.parametrize(("granularity", "seconds"), [("op", 4.5), ("part", 5.0)])
def test_a_unit_joins_what_it_received_when_all_is_there(granularity: str, seconds: float) -> None:
    # The one way in which units are slower. Halves of o0 and o1 end at 1; those of o0's 2 bytes
    # arrive at 2, of o1's at 3; joining 2 bytes takes 4/8 s, which op by op o0's do on the way.
    graph = dag([1.0, 1.0, 1.0], {(0, 2): 2.0, (1, 2): 2.0})
    plan = _stages_of(graph, [(0, 1), (2,)], [["d0", "d1"], ["d2"]])
    cluster = connected(3)
    types = {
        name: replace(kind, memory_bytes_per_second=8.0) for name, kind in cluster.types.items()
    }
    timeline = simulate(graph, replace(cluster, types=types), plan, granularity=granularity)
    assert timeline.step_seconds == pytest.approx(seconds)


def test_merged_work_keeps_the_times_that_a_schedule_looks_at() -> None:
    # 0.1 + 0.2 + 0.3 is not 0.3 + 0.3: zero-bubble would break ties one way by op, one by part.
    graph = layers(4, forward=0.1, backward=0.2, weight=0.3)
    plan = stages(graph, [["d0"], ["d1"]], "zero-bubble", 4)
    work = prepare_work(graph, connected(2), plan)
    assert merge_units(work).stage_seconds == work.stage_seconds


def _stages_of(
    graph: Graph,
    members: Sequence[Sequence[int]],
    devices: Sequence[Sequence[str]],
    microbatches: int = 1,
) -> Plan:
    parts = tuple(
        Part(ops=tuple(graph.op_names[op] for op in ops), devices=tuple(on))
        for ops, on in zip(members, devices, strict=True)
    )
    schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=microbatches)
    return Plan(parts=parts, schedule=schedule)
