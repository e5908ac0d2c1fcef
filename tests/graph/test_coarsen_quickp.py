"""QuickP's co-location, fusion in groups, group expansion, and all of it together."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from coarsen_strategies import (
    DELAYS,
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
from meshwright.graph.build import GraphBuilder
from meshwright.graph.coarsen.colocate import (
    coarsen_quickp,
    expand_groups,
    find_thresholds,
    fuse_in_groups,
    join_critical,
)
from meshwright.graph.coarsen.web import Web
from meshwright.graph.column import ANY_TYPE
from meshwright.graph.graph import Graph, read_graph
from meshwright.zoo.shipped import FOLDER, SUFFIX, shipped_names

Case = tuple[Graph, Floats]
PER_BYTE = 0.25


def expected_groups(graph: Graph, seconds: Floats, per_byte: float) -> set[frozenset[int]]:
    """The issue's words: ranks, joins and weakly connected components; units are joined, too."""
    digraph = Melted(graph, seconds).digraph()
    rank: dict[int, float] = {}
    together = nx.Graph()
    together.add_nodes_from(digraph)
    for op in reversed(range(graph.num_ops)):
        ways = {
            other: rank[other] + digraph.edges[op, other]["bytes"] * per_byte
            for other in sorted(digraph.successors(op))
        }
        rank[op] = seconds[op] + max(ways.values(), default=0.0)
        if len(ways) > 1:
            together.add_edge(op, max(ways, key=lambda other: ways[other]))
    for number in set(graph.group.tolist()) - {-1}:
        nx.add_path(together, np.flatnonzero(graph.group == number).tolist())
    return {frozenset(each) for each in nx.connected_components(together) if len(each) > 1}


@given(steps(max_ops=12))
def test_groups_are_those_of_the_joins(case: Case) -> None:
    graph, seconds = case
    group = join_critical(Web.of(graph, seconds), PER_BYTE)
    assert groups_of(group) == expected_groups(graph, seconds, PER_BYTE)


def test_an_op_joins_the_successor_on_the_longest_way() -> None:
    # 0 -> 1 (delay 5) and 0 -> 2 (delay 1), 10 bytes each: ranks 5 and 1. Had 2's tensor 30 bytes,
    # at 0.25 a byte: 1 + 7.5 against 5 + 2.5.
    seconds = np.array([1.0, 5.0, 1.0])
    graph = chain_of([(0, 1), (0, 2)], 3)
    assert join_critical(Web.of(graph, seconds), PER_BYTE).tolist() == [0, 0, -1]
    builder = GraphBuilder("step", 1)
    for op in range(3):
        builder.add_op(f"op{op}")
    for target, size in ((1, 10), (2, 18), (2, 12)):  # sizes of distinct tensors add
        builder.add_tensor(0, size, [target])
    assert join_critical(Web.of(builder.finish(), seconds), PER_BYTE).tolist() == [0, -1, 0]


def test_ops_with_one_successor_join_nothing() -> None:
    assert join_critical(Web.of(chain_of(line(4), 4), np.ones(4)), 0.0).tolist() == [-1] * 4


def test_joins_stop_at_the_cap_from_the_most_urgent_on() -> None:
    # 0 -> 1, 2 and 1 -> 3, 4 with delays of one: 0 joins 1 (3 to go), 1 joins 3 (2 to go).
    graph = chain_of([(0, 1), (0, 2), (1, 3), (1, 4)], 5)
    assert groups_of(join_critical(Web.of(graph, np.ones(5)), 0.0)) == {frozenset({0, 1, 3})}
    capped = join_critical(Web.of(graph, np.ones(5)), 0.0, cap=2.0)
    assert groups_of(capped) == {frozenset({0, 1})}


@settings(max_examples=300)
@given(steps(max_ops=14), st.integers(0, 1000), st.sampled_from((*DELAYS, np.inf)))
def test_fusion_in_groups_is_legal_and_complete(case: Case, seed: int, alpha: float) -> None:
    graph, seconds = case
    chances = np.random.default_rng(seed)
    group = chances.choice([0, 0, 0, 1, 1, -1], graph.num_ops).astype(np.int32)
    web, melted = Web.of(graph, seconds), Melted(graph, seconds)

    def may(source: int, target: int) -> bool:
        readers = melted.digraph().successors(source)
        return (
            group[source] == group[target] >= 0
            and melted.is_only_path(source, target)
            and (
                all(group[each] == group[source] for each in readers)
                or melted.seconds[target] < alpha
            )
        )

    for kept, gone in fuse_in_groups(web, group, alpha).tolist():
        assert may(kept, gone)
        melted.merge(kept, gone)
    assert sets_of(web.label()) == melted.sets()
    assert not [edge for edge in melted.digraph().edges if may(edge[0], edge[1])]
    source, target = graph.edges
    assert np.all(web.label()[source] <= web.label()[target])


def test_two_ways_to_an_op_forbid_the_short_one_until_the_long_one_is_gone() -> None:
    # 0 -> 2 and 0 -> 1 -> 2, all in a group: 0 and 1 first, then both links to 2 are one.
    graph = chain_of([(0, 2), (0, 1), (1, 2)], 3)
    merges = fuse_in_groups(Web.of(graph, np.ones(3)), np.zeros(3, dtype=np.int32))
    assert merges.tolist() == [[0, 1], [0, 2]]
    # With 1 elsewhere nothing can be merged.
    apart = np.array([0, 1, 0], dtype=np.int32)
    assert len(fuse_in_groups(Web.of(graph, np.ones(3)), apart)) == 0


def test_a_large_op_is_fused_only_when_nothing_leaves_the_group() -> None:
    graph = chain_of([(0, 1), (0, 2)], 3)
    group = np.array([0, 0, -1], dtype=np.int32)
    assert len(fuse_in_groups(Web.of(graph, np.ones(3)), group, alpha=1.0)) == 0
    assert len(fuse_in_groups(Web.of(graph, np.ones(3)), group, alpha=1.5)) == 1
    everything = np.zeros(3, dtype=np.int32)
    assert len(fuse_in_groups(Web.of(graph, np.ones(3)), everything, alpha=1.0)) == 2


def test_small_ops_join_the_group_they_exchange_most_with() -> None:
    # 2 reads 10 bytes of group 0 and 20 of group 1; 3 reads 2; 4 is too large.
    builder = GraphBuilder("step", 1)
    for op in range(5):
        builder.add_op(f"op{op}")
    for source, size, target in ((0, 10, 2), (1, 20, 2), (2, 1, 3), (3, 1, 4)):
        builder.add_tensor(source, size, [target])
    web = Web.of(builder.finish(), np.array([1.0, 1.0, 1.0, 1.0, 2.0]))
    group = np.array([0, 1, -1, -1, -1], dtype=np.int32)
    expand_groups(web, group, beta=2.0)
    assert group.tolist() == [0, 1, 1, 1, -1]
    group = np.array([0, 1, -1, -1, -1], dtype=np.int32)
    expand_groups(web, group, beta=2.0, cap=2.0)  # no room for 3 beside 1 and 2
    assert group.tolist() == [0, 1, 1, -1, -1]


def test_expansion_goes_against_the_arrows_too() -> None:
    web = Web.of(chain_of(line(4), 4), np.ones(4))
    group = np.array([-1, -1, 0, -1], dtype=np.int32)
    expand_groups(web, group, beta=2.0)
    assert group.tolist() == [0, 0, 0, 0]


@given(steps(max_ops=12), st.sampled_from(("percentile", "slopes")))
def test_quickp_ends_where_nothing_fuses(case: Case, rule: str) -> None:
    graph, seconds = case
    coarsening = coarsen_quickp(graph, seconds, seconds_per_byte=PER_BYTE, rule=rule)
    coarse = coarsening.graph
    assert coarse.seconds[ANY_TYPE].sum() == seconds.sum()
    assert coarse.flops.sum() == graph.flops.sum()
    assert coarse.state_bytes.sum() == graph.state_bytes.sum()
    assert_topological(graph, coarsening.order(np.arange(coarse.num_ops)))
    device = coarsening.place(
        np.where(coarse.group < 0, 100 + np.arange(coarse.num_ops), coarse.group)
    )
    for number in set(graph.group.tolist()) - {-1}:
        assert len(set(device[graph.group == number].tolist())) == 1
    alpha, _ = find_thresholds(seconds, rule)
    own = coarsening.add_up(seconds)
    melted = Melted(coarse, own)
    assert not [edge for edge in melted.digraph().edges if melted.may_fuse(edge[0], edge[1], alpha)]
    again = coarsen_quickp(graph, seconds, seconds_per_byte=PER_BYTE, rule=rule)
    assert np.array_equal(again.coarse_of, coarsening.coarse_of)
    assert np.array_equal(again.graph.group, coarse.group)


@given(steps(max_ops=12), st.sampled_from((0.1, 0.3, 0.6)))
def test_no_group_outgrows_its_share(case: Case, share: float) -> None:
    graph, seconds = case
    coarsening = coarsen_quickp(graph, seconds, seconds_per_byte=PER_BYTE, max_share=share)
    load, group = coarsening.add_up(seconds), coarsening.graph.group
    hard = [seconds[graph.group == each].sum() for each in set(graph.group.tolist()) - {-1}]
    largest = max([share * seconds.sum(), seconds.max(), *hard])
    assert load.max() <= largest
    for each in set(group.tolist()) - {-1}:
        assert load[group == each].sum() <= largest


def test_quickp_on_two_branches() -> None:
    # 0 -> 1 -> 2 -> 6 and 0 -> 3 -> 4 -> 6, with 6 -> 7, all of delay 10 but 3 (delay 12):
    # fusion makes {1, 2}, {3, 4}, {6, 7} of chains. 90th percentile: 10, 10, ..., 12 gives
    # 10 + 0.3 * 2 > 10: nearly all ops are small, but fused ones are not; 0 has two successors, and
    # 5 reads nothing and is read by nothing.
    graph = chain_of([(0, 1), (1, 2), (2, 6), (0, 3), (3, 4), (4, 6), (6, 7)], 8)
    seconds = np.array([10.0, 10, 10, 12, 10, 10, 10, 10])
    coarsening = coarsen_quickp(graph, seconds, seconds_per_byte=0.0)
    sets = sets_of(coarsening.coarse_of)
    assert sets == {frozenset(s) for s in ({0}, {1, 2}, {3, 4}, {5}, {6, 7})}
    # 0 joins the longer branch, {3, 4}.
    group = coarsening.graph.group[coarsening.coarse_of]
    assert groups_of(group) == {frozenset({0, 3, 4})}


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(InputError, match="rule must be 'percentile' or 'slopes', got 'median'"):
        coarsen_quickp(chain_of(line(2), 2), np.ones(2), seconds_per_byte=0.0, rule="median")


@pytest.mark.parametrize("rule", ["percentile", "slopes"])
@pytest.mark.parametrize("name", shipped_names())
def test_captured_steps_keep_their_groups(name: str, rule: str) -> None:
    path: Path = FOLDER / f"{name}{SUFFIX}"
    graph = read_graph(path)
    seconds = (graph.flops + 20 * (graph.bytes_read + graph.bytes_written)) * 1e-12
    coarsening = coarsen_quickp(graph, seconds, seconds_per_byte=1 / 20e9, rule=rule, max_share=0.1)
    coarse = coarsening.graph
    assert coarse.num_ops < graph.num_ops
    assert coarse.seconds[ANY_TYPE].sum() == pytest.approx(seconds.sum())
    assert coarse.parameter_bytes.sum() == pytest.approx(graph.parameter_bytes.sum())
    assert_topological(graph, coarsening.order(np.arange(coarse.num_ops)))
    device = coarsening.place(
        np.where(coarse.group < 0, coarse.num_ops + np.arange(coarse.num_ops), coarse.group)
    )
    for number in set(graph.group.tolist()) - {-1}:
        assert len(set(device[graph.group == number].tolist())) == 1


def test_a_second_search_of_one_web_forgets_the_marks_of_the_first() -> None:
    # Found by Hypothesis: 3 and 8 share a group and are joined by a link, and by 3 -> 4 -> 8 and
    # 3 -> 5 -> 8. The first pass fuses nothing in groups, so that the second searches the same web.
    builder = GraphBuilder("marks", batch=4)
    for number in range(9):
        builder.add_op(f"op{number}", group=1 if number in (3, 8) else -1, seconds={"any": 1.0})
    for source, size, readers in (
        (0, 92.0, [5]), (0, 3.0, [1, 2, 3, 5]), (0, 76.0, [3, 8]), (3, 8.0, [5, 6, 8]),
        (3, 9.0, [4]), (3, 49.0, [6]), (4, 99.0, [6, 8]), (4, 9.0, [5, 7, 8]), (5, 32.0, [8]),
        (6, 78.0, [7]),
    ):  # fmt: skip
        builder.add_tensor(source, size, readers)
    seconds = np.array([8.0, 0.0, 3.0, 20.0, 5.0, 2.0, 0.0, 3.0, 1.0])
    coarsening = coarsen_quickp(builder.finish(), seconds, seconds_per_byte=PER_BYTE, max_share=0.1)
    assert coarsening.coarse_of[3] != coarsening.coarse_of[8]
