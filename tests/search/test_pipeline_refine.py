"""Refinement: moves of single nodes over the boundaries of stages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.search.method.pipeline.refine import BY_BOTH, BY_DISTANCE, BY_TIME, refine_split
from meshwright.search.method.pipeline.stage.problem import (
    DeviceKind,
    SplitProblem,
    device_loads,
    fits_memory,
    make_problem,
)


def problem_of(
    seconds: list[float],
    edges: list[tuple[int, int]],
    wires: list[tuple[list[int], float]],
    devices: int,
    memory_bytes: float = np.inf,
) -> SplitProblem:
    kind = DeviceKind(
        name="device", count=devices, seconds=np.array(seconds), memory_bytes=memory_bytes
    )
    return make_problem(
        kinds=[kind],
        num_bytes=np.ones(len(seconds)),
        saved_bytes=np.ones(len(seconds)),
        in_flight=tuple(range(devices, 0, -1)),
        edges=edges,
        wires=wires,
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[SplitProblem, np.ndarray, int]:
    count = draw(st.integers(2, 9))
    stages = draw(st.integers(2, min(4, count)))
    pair = st.tuples(st.integers(0, count - 2), st.integers(1, count - 1))
    edges = [(u, v) for u, v in draw(st.lists(pair, max_size=12)) if u < v]
    wires = [([u, v], draw(st.sampled_from([0.5, 1.0, 3.0]))) for u, v in edges]
    seconds = draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=count, max_size=count))
    memory = draw(st.sampled_from([8.0, 12.0, 20.0, np.inf]))
    problem = problem_of(seconds, edges, wires, stages, memory)
    cuts = sorted(draw(st.permutations(range(1, count)))[: stages - 1])
    return problem, np.searchsorted(cuts, np.arange(count), side="right"), stages


@given(problems(), st.sampled_from([BY_DISTANCE, BY_TIME, BY_BOTH]), st.integers(0, 30))
@settings(max_examples=200)
def test_stages_stay_convex_and_within_memory_and_are_never_slower(
    given_problem: tuple[SplitProblem, np.ndarray, int], order: str, steps: int
) -> None:
    problem, stage, stages = given_problem
    kinds = [0] * stages
    found = refine_split(problem, stage.astype(np.int32), kinds, steps=steps, order=order)
    before, after = (device_loads(problem, each, kinds) for each in (stage, found))
    assert after.max() <= before.max() * (1 + 1e-9)
    assert (found[problem.edge_source] <= found[problem.edge_target]).all()
    assert len(np.unique(found)) == stages
    if fits_memory(problem, stage, kinds):
        assert fits_memory(problem, found, kinds)


@pytest.mark.parametrize("order", [BY_DISTANCE, BY_TIME])
def test_a_boundary_moves_to_where_both_stages_are_equal(order: str) -> None:
    # Eight equal nodes in a chain, cut after the second.
    edges = [(k, k + 1) for k in range(7)]
    problem = problem_of([1.0] * 8, edges, [], 2)
    stage = np.array([0, 0, 1, 1, 1, 1, 1, 1], dtype=np.int32)
    assert refine_split(problem, stage, [0, 0], order=order).tolist() == [0] * 4 + [1] * 4


def test_a_branch_is_finished_though_no_single_move_of_it_gains() -> None:
    # 0 feeds two branches of two nodes each that meet in 5. A cut within the branches exchanges two
    # tensors, after them one: 1 + 2 and 3 + 4 must all move before it pays.
    edges = [(0, 1), (0, 3), (1, 2), (3, 4), (2, 5), (4, 5), (5, 6)]
    wires = [([0, 1, 3], 8.0), ([1, 2], 8.0), ([3, 4], 8.0), ([2, 5], 8.0), ([4, 5], 8.0),
             ([5, 6], 1.0)]  # fmt: skip
    problem = problem_of([1.0] * 7, edges, wires, 2)
    stage = np.array([0, 0, 1, 1, 1, 1, 1], dtype=np.int32)
    found = refine_split(problem, stage, [0, 0], order=BY_DISTANCE)
    assert found.tolist() == [0, 0, 0, 0, 0, 0, 1]  # 6 + 1 and 1 + 1, where it was 18 and 21


def test_a_full_stage_takes_no_more() -> None:
    # Stage 0 holds 2 bytes for the schedule and 2 x 2 in flight: six in all, and no more.
    problem = problem_of([1.0] * 4, [(0, 1), (1, 2), (2, 3)], [], 2, memory_bytes=6.0)
    stage = np.array([0, 0, 1, 1], dtype=np.int32)
    assert refine_split(problem, stage, [0, 0]).tolist() == [0, 0, 1, 1]
