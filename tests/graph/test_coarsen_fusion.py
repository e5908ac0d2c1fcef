"""Operator fusion by QuickP's rules, and the thresholds."""

import time

import networkx as nx
import numpy as np
import pytest
from coarsen_strategies import DELAYS, Melted, chain_of, line, sets_of, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.array import Floats
from meshwright.errors import InputError
from meshwright.graph.architecture.bert import bert
from meshwright.graph.build import GraphBuilder
from meshwright.graph.coarsen.coarsening import contract
from meshwright.graph.coarsen.fusion import fuse_ops, fuse_web, share_cap
from meshwright.graph.coarsen.thresholds import percentile_threshold, slope_thresholds
from meshwright.graph.coarsen.web import Web
from meshwright.graph.column import ANY_TYPE
from meshwright.graph.graph import Graph


@settings(max_examples=300)
@given(steps(max_ops=14), st.sampled_from(DELAYS))
def test_every_fusion_is_legal_and_none_is_left(case: tuple[Graph, Floats], alpha: float) -> None:
    graph, seconds = case
    web, melted = Web.of(graph, seconds), Melted(graph, seconds)
    for kept, gone in fuse_web(web, alpha).tolist():
        source, target = min(kept, gone), max(kept, gone)
        assert melted.may_fuse(source, target, alpha)
        assert melted.is_only_path(source, target)
        melted.merge(kept, gone)
    assert sets_of(web.label()) == melted.sets()
    assert not [edge for edge in melted.digraph().edges if melted.may_fuse(edge[0], edge[1], alpha)]


@given(steps(max_ops=14), st.sampled_from(DELAYS))
def test_places_stay_in_a_topological_order(case: tuple[Graph, Floats], alpha: float) -> None:
    graph, seconds = case
    web = Web.of(graph, seconds)
    fuse_web(web, alpha)
    label = web.label()
    source, target = graph.edges
    assert np.all(label[source] <= label[target])
    renewed = web.contracted(label)
    assert renewed.nodes["seconds"].tolist() == np.bincount(label, weights=seconds).tolist()
    assert len(fuse_web(renewed, alpha)) == 0


@given(steps(), st.sampled_from((0.1, 0.5, 0.9)))
def test_no_unit_outgrows_its_share(case: tuple[Graph, Floats], share: float) -> None:
    graph, seconds = case
    coarsening = fuse_ops(graph, seconds, alpha=100.0, max_share=share)
    load = coarsening.add_up(seconds)
    group = coarsening.graph.group
    hard = [seconds[graph.group == each].sum() for each in set(graph.group.tolist()) - {-1}]
    largest = max([share * seconds.sum(), seconds.max(), *hard])
    assert load.max() <= largest
    for each in set(group.tolist()) - {-1}:
        assert load[group == each].sum() <= largest


def test_a_chain_becomes_one_op_whatever_it_takes() -> None:
    coarsening = fuse_ops(chain_of(line(5), 5), np.full(5, 9.0), alpha=0.0)
    assert coarsening.graph.num_ops == 1
    assert coarsening.graph.seconds[ANY_TYPE].tolist() == [45.0]


def test_small_ops_join_their_only_neighbour() -> None:
    # 0 -> 1, 2; 1, 2 -> 3 -> 4, and 0 -> 4. Only 1 is small: it has one successor, 3, which has
    # 4 only; 2 -> 3 has out = 1 but in(3) = 2 and 2 is not small.
    # 1 joins 3. Then 0 -> {1, 3}, 2, 4: three readers; {1, 3} -> 4 has out = 1, in(4) = 2.
    graph = chain_of([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 4)], 5)
    seconds = np.array([5.0, 1.0, 5.0, 5.0, 5.0])
    coarsening = fuse_ops(graph, seconds, alpha=1.0)
    assert sets_of(coarsening.coarse_of) == {frozenset(s) for s in ({0}, {1, 3}, {2}, {4})}


def test_degrees_count_distinct_neighbours() -> None:
    # Two tensors from 0 to 1: one neighbour each.
    graph = chain_of([(0, 1), (0, 1)], 2)
    assert fuse_ops(graph, np.full(2, 9.0), alpha=0.0).graph.num_ops == 1


def test_a_fused_op_is_no_longer_small() -> None:
    # 1 and 2 have one predecessor and delay 1 each: 1 joins 0. 3 reads 1 and 2, so 3 has two
    # predecessors; 2 joins as well, each for itself; then {0, 1, 2} -> 3 is a single link.
    graph = chain_of([(0, 1), (0, 2), (1, 3), (2, 3)], 4)
    coarsening = fuse_ops(graph, np.array([9.0, 1.0, 1.0, 9.0]), alpha=1.0)
    assert coarsening.graph.num_ops == 1
    # A diamond of large ops stays.
    assert fuse_ops(graph, np.full(4, 9.0), alpha=1.0).graph.num_ops == 4


def test_groups_of_fused_ops_unite() -> None:
    builder = GraphBuilder("step", 1)
    for op, group in enumerate((0, 1, 0, 1)):
        builder.add_op(f"op{op}", group=group)
    builder.add_tensor(0, 1, [1])
    coarsening = fuse_ops(builder.finish(), np.ones(4), alpha=0.0)
    assert coarsening.graph.num_ops == 3
    assert coarsening.graph.group.tolist() == [0, 0, 0]


def test_times_by_device_type_add_up() -> None:
    graph = chain_of(line(2), 2)
    times = {"fast": np.array([1.0, 2.0]), "slow": np.array([np.inf, 4.0])}
    coarse = contract(graph, np.zeros(2, dtype=np.int32), seconds=times).graph
    assert {kind: column.tolist() for kind, column in coarse.seconds.items()} == {
        "fast": [3.0],
        "slow": [np.inf],
    }


def test_delays_are_checked() -> None:
    graph = chain_of(line(2), 2)
    with pytest.raises(InputError, match=r"one entry an op \(2\), got \(3,\)"):
        fuse_ops(graph, np.ones(3))
    with pytest.raises(InputError, match="finite and not negative, got inf"):
        fuse_ops(graph, np.array([1.0, np.inf]))


def test_a_share_is_of_all_seconds() -> None:
    assert share_cap(np.array([1.0, 3.0]), 0.25) == 1.0
    assert share_cap(np.array([1.0, 3.0]), None) == np.inf


def test_the_percentile_is_of_delays_above_zero() -> None:
    # 1 to 11: the 90th percentile is at place 0.9 * 10 = 9, which is 10.
    delays = np.array([0.0] * 50 + list(range(1, 12)))
    assert percentile_threshold(delays) == 10.0
    assert percentile_threshold(np.zeros(3)) == 0.0
    assert percentile_threshold(np.zeros(0)) == 0.0


def test_thresholds_from_the_slopes_at_both_ends() -> None:
    # 20 delays, k = 2: at the low end (3 - 1) / 2 = 1, at the high end (60 - 20) / 2 = 20.
    delays = np.array([1, 2, 3, *[10] * 14, 20, 30, 60], dtype=np.float64)
    assert slope_thresholds(delays) == (21 / 4, 21 / 2)
    assert slope_thresholds(np.append(delays, [0.0] * 9)) == (21 / 4, 21 / 2)


def test_slopes_grow_with_the_delays() -> None:
    delays = np.random.default_rng(0).exponential(size=300)
    alpha, beta = slope_thresholds(delays)
    assert slope_thresholds(1000 * delays) == pytest.approx((1000 * alpha, 1000 * beta))
    assert 0 < alpha < beta < delays.max()


def test_few_delays_have_no_slope() -> None:
    assert slope_thresholds(np.zeros(5)) == (0.0, 0.0)
    assert slope_thresholds(np.ones(1)) == (0.0, 0.0)
    # Two delays, k = 1: the same rise at both ends.
    assert slope_thresholds(np.array([1.0, 3.0])) == (1.0, 2.0)


@pytest.mark.slow
def test_a_star_is_fused_in_one_pass() -> None:
    # A hub and 50,000 readers: walking the hub's links after each fusion would take 10^9 steps.
    num_ops = 50_000
    builder = GraphBuilder("star", 1)
    for op in range(num_ops):
        builder.add_op(f"op{op}")
    hub = builder.add_tensor(0, 1.0)
    for op in range(1, num_ops):
        builder.add_use(hub, op)
    graph, seconds = builder.finish(), np.ones(num_ops)
    fuse_ops(chain_of(line(3), 3), np.ones(3))  # compile
    # Compiled code runs no lines to count: the core's time is taken, not that of the clock.
    started = time.thread_time()
    assert len(fuse_web(Web.of(graph, seconds), 1.0)) == num_ops - 1
    assert time.thread_time() - started < 1.0


@pytest.mark.slow
def test_twelve_thousand_ops_take_under_a_fifth_of_a_second() -> None:
    graph = bert(hidden=64, heads=4, layers=210, sequence=128, vocabulary=100, positions=128)
    assert graph.num_ops > 12_000
    seconds = graph.flops + graph.bytes_read
    fuse_ops(graph, seconds)  # compile
    taken = []
    for _ in range(3):  # the best of three: others may use the core's caches
        started = time.thread_time()
        coarsening = fuse_ops(graph, seconds)
        taken.append(time.thread_time() - started)
    assert min(taken) < 0.2
    assert coarsening.graph.num_ops < graph.num_ops / 2
    digraph = nx.DiGraph()
    digraph.add_edges_from(zip(*(e.tolist() for e in coarsening.graph.edges), strict=True))
    assert nx.is_directed_acyclic_graph(digraph)
