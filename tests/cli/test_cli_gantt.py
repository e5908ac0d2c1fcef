from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.gantt import covered_seconds, draw_activities
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import place_ops
from meshwright.simulate.simulate import simulate


def make_graph(tensor_bytes: float) -> Graph:
    """Forward 1 s, backward 2 s, update 1 s in a row; a tensor between the first two."""
    builder = GraphBuilder("g", batch=1)
    first = builder.add_op("f", phase=Phase.FORWARD, seconds={"any": 1.0})
    second = builder.add_op("b", phase=Phase.BACKWARD, seconds={"any": 2.0})
    third = builder.add_op("u", phase=Phase.UPDATE, seconds={"any": 1.0})
    builder.add_tensor(first, tensor_bytes, [second])
    builder.add_tensor(second, 0.0, [third])
    return builder.finish()


def names(cluster: Cluster) -> list[str]:
    return [device.name for device in cluster.devices]


def test_one_device_runs_phase_after_phase() -> None:
    cluster = find_cluster("v100-32-x1")
    graph = make_graph(0.0)
    plan = place_ops(graph.op_names, [0, 0, 0], names(cluster))
    timeline = simulate(graph, cluster, plan)
    assert draw_activities(timeline, [0], 8) == ["██▓▓▓▓▒▒"]  # two characters a second


def test_transfers_and_idle_time_show() -> None:
    cluster = find_cluster("v100-32-x2")
    graph = make_graph(2.0 * float(cluster.bandwidth[0, 1]))  # two seconds on the way
    plan = place_ops(graph.op_names, [0, 1, 1], names(cluster))
    timeline = simulate(graph, cluster, plan)
    assert timeline.step_seconds == pytest.approx(6.0, rel=1e-4)
    lines = draw_activities(timeline, [0, 1], 6)
    assert lines == ["█░░···", "·░░▓▓▒"]


@given(
    intervals=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=12),
    width=st.integers(1, 9),
)
def test_cover_is_that_of_a_loop_over_intervals(
    intervals: list[tuple[int, int]], width: int
) -> None:
    edges = np.linspace(0.0, 60.0, width + 1)
    start = np.array([float(low) for low, _ in intervals])
    finish = np.array([float(low + length) for low, length in intervals])
    expected = [
        sum(max(0.0, min(high, b) - max(low, a)) for low, high in zip(start, finish, strict=True))
        for a, b in pairwise(edges)
    ]
    assert covered_seconds(start, finish, edges) == pytest.approx(expected, abs=1e-9)
