"""Who talks to whom in a program, and what that takes of memory."""

import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.cost.memory import COMMUNICATOR_BYTES, PAIR_COMMUNICATOR_BYTES, PEER_BYTES
from meshwright.graph.architecture.gpt import gpt
from meshwright.plan.plan import Plan
from meshwright.simulate.footprint import find_talk, footprint
from meshwright.simulate.simulate import simulate

GPT = gpt(
    hidden=64, heads=4, layers=2, sequence=32, vocabulary=128, positions=64, batch=8,
    precision="bf16", untie=True,
)  # fmt: skip


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_both_granularities_have_the_groups_of_the_mesh(zero: int) -> None:
    # Two stages of two replicas of two: tensor pairs side by side, replicas every second device.
    cluster = find_cluster("h100-x8")
    plan = Plan.from_degrees(GPT, cluster, tensor=2, pipeline=2, microbatches=2, zero=zero)
    stages = (0, 1, 2, 3), (4, 5, 6, 7)
    groups = {pair for a, b, c, d in stages for pair in ((a, b), (c, d), (a, c), (b, d))}
    pairs = {(0, 4), (1, 5), (2, 6), (3, 7)}
    for granularity in ("op", "layer"):
        timeline = simulate(GPT, cluster, plan, granularity=granularity)
        assert find_talk(timeline.program) == (groups, pairs)
        held = footprint(GPT, cluster, timeline).collective_bytes
        assert held == pytest.approx([2 * PAIR_COMMUNICATOR_BYTES + PEER_BYTES] * 8)


def test_one_device_has_a_context_and_no_buffers() -> None:
    cluster = find_cluster("h100-x1")
    timeline = simulate(GPT, cluster, Plan.from_degrees(GPT, cluster))
    found = footprint(GPT, cluster, timeline)
    assert found.collective_bytes == [0.0]
    assert found.context_bytes == [400e6]


def test_replicas_have_one_communicator() -> None:
    cluster = find_cluster("h100-x4")
    timeline = simulate(GPT, cluster, Plan.from_degrees(GPT, cluster, data=4))
    found = footprint(GPT, cluster, timeline)
    assert found.collective_bytes == pytest.approx([COMMUNICATOR_BYTES] * 4)
