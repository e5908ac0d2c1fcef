"""Estimates, traffic, memory by formula and neighbours of candidates."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs, make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.check import resolve
from meshwright.plan.plan import ScheduleKind
from meshwright.search.instance import make_instance
from meshwright.search.judge import try_plan
from meshwright.search.method.pipeline.block import find_blocks
from meshwright.search.method.pipeline.candidate import (
    Candidate,
    StageCut,
    recomputed_peak_bytes,
    suited_kinds,
)
from meshwright.search.method.pipeline.cutter import divide_stages
from meshwright.search.method.pipeline.estimate import Estimator, Traffic
from meshwright.search.method.pipeline.microbatch_price import PipelineShape, Prices, StageTeam
from meshwright.search.method.pipeline.pipedream import usual_candidates
from meshwright.search.method.pipeline.tune import neighbours
from meshwright.zoo.shipped import read_shipped


def two_layers() -> Graph:
    """Forward 1 s and 2 s, backward twice that, 8 bytes between; 10 and 20 bytes of state."""
    builder = GraphBuilder("two", 4)
    first = builder.add_op("f0", seconds={"any": 1.0}, state_bytes=10.0, saved_bytes=4.0)
    second = builder.add_op("f1", seconds={"any": 2.0}, state_bytes=20.0, saved_bytes=12.0)
    later = builder.add_op("b1", phase=Phase.BACKWARD, partner=second, seconds={"any": 4.0})
    last = builder.add_op("b0", phase=Phase.BACKWARD, partner=first, seconds={"any": 2.0})
    builder.add_tensor(first, 8.0, [second])
    builder.add_tensor(later, 6.0, [last])
    return builder.finish()


def candidate_of(graph: Graph, kind: ScheduleKind, microbatches: int) -> Candidate:
    stage = np.where(np.isin(graph.op_names, ["f0", "b0"]), 0, 1).astype(np.int32)
    cut = StageCut.of(graph, stage)
    return Candidate(cut=cut, homes=((0,), (1,)), kind=kind, microbatches=microbatches)


@given(graphs(max_ops=14), clusters(max_devices=4), st.sampled_from(["fair", "none"]), st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_bounds_hold_for_whatever_is_simulated(
    graph: Graph, cluster: Cluster, sharing: str, data: st.DataObject
) -> None:
    instance = make_instance(graph, cluster)
    source, target = graph.edges
    if (graph.phase[target] < graph.phase[source]).any():
        return
    estimator, blocks = Estimator(Prices(instance), sharing), find_blocks(graph)
    candidates = list(usual_candidates(instance, ()))
    if not candidates:
        return
    start = data.draw(st.sampled_from(candidates))
    near = [start, *neighbours(instance, blocks, start, [1, 2, 4])]
    for candidate in near[:: max(1, len(near) // 6)]:
        plan = candidate.plan(cluster)
        resolve(graph, cluster, plan)
        try:
            verdict = try_plan(graph, cluster, plan, sharing, "part")
        except InputError:
            continue  # an op that needs the whole batch within a replicated stage
        estimate = estimator.estimate(candidate)
        assert estimate.bound_seconds <= verdict.step_seconds * (1 + 1e-9)
        assert estimate.missing_bytes <= verdict.missing_bytes * (1 + 1e-9)


def test_a_bound_counts_the_way_in_and_out() -> None:
    # One of 4 microbatches passes stage 0 in 0.25 s, then stage 1 computes 6 s, then 0.5 s back.
    graph, cluster = two_layers(), make_cluster(["fast"] * 2, rate=1e9)
    estimator = Estimator(Prices(make_instance(graph, cluster)), "fair")
    found = estimator.estimate(candidate_of(graph, ScheduleKind.ONE_F_ONE_B, 4))
    assert found.bound_seconds == pytest.approx(6.75)
    assert found.guess_seconds == pytest.approx(6.75, rel=1e-6)
    verdict = try_plan(
        graph, cluster, candidate_of(graph, ScheduleKind.ONE_F_ONE_B, 4).plan(cluster)
    )
    assert verdict.step_seconds == pytest.approx(6.75, rel=1e-6)


def test_backward_does_not_wait_for_that_of_a_stage_whose_forward_it_reads() -> None:
    # Stage 0: 1 s of forward, then 2 s that read stage 1's forward. Stage 1: 1 s and 4 s, no more.
    builder = GraphBuilder("crossed", 4)
    for name, seconds in (("f0", 1.0), ("f1", 1.0), ("b0", 2.0), ("b1", 4.0)):
        phase = Phase.FORWARD if name[0] == "f" else Phase.BACKWARD
        builder.add_op(name, phase=phase, seconds={"any": seconds})
    builder.add_tensor(1, 1.0, [2])
    graph, cluster = builder.finish(), make_cluster(["fast"] * 2, rate=1e9)
    candidate = candidate_of(graph, ScheduleKind.ONE_F_ONE_B, 1)
    found = Estimator(Prices(make_instance(graph, cluster)), "fair").estimate(candidate)
    verdict = try_plan(graph, cluster, candidate.plan(cluster), "fair", "part")
    assert found.bound_seconds == pytest.approx(5.0)
    assert verdict.step_seconds == pytest.approx(5.0)


def test_a_link_is_busy_for_all_its_bytes() -> None:
    # 8 bytes there at 0.5 bytes/s: 16 s, more than any compute.
    graph, cluster = two_layers(), make_cluster(["fast"] * 2, rate=0.5)
    estimator = Estimator(Prices(make_instance(graph, cluster)), "fair")
    found = estimator.estimate(candidate_of(graph, ScheduleKind.GPIPE, 4))
    assert found.bound_seconds == pytest.approx(16.0)


def test_what_lacks_memory_is_known_before_it_is_simulated() -> None:
    # Stage 1 holds 20 bytes of state and 12 / 4 saved of the one microbatch in flight.
    graph, cluster = two_layers(), make_cluster(["fast"] * 2, rate=1e9, memory_bytes=22.0)
    estimator = Estimator(Prices(make_instance(graph, cluster)), "fair")
    found = estimator.estimate(candidate_of(graph, ScheduleKind.ONE_F_ONE_B, 4))
    assert found.missing_bytes == pytest.approx(1.0)


def test_pairs_of_replicas_share_the_link_between_hosts() -> None:
    # Titan V hosts of four: four pairs go through one Ethernet link of 1.1 GB/s; a quarter of each
    # byte takes as long as the whole byte alone.
    cluster = find_cluster("titan-v-4x4")
    first, second = (0, 1, 2, 3), (4, 5, 6, 7)
    slow = 1 / float(cluster.bandwidth[0, 4])
    shared, alone = (Traffic(cluster, sharing) for sharing in ("fair", "none"))
    assert shared.flow(first, second).seconds_per_byte == pytest.approx(slow)
    assert alone.flow(first, second).seconds_per_byte == pytest.approx(slow / 4)
    assert shared.flow((0,), (0,)).seconds_per_byte == 0.0


def test_replicas_of_other_numbers_exchange_the_rows_they_share() -> None:
    # 2 to 3 replicas at 1 byte/s: the largest common part is a third of the batch.
    traffic = Traffic(make_cluster(["fast"] * 5), "fair")
    assert traffic.flow((0, 1), (2, 3, 4)).seconds_per_byte == pytest.approx(1 / 3)


def test_a_ring_moves_twice_all_but_one_share() -> None:
    traffic = Traffic(make_cluster(["fast"] * 4), "fair")
    assert traffic.ring_seconds_per_byte((0, 1, 2, 3)) == pytest.approx(2 * 3 / 4)
    assert traffic.ring_seconds_per_byte((2,)) == 0.0


def test_replicas_sync_once_and_updates_count_a_microbatch_s_part() -> None:
    builder = GraphBuilder("one", 4)
    builder.add_op("f", seconds={"any": 4.0}, parameter_bytes=6.0)
    graph = builder.finish()
    prices = Prices(make_instance(graph, make_cluster(["fast"] * 2)))
    # 4 s / (2 replicas x 4 microbatches) and 2 x 1/2 x 6 bytes at 2 s a byte / 4.
    load = prices.load_seconds(StageTeam(grade=0, replicas=2), 4, 2.0)
    assert load.tolist() == pytest.approx([0.5 + 3.0])


def test_shapes_count_what_is_in_flight() -> None:
    team = (StageTeam(grade=0, replicas=2),)
    assert PipelineShape(teams=team, counts=(8,), microbatches=3).in_flight() == (3, 3, 2, 1)
    everything = PipelineShape(teams=team, counts=(8,), microbatches=3, keeps_all=True)
    assert everything.in_flight() == (3, 3, 3, 3)
    # Two stages each on two teams: the first has 2 + 2 and one of its two stages in flight.
    chunks = PipelineShape(teams=team, counts=(4,), microbatches=8, chunks=2)
    assert chunks.most_stages == 4
    assert chunks.in_flight() == (3, 3, 3, 3)


def test_peaks_by_formula() -> None:
    graph = two_layers()
    cut = candidate_of(graph, ScheduleKind.ONE_F_ONE_B, 4).cut
    # Larger of forward (8 made + 4 saved) and backward (0), plus the gradient of 6 received; and
    # of 12 saved and 6 made, plus 8 received: a quarter of each.
    assert recomputed_peak_bytes(graph, cut, 4, [1, 1]).tolist() == [10 + 18 / 4, 20 + 20 / 4]
    assert recomputed_peak_bytes(graph, cut, 4, [2, 1]).tolist() == [10 + 18 / 8, 20 + 20 / 4]


def test_schedules_suit_the_homes() -> None:
    two = ((0,), (1,))
    assert ScheduleKind.ZERO_BUBBLE in suited_kinds(2, two, 4)
    assert suited_kinds(2, two, 1) == (ScheduleKind.ONE_F_ONE_B,)
    assert suited_kinds(4, two * 2, 4) == (ScheduleKind.INTERLEAVED, ScheduleKind.GPIPE)
    assert suited_kinds(3, (*two, (0,)), 4) == (ScheduleKind.GPIPE,)


def test_stages_are_divided_until_there_are_enough() -> None:
    stage = np.array([0, 0, 0, 0, 1, 1], dtype=np.int32)
    seconds = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert divide_stages(stage, seconds, 4).tolist() == [0, 1, 2, 2, 3, 3]
    assert divide_stages(stage, seconds, 9).tolist() == [0, 1, 2, 3, 4, 5]


def test_neighbours_of_a_real_pipeline_are_legal() -> None:
    graph, cluster = read_shipped("unet", 8), find_cluster("titan-v-2x2")
    instance, blocks = make_instance(graph, cluster), find_blocks(graph)
    start = next(each for each in usual_candidates(instance, (4,)) if each.cut.num_stages == 2)
    found = list(neighbours(instance, blocks, start, [1, 2, 4, 8]))
    assert {"schedule", "boundary", "replicas", "join", "divide"} == {e.origin for e in found}
    four = next(each for each in usual_candidates(instance, (4,)) if each.cut.num_stages == 4)
    shared = [e for e in neighbours(instance, blocks, four, [4]) if e.origin == "share"]
    assert len(shared) == 12  # four stages, three other homes each
    found += shared
    for candidate in found:
        resolve(graph, cluster, candidate.plan(cluster))
