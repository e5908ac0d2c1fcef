"""The schemes that QuickP is compared with."""

from collections.abc import Callable
from functools import partial

import networkx as nx
import numpy as np
import pytest
from coarsen_strategies import (
    Melted,
    assert_topological,
    chain_of,
    groups_of,
    line,
    sets_of,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.array import Floats
from meshwright.errors import InputError
from meshwright.graph.architecture.bert import bert
from meshwright.graph.build import GraphBuilder
from meshwright.graph.coarsen.coarsening import Coarsening
from meshwright.graph.coarsen.colocate import coarsen_quickp
from meshwright.graph.coarsen.fusion import follow_only_reader, fuse_ops
from meshwright.graph.coarsen.schemes import (
    coarsen_colocrl,
    coarsen_metis,
    coarsen_parmesan,
    coarsen_placeto,
    coarsen_spotlight,
)
from meshwright.graph.coarsen.web import Web
from meshwright.graph.column import ANY_TYPE
from meshwright.graph.graph import Graph, Phase

Case = tuple[Graph, Floats]
PER_BYTE = 0.25
SCHEMES: dict[str, Callable[[Graph, Floats], Coarsening]] = {
    "fusion": fuse_ops,
    "quickp": partial(coarsen_quickp, seconds_per_byte=PER_BYTE),
    "colocrl": coarsen_colocrl,
    "placeto": partial(coarsen_placeto, num_ops=3),
    "spotlight": coarsen_spotlight,
    "metis": partial(coarsen_metis, num_groups=3),
    "parmesan": partial(coarsen_parmesan, seconds_per_byte=PER_BYTE, num_clusters=3),
}


@pytest.mark.parametrize("name", SCHEMES)
@given(steps())
def test_nothing_is_lost_and_hard_groups_are_kept(name: str, case: Case) -> None:
    graph, seconds = case
    coarsening = SCHEMES[name](graph, seconds)
    coarse = coarsening.graph
    assert sorted(coarsening.members.index.tolist()) == list(range(graph.num_ops))
    assert coarse.seconds[ANY_TYPE].sum() == seconds.sum()
    for column in ("flops", "state_bytes", "parameter_bytes", "calls"):
        assert getattr(coarse, column).sum() == getattr(graph, column).sum()
    assert_topological(graph, coarsening.order(np.arange(coarse.num_ops)))
    own = coarse.num_ops + np.arange(coarse.num_ops)
    device = coarsening.place(np.where(coarse.group < 0, own, coarse.group))
    for number in set(graph.group.tolist()) - {-1}:
        assert len(set(device[graph.group == number].tolist())) == 1
    again = SCHEMES[name](graph, seconds)
    assert np.array_equal(again.coarse_of, coarsening.coarse_of)
    assert np.array_equal(again.graph.group, coarse.group)


@given(steps(max_ops=14))
def test_colocrl_joins_only_readers_until_all_have_several_or_none(case: Case) -> None:
    graph, seconds = case
    web, melted = Web.of(graph, seconds), Melted(graph, seconds)
    for kept, gone in follow_only_reader(web).tolist():
        assert list(melted.digraph().successors(gone)) == [kept]
        melted.merge(kept, gone)
    left = melted.digraph()
    assert not [op for op in left if left.out_degree(op) == 1]
    assert sets_of(coarsen_colocrl(graph, seconds).coarse_of) == melted.sets()


def test_colocrl_goes_on_with_what_has_joined() -> None:
    # 1 and 2 are read by 3 only, and so then is 0: 0's readers have become one. 3 has two readers.
    graph = chain_of([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)], 6)
    coarsening = coarsen_colocrl(graph, np.ones(6))
    assert sets_of(coarsening.coarse_of) == {frozenset(s) for s in ({0, 1, 2, 3}, {4}, {5})}


@given(steps(max_ops=12), st.integers(1, 6))
def test_placeto_merges_the_cheapest_into_its_first_reader(case: Case, num_ops: int) -> None:
    graph, seconds = case
    melted = Melted(graph, seconds)
    stuck: set[int] = set()
    while len(melted.seconds) > num_ops and len(stuck) < len(melted.seconds):
        digraph = melted.digraph()
        cheapest = min(
            (op for op in melted.seconds if op not in stuck),
            key=lambda op: (melted.seconds[op], op),
        )
        readers, read = list(digraph.successors(cheapest)), list(digraph.predecessors(cheapest))
        if readers:
            melted.merge(min(readers), cheapest)
        elif read:
            melted.merge(max(read), cheapest)
        else:
            stuck.add(cheapest)
    coarsening = coarsen_placeto(graph, seconds, num_ops=num_ops)
    assert sets_of(coarsening.coarse_of) == melted.sets()


def test_placeto_stops_at_n() -> None:
    # The cheapest, 1, joins 2 (delay 3 then); then 0 joins it.
    graph = chain_of(line(4), 4)
    seconds = np.array([2.0, 1.0, 2.0, 9.0])
    assert coarsen_placeto(graph, seconds, num_ops=3).coarse_of.tolist() == [0, 1, 1, 2]
    assert coarsen_placeto(graph, seconds, num_ops=2).coarse_of.tolist() == [0, 0, 0, 1]
    assert coarsen_placeto(graph, seconds, num_ops=9).coarse_of.tolist() == [0, 1, 2, 3]


def _named(*names: str) -> Graph:
    """A chain of ops of these modules."""
    builder = GraphBuilder("step", 1)
    for op, name in enumerate(names):
        builder.add_op(f"x/y/op{op}", module=name)
    for op in range(len(names) - 1):
        builder.add_tensor(op, 1, [op + 1])
    return builder.finish()


def test_spotlight_groups_by_two_levels_of_names() -> None:
    graph = _named("a.b.c", "a/b/d", "a.c", "", "a.b", "")
    coarsening = coarsen_spotlight(graph, np.ones(6))
    group = coarsening.graph.group[coarsening.coarse_of]
    # "a.b" before and after the others, "x/y" where there is no module; neighbours are merged.
    assert groups_of(group) == {frozenset({0, 1, 4}), frozenset({3, 5})}
    assert coarsening.coarse_of.tolist() == [0, 0, 1, 2, 3, 4]
    by_one = coarsen_spotlight(graph, np.ones(6), num_levels=1)
    assert groups_of(by_one.graph.group[by_one.coarse_of]) == {
        frozenset({0, 1, 2, 4}),
        frozenset({3, 5}),
    }


def test_metis_halves_two_blocks_that_little_joins() -> None:
    builder = GraphBuilder("step", 1)
    for op in range(8):
        builder.add_op(f"op{op}")
    for op in range(7):
        builder.add_tensor(op, 1 if op == 3 else 1000, [op + 1])
    coarsening = coarsen_metis(builder.finish(), np.ones(8), num_groups=2)
    assert coarsening.coarse_of.tolist() == [0] * 4 + [1] * 4
    assert coarsening.graph.num_ops == 2


def test_metis_with_more_groups_than_ops() -> None:
    assert coarsen_metis(chain_of(line(2), 2), np.ones(2), num_groups=9).graph.num_ops == 2
    assert coarsen_metis(chain_of(line(2), 2), np.ones(2), num_groups=1).graph.num_ops == 1


@settings(max_examples=300)
@given(steps(max_ops=10, groups=(-1,)), st.integers(1, 4), st.sampled_from((0.0, 0.1, 1.0)))
def test_parmesan_merges_the_best_convex_pair(case: Case, num_clusters: int, weight: float) -> None:
    graph, seconds = case
    melted = Melted(graph, seconds)
    while len(melted.seconds) > num_clusters:
        digraph = melted.digraph()
        pairs = [
            (
                melted.seconds[first]
                + melted.seconds[second]
                - digraph.edges[first, second]["bytes"] * (weight * PER_BYTE),
                first * graph.num_ops + second,
            )
            for first, second in digraph.edges
            if melted.is_only_path(first, second)
        ]
        if not pairs:
            break
        melted.merge(*divmod(min(pairs)[1], graph.num_ops))
    coarsening = coarsen_parmesan(
        graph, seconds, seconds_per_byte=PER_BYTE, num_clusters=num_clusters, weight=weight
    )
    assert sets_of(coarsening.coarse_of) == melted.sets()


@given(steps(max_ops=10), st.sampled_from((50.0, 150.0, 300.0)))
def test_parmesan_clusters_fit_their_memory(case: Case, limit: float) -> None:
    graph, seconds = case
    coarsening = coarsen_parmesan(
        graph, seconds, seconds_per_byte=PER_BYTE, num_clusters=1, memory_bytes=limit
    )
    turns = {
        int(tensor)
        for tensor, reader in zip(graph.use_tensor, graph.use_op, strict=True)
        if graph.phase[graph.tensor_source[tensor]] == Phase.FORWARD
        and graph.phase[reader] == Phase.BACKWARD
    }
    held = graph.state_bytes + graph.saved_bytes
    for tensor in turns:
        held[graph.tensor_source[tensor]] += graph.tensor_bytes[tensor]
    group = graph.group
    hard = [held[group == each].sum() for each in set(group.tolist()) - {-1}]
    largest = max([limit, held.max(), *hard])
    together = coarsening.add_up(held)
    own = coarsening.graph.group
    assert together.max() <= largest
    assert all(together[own == each].sum() <= largest for each in set(own.tolist()) - {-1})


def test_parmesan_by_hand() -> None:
    # A chain with delays 1, 1, 5, 1 and tensors of 4, 40, 4 bytes at 0.25 a byte:
    # 1 + 1 - 1 = 1, 1 + 5 - 10 = -4, 5 + 1 - 1 = 5. The middle pair is first, then
    # 1 + 6 - 1 = 6 at the left and 6 + 1 - 1 = 6 at the right: of equal ones the left.
    builder = GraphBuilder("step", 1)
    for op in range(4):
        builder.add_op(f"op{op}")
    for op, size in enumerate((4, 40, 4)):
        builder.add_tensor(op, size, [op + 1])
    graph, seconds = builder.finish(), np.array([1.0, 1.0, 5.0, 1.0])
    three = coarsen_parmesan(graph, seconds, seconds_per_byte=PER_BYTE, num_clusters=3)
    assert three.coarse_of.tolist() == [0, 1, 1, 2]
    two = coarsen_parmesan(graph, seconds, seconds_per_byte=PER_BYTE, num_clusters=2)
    assert two.coarse_of.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        (partial(coarsen_placeto, num_ops=0), "num_ops"),
        (partial(coarsen_metis, num_groups=0), "num_groups"),
        (partial(coarsen_parmesan, seconds_per_byte=0.0, num_clusters=0), "num_clusters"),
        (partial(coarsen_spotlight, num_levels=0), "num_levels"),
    ],
)
def test_counts_must_be_positive(scheme: Callable[[Graph, Floats], Coarsening], name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be positive, got 0"):
        scheme(chain_of(line(2), 2), np.ones(2))


@pytest.mark.parametrize("name", SCHEMES)
def test_a_graph_without_ops(name: str) -> None:
    graph = GraphBuilder("none", 1).finish()
    assert SCHEMES[name](graph, np.zeros(0)).graph.num_ops == 0


@pytest.mark.parametrize("name", SCHEMES)
def test_large_steps_have_no_cycle(name: str) -> None:
    graph = bert(hidden=64, heads=4, layers=20, sequence=128, vocabulary=100, positions=128)
    seconds = graph.flops + graph.bytes_read
    coarsening = SCHEMES[name](graph, seconds)
    digraph = nx.DiGraph()
    digraph.add_edges_from(zip(*(e.tolist() for e in coarsening.graph.edges), strict=True))
    assert nx.is_directed_acyclic_graph(digraph)
    assert_topological(graph, coarsening.order(np.arange(coarsening.graph.num_ops)))
