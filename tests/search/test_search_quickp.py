"""QuickP's method: coarsen, solve, un-coarsen, judge on the fine graph."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from search_strategies import clusters, graphs, make_cluster

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.coarsen.coarsening import Coarsening, contract
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.answer import Stop
from meshwright.search.bound.work import placement_bound
from meshwright.search.clock import Clock
from meshwright.search.instance import make_instance, mean_device_seconds, mean_transfer
from meshwright.search.method.quickp.programme.programme import solve_programme
from meshwright.search.method.quickp.quickp import find_scheme
from meshwright.search.method.quickp.scope import Coarsener, OpOrder, QuickpScope, ThresholdRule
from meshwright.search.portfolio import search_by
from small import connected, dag

quickp = partial(search_by, "quickp")


def nothing_merged(graph: Graph, _seconds: Floats) -> Coarsening:
    return contract(graph, np.arange(graph.num_ops, dtype=np.int32))


def all_merged(graph: Graph, _seconds: Floats) -> Coarsening:
    return contract(graph, np.zeros(graph.num_ops, dtype=np.int32))


@given(graphs(max_ops=6), clusters(max_devices=3))
@settings(max_examples=15, deadline=None)
def test_without_coarsening_it_is_the_programme(graph: Graph, cluster: Cluster) -> None:
    instance = make_instance(graph, cluster)
    answer = quickp(graph, cluster, sharing="none", scheme=nothing_merged)
    found = solve_programme(instance, order="fixed", clock=Clock(20.0))
    assert answer.step_seconds == pytest.approx(found.seconds, rel=1e-6)
    assert answer.statistics["coarse_ops"] == answer.statistics["ops"] == graph.num_ops


@given(graphs(), clusters(max_devices=3))
@settings(max_examples=15, deadline=None)
def test_every_rule_gives_a_plan_above_the_fine_bound(graph: Graph, cluster: Cluster) -> None:
    bound = placement_bound(make_instance(graph, cluster))
    for rule in ThresholdRule:
        answer = quickp(graph, cluster, scope=QuickpScope(rule=rule), budget_seconds=5.0)
        assert answer.plan is not None
        assert answer.bound_seconds == bound
        assert answer.step_seconds >= bound
        assert 1 <= answer.statistics["groups"] <= answer.statistics["coarse_ops"]


def test_the_coarse_bound_is_not_the_answers() -> None:
    # Two independent ops of 1 s merged into one: 2 s and proved for the coarse graph, while
    # on two devices the fine one takes 1 s. Nothing is proved of plans.
    answer = quickp(dag([1.0, 1.0], {}), connected(2), scheme=all_merged)
    assert answer.step_seconds == 2.0
    assert answer.statistics["coarse_bound_seconds"] == pytest.approx(2.0)
    assert answer.bound_seconds == pytest.approx(1.0)
    assert answer.stop is Stop.ENDED


def test_coarse_ops_take_the_sum_of_their_members_on_every_type() -> None:
    builder = GraphBuilder("two types")
    for number in range(2):
        builder.add_op(f"o{number}", seconds={"fast": 1.0 + number, "slow": 5.0})
    answer = quickp(
        builder.finish(), make_cluster(["slow", "fast"]), sharing="none", scheme=all_merged
    )
    assert answer.step_seconds == 3.0  # both on the fast one: 1 + 2
    assert answer.statistics["coarse_seconds"] == 3.0


def test_delays_are_means_over_devices() -> None:
    builder = GraphBuilder("one")
    builder.add_op("o", seconds={"fast": 1.0, "slow": 4.0})
    builder.add_op("p", seconds={"fast": 3.0, "slow": math.inf})
    instance = make_instance(builder.finish(), make_cluster(["fast", "fast", "slow"], rate=4.0))
    # (1 + 1 + 4) / 3; only the fast ones can run p
    assert mean_device_seconds(instance).tolist() == [2.0, 3.0]
    assert mean_transfer(instance) == (0.0, 0.25)


def test_what_lacks_memory_is_placed_again_with_less() -> None:
    # Ten ops that hold 10 bytes each, devices of 60: at least two devices must be used.
    builder = GraphBuilder("chain")
    for number in range(10):
        builder.add_op(f"op{number}", seconds={"any": 1.0}, state_bytes=10.0)
    for number in range(9):
        builder.add_tensor(number, 1.0, [number + 1])
    cluster = make_cluster(["fast"] * 2, memory_bytes=60.0)
    answer = quickp(builder.finish(), cluster, budget_seconds=10.0, scheme=nothing_merged)
    assert answer.plan is not None
    assert max(answer.peak_bytes) <= 60.0


def test_a_group_that_no_device_holds_is_an_answer() -> None:
    builder = GraphBuilder("heavy")
    for number in range(2):
        builder.add_op(f"op{number}", seconds={"any": 1.0}, state_bytes=10.0)
    builder.add_tensor(0, 1.0, [1])
    cluster = make_cluster(["fast"] * 2, memory_bytes=15.0)
    answer = quickp(builder.finish(), cluster, budget_seconds=5.0, scheme=all_merged)
    assert answer.stop is Stop.INFEASIBLE
    assert "are missing" in answer.binding


def test_an_op_that_can_run_nowhere_is_an_answer() -> None:
    builder = GraphBuilder("nowhere")
    builder.add_op("impossible", seconds={"fast": math.inf})
    answer = quickp(builder.finish(), make_cluster(["fast"] * 2))
    assert answer.stop is Stop.INFEASIBLE
    assert "can run on no device type" in answer.binding


def test_a_free_order_is_no_slower_on_the_coarse_graph() -> None:
    # o0 and o1 feed o2 and o3; the graph's order runs the one that is waited for last.
    graph = dag([4.0, 1.0, 1.0, 6.0], {(0, 2): 1.0, (1, 3): 1.0})
    fixed, free = (
        quickp(
            graph,
            connected(2),
            scope=QuickpScope(order=order),
            sharing="none",
            scheme=nothing_merged,
        )
        for order in OpOrder
    )
    assert free.step_seconds <= fixed.step_seconds
    assert free.step_seconds == 7.0  # o1, o3 beside o0, o2


def test_a_cap_on_what_is_joined_is_a_scheme() -> None:
    graph = dag([1.0] * 8, [(i, i + 2, 0.1) for i in range(6)])
    answer = quickp(graph, connected(2), scope=QuickpScope(max_share=0.5))
    assert answer.plan is not None
    assert answer.statistics["groups"] >= 2


def test_a_step_that_ends_in_one_group_says_so() -> None:
    graph = dag([1.0] * 8, [(i, i + 2, 0.1) for i in range(6)])
    lone = quickp(graph, connected(2), scheme=all_merged)
    assert lone.notes[0].startswith("the co-location ended in one group")
    assert quickp(graph, connected(2), scheme=nothing_merged).notes == ()
    single = quickp(dag([1.0], {}), connected(2))
    assert single.notes == ()  # one op has no other plan, whatever the co-location


@pytest.mark.parametrize("scheme", Coarsener)
def test_every_scheme_can_be_chosen(scheme: Coarsener) -> None:
    graph = dag([1.0, 2.0, 3.0, 4.0], {(0, 1): 1.0, (1, 3): 1.0, (2, 3): 8.0})
    scope = QuickpScope(scheme=scheme)
    answer = quickp(graph, connected(2), scope=scope, sharing="none")
    instance = make_instance(graph, connected(2))
    coarse = find_scheme(scope, instance)(graph, mean_device_seconds(instance))
    assert answer.plan is not None
    assert answer.statistics["coarse_ops"] == coarse.graph.num_ops


def test_schemes_leave_as_many_as_they_are_told() -> None:
    graph = dag([1.0] * 6, [(i, i + 1, 1.0) for i in range(5)])
    scope = QuickpScope(scheme=Coarsener.PLACETO, groups=3)
    assert quickp(graph, connected(2), scope=scope).statistics["coarse_ops"] == 3


def test_a_gap_ends_the_programme_at_its_start() -> None:
    # On two devices 3 + 3 beside 2 + 2 + 2 is best; list scheduling starts with 3 + 2 + 2 beside
    # 3 + 2, which is within a gap of 20%, and not within one of 10%.
    graph = dag([3.0, 3.0, 2.0, 2.0, 2.0], {})
    found = [quickp(graph, connected(2), scheme=nothing_merged, gap=gap) for gap in (0.0, 0.1, 0.2)]
    assert [answer.step_seconds for answer in found] == [6.0, 6.0, 7.0]
    assert [answer.stop for answer in found] == [Stop.PROVED, Stop.PROVED, Stop.GAP]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scheme": "kmeans"}, "scheme: must be one of quickp, fusion, colocrl"),
        ({"rule": "median"}, "rule: must be one of percentile, slopes, got 'median'"),
        ({"max_share": 0.0}, "max_share: must be a positive number, got 0.0"),
        ({"groups": 1.5}, "groups: must be a whole positive number, got 1.5"),
        ({"groups": 9}, "groups: the scheme must be placeto or metis or parmesan, got quickp"),
        (
            {"scheme": "metis", "rule": "slopes"},
            "rule: the scheme must be quickp, got metis",
        ),
    ],
)
def test_a_scope_refuses_what_its_scheme_does_not_know(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^scope: {message}"):
        QuickpScope(**given)


def test_an_op_before_the_one_that_saves_for_it_does_not_wait() -> None:
    # As in a coarse graph whose op mixes phases: `early` has a partner that stands after it.
    builder = GraphBuilder("mixed", batch=1)
    early = builder.add_op("early", partner=1, phase=Phase.BACKWARD, seconds={"any": 1.0})
    late = builder.add_op("late", saved_bytes=8.0, seconds={"any": 1.0})
    builder.add_tensor(early, 1.0, [late])
    instance = make_instance(builder.finish(), connected(2))
    assert instance.in_edges["bytes"].tolist() == [1.0]
