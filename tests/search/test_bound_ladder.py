"""Bounds hold where ops have times at several numbers of samples, however noisy."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from measured_run import chain, hosts
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.search.bound.work import plan_bound
from meshwright.search.instance import make_instance
from meshwright.simulate.simulate import simulate

MB = 1e6


@st.composite
def noisy_steps(draw: st.DrawFn) -> Graph:
    """Three layers of batch 64, with rungs that may have any time at all."""
    graph = chain([0.01] * 3, [MB] * 3, gradient=MB)
    known = st.one_of(st.floats(0, 0.1), st.just(float("nan")))
    times = st.lists(known, min_size=graph.num_ops, max_size=graph.num_ops)
    sizes = draw(st.sets(st.sampled_from([1.0, 8.0, 20.0, 32.0]), min_size=1))
    return replace(graph, ladders={"box": {size: np.array(draw(times)) for size in sizes}})


@given(
    graph=noisy_steps(),
    parts=st.integers(1, 2),
    first=st.floats(0.1, 0.9),
    microbatches=st.sampled_from([1, 3, 8]),
)
def test_no_plan_is_faster_than_the_bound(
    graph: Graph, parts: int, first: float, microbatches: int
) -> None:
    cluster = hosts(1e12, 0.0, count=4)
    names = [each.name for each in cluster.devices]
    stages = tuple(
        Part(
            ops=tuple(op for op in graph.op_names if (op[1:] == "0") == (stage == 0) or parts == 1),
            devices=(names[2 * stage], names[2 * stage + 1]),
            shares=(first, 1 - first),
        )
        for stage in range(parts)
    )
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=microbatches)
    seconds = simulate(graph, cluster, Plan(parts=stages, schedule=schedule)).step_seconds
    small = hosts(1e12, 0.0, count=2 * parts)
    assert seconds >= plan_bound(make_instance(graph, small)) * (1 - 1e-9)
