"""Favourite children: the linear programme against brute force and by hand."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import make_cluster

from meshwright.graph.build import GraphBuilder
from meshwright.search.instance import make_instance
from meshwright.search.method.msct.favourite import Delays, Favourites, find_favourites, mean_delays


def delays(seconds: list[float], edges: dict[tuple[int, int], float]) -> Delays:
    return Delays(
        seconds=np.array(seconds),
        source=np.array([i for i, _ in edges], dtype=np.int32),
        target=np.array([j for _, j in edges], dtype=np.int32),
        apart_seconds=np.array(list(edges.values()), dtype=np.float64),
    )


def last_finish(problem: Delays, saved: set[tuple[int, int]]) -> float:
    """The end of the step on devices without end when these edges' transfers are saved."""
    finish = np.zeros(len(problem.seconds))
    for op, seconds in enumerate(problem.seconds.tolist()):
        start = 0.0
        for edge in np.flatnonzero(problem.target == op).tolist():
            source = int(problem.source[edge])
            wait = 0.0 if (source, op) in saved else float(problem.apart_seconds[edge])
            start = max(start, float(finish[source]) + wait)
        finish[op] = start + seconds
    return float(finish.max())


def all_matchings(problem: Delays) -> Iterator[set[tuple[int, int]]]:
    """Every choice of edges in which no op has two children or two parents."""
    edges = list(zip(problem.source.tolist(), problem.target.tolist(), strict=True))
    for size in range(len(edges) + 1):
        for chosen in itertools.combinations(edges, size):
            sources, targets = {i for i, _ in chosen}, {j for _, j in chosen}
            if len(sources) == len(targets) == size:
                yield set(chosen)


def saved_edges(chain: Favourites) -> set[tuple[int, int]]:
    return {(i, j) for i, j in enumerate(chain.child.tolist()) if j >= 0}


def test_a_diamond_crosses_its_favourites() -> None:
    # a (1 s) -> b, c (2 s each) -> d (1 s), all transfers 1 s. Keeping a, b and d together leaves c
    # two transfers: 6 s. One transfer on each side: a with b and c with d, or a with c and b with
    # d: 5 s. Summing the two paths' ends shows that less is impossible.
    problem = delays([1, 2, 2, 1], {(0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 3): 1})
    chain = find_favourites(problem)
    assert chain.relaxed_seconds == pytest.approx(5.0)
    assert saved_edges(chain) in ({(0, 1), (2, 3)}, {(0, 2), (1, 3)})
    assert last_finish(problem, saved_edges(chain)) == 5.0


def test_the_longer_branch_is_the_favourite() -> None:
    problem = delays([1, 5, 2], {(0, 1): 1, (0, 2): 1})
    assert find_favourites(problem).child.tolist() == [1, -1, -1]


def test_of_equal_ends_the_longest_transfer_is_saved() -> None:
    # Op 1 decides the end, alone. Which reader of op 0 is saved changes nothing, but one transfer
    # takes 3 s and the other 1.
    problem = delays([1, 20, 2, 2], {(0, 2): 1, (0, 3): 3})
    assert find_favourites(problem).child.tolist() == [3, -1, -1, -1]


def test_ops_that_share_a_device_need_no_favourite() -> None:
    builder = GraphBuilder("groups")
    for number, group in enumerate([7, 7, -1]):
        builder.add_op(f"op{number}", seconds={"any": 1.0}, group=group)
    builder.add_tensor(0, 5.0, [1, 2])
    instance = make_instance(builder.finish(), make_cluster(["fast"] * 2))
    problem = mean_delays(instance, instance.unit_of)
    assert problem.apart_seconds.tolist() == [0.0, 5.0]
    assert find_favourites(problem).child.tolist() == [2, -1, -1]


def test_two_tensors_between_two_ops_are_one_edge() -> None:
    builder = GraphBuilder("twice")
    for number in range(2):
        builder.add_op(f"op{number}", seconds={"any": 1.0})
    for size in (2.0, 3.0):
        builder.add_tensor(0, size, [1])
    instance = make_instance(builder.finish(), make_cluster(["fast"] * 2, latency=1.0))
    problem = mean_delays(instance, instance.unit_of)
    assert problem.apart_seconds.tolist() == [6.0]


def test_without_time_the_longest_transfers_are_saved() -> None:
    edges = {(i, i + k): float(k) for k in (1, 2) for i in range(3000)}
    problem = delays([1.0] * 3002, edges)
    chain = find_favourites(problem, limit_seconds=1e-9)
    assert chain.relaxed_seconds == 0.0
    assert chain.child.tolist() == [i + 2 for i in range(3000)] + [-1] * 2


@st.composite
def small_delays(draw: st.DrawFn) -> Delays:
    """Transfers no longer than the shortest op: the case that SCT's guarantee is of."""
    num_ops = draw(st.integers(1, 6))
    pairs = list(itertools.combinations(range(num_ops), 2))
    edges = draw(st.sets(st.sampled_from(pairs), max_size=7)) if pairs else set()
    times = st.sampled_from([1.0, 1.5, 2.0, 4.0])
    waits = st.sampled_from([0.25, 0.5, 1.0])
    return delays(
        [draw(times) for _ in range(num_ops)], {edge: draw(waits) for edge in sorted(edges)}
    )


@given(small_delays())
@settings(max_examples=150, deadline=None)
def test_the_programme_bounds_the_best_choice_and_its_rounding_is_near(problem: Delays) -> None:
    # Hanen and Munier: with transfers no longer than ops, favourites rounded from the relaxed
    # programme end within 4/3 of its optimum on devices without end.
    chain = find_favourites(problem)
    best = min(last_finish(problem, chosen) for chosen in all_matchings(problem))
    rounded = last_finish(problem, saved_edges(chain))
    if len(problem.source):
        assert chain.relaxed_seconds <= best * (1 + 1e-5)
        assert rounded <= chain.relaxed_seconds * 4 / 3 * (1 + 1e-5)
    assert best <= rounded * (1 + 1e-9)
    assert saved_edges(chain) in list(all_matchings(problem))
    for child, parent in saved_edges(chain):
        assert chain.parent[parent] == child
