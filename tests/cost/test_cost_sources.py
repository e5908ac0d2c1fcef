"""Where the times of ops come from is counted as the times are found."""

from dataclasses import replace

import numpy as np

import meshwright as mw
from meshwright.cluster.catalogue import find_cluster
from meshwright.cost.compute import TimeSources, op_seconds, roofline_seconds, time_sources
from meshwright.cost.fitted import has_fitted_kinds
from meshwright.graph.graph import ANY_TYPE
from meshwright.search.portfolio import find_plan
from meshwright.zoo.shipped import read_shipped

GPU, CPU, MIXED = map(find_cluster, ("h200-x1", "cpu-x2", "tag-testbed"))


def counts(found: TimeSources) -> tuple[int, int, int]:
    return found.measured, found.fitted, found.estimated


def test_what_was_not_captured_is_estimated_by_the_roofline() -> None:
    graph = read_shipped("mlp")
    assert not graph.calls.any()
    assert counts(time_sources(graph, GPU)) == (0, 0, graph.num_ops)
    kind = GPU.types[GPU.type_names[0]]
    roofline = roofline_seconds(graph, kind, graph.batch)
    assert np.array_equal(op_seconds(graph, kind, graph.batch), roofline)


def test_captured_ops_are_fitted_on_what_launches_kernels() -> None:
    graph = mw.load_graph("inception-v3")
    assert counts(time_sources(graph, GPU)) == (0, graph.num_ops - 1, 1)  # whose kind is its own
    assert counts(time_sources(graph, CPU)) == (0, 0, graph.num_ops)


def test_a_kind_that_nobody_measured_is_estimated() -> None:
    graph = mw.load_graph("inception-v3")
    (alone,) = np.flatnonzero(~has_fitted_kinds(graph)).tolist()
    moves = int(np.flatnonzero(graph.bytes_read > 0)[0])
    odd = tuple("odd" if op == moves else kind for op, kind in enumerate(graph.kind))
    changed = replace(graph, kind=odd)
    assert np.flatnonzero(~has_fitted_kinds(changed)).tolist() == sorted((moves, alone))
    assert counts(time_sources(changed, GPU)) == (0, graph.num_ops - 2, 2)


def test_an_op_counts_by_the_type_on_which_it_is_known_least() -> None:
    graph = mw.load_graph("inception-v3")
    times = np.full(graph.num_ops, np.nan)
    times[:7] = 1e-3
    one = replace(graph, seconds={"p100": times})
    assert counts(time_sources(one, MIXED)) == (0, graph.num_ops - 1, 1)  # two types have none
    every = replace(graph, seconds=dict.fromkeys(MIXED.type_names, times))
    assert counts(time_sources(every, MIXED)) == (7, graph.num_ops - 8, 1)
    general = replace(graph, seconds={ANY_TYPE: times})
    assert counts(time_sources(general, CPU)) == (7, 0, graph.num_ops - 7)


def test_every_answer_says_it() -> None:
    graph, cluster = read_shipped("mlp"), find_cluster("v100-32-x2")
    expected = "measured 0, fitted 0, estimated 30 of 30 ops"
    for method in ("single", "data", "auto", "heft"):
        answer = find_plan(graph, cluster, method, budget_seconds=0.1)
        assert str(answer.times) == expected
        assert f"times   {expected}" in str(answer)
        assert "proven under this cost model" in str(answer)
    heavy = replace(graph, state_bytes=graph.state_bytes + 1e12)
    refused = find_plan(heavy, cluster, "single", budget_seconds=0.1)
    assert refused.plan is None
    assert str(refused.times) == expected
