"""Blocks: what shares a stage, what hangs loosely, and what clusters of blocks are."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import graphs, make_cluster

from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.check import resolve
from meshwright.plan.plan import ScheduleKind
from meshwright.search.method.pipeline.block import MAX_LOOSE, Blocks, find_blocks, tie_loose
from meshwright.search.method.pipeline.candidate import Candidate, StageCut
from meshwright.search.method.pipeline.cutter import gather_blocks, project


def forward_chain(count: int) -> Graph:
    builder = GraphBuilder("chain", 8)
    for number in range(count):
        builder.add_op(f"f{number}", seconds={"any": 1.0})
        if number:
            builder.add_tensor(number - 1, 4.0, [number])
    return builder.finish()


def draw_downsets(data: st.DataObject, blocks: Blocks, stages: int) -> np.ndarray:
    """Stages that never fall along an edge."""
    stage = np.zeros(blocks.num_blocks, dtype=np.int32)
    for block in range(blocks.num_blocks):
        low = max((int(stage[u]) for u, v in blocks.edges if v == block), default=0)
        stage[block] = data.draw(st.integers(low, stages - 1))
    return stage


@given(graphs(max_ops=16), st.booleans(), st.data())
@settings(max_examples=150)
def test_every_chain_of_downsets_is_a_legal_pipeline(
    graph: Graph, ties_loose: bool, data: st.DataObject
) -> None:
    blocks = find_blocks(graph, ties_loose=ties_loose)
    assert all(u < v for u, v in blocks.edges)
    cluster = make_cluster(["fast"] * 3)
    cut = StageCut.of(graph, blocks.stage_of_op(draw_downsets(data, blocks, 3)))
    count = cut.num_stages - blocks.has_tail
    homes = tuple((number,) for number in range(max(count, 1)))
    homes = (*homes, homes[0]) if blocks.has_tail else homes
    candidate = Candidate(cut=cut, homes=homes, kind=ScheduleKind.GPIPE, microbatches=1)
    plan = candidate.plan(cluster)
    source, target = graph.edges
    if not (graph.phase[target] < graph.phase[source]).any():
        resolve(graph, cluster, plan)


def test_branches_are_blocks_of_their_own() -> None:
    # a feeds b and c, which feed d: two downsets of two blocks, where a chain has one.
    builder = GraphBuilder("diamond", 8)
    for name in "abcd":
        builder.add_op(name, seconds={"any": 1.0})
    for source, targets in ((0, [1, 2]), (1, [3]), (2, [3])):
        builder.add_tensor(source, 4.0, targets)
    blocks = find_blocks(builder.finish())
    assert blocks.num_blocks == 4
    assert set(blocks.edges) == {(0, 1), (0, 2), (1, 3), (2, 3)}
    assert blocks.wires == (((0, 1, 2), 4.0), ((1, 3), 4.0), ((2, 3), 4.0))


def test_backward_ops_follow_their_partners_and_gradients_add_to_the_wire() -> None:
    builder = GraphBuilder("two", 8)
    first = builder.add_op("f0", seconds={"any": 1.0})
    second = builder.add_op("f1", seconds={"any": 1.0})
    back = [
        builder.add_op(f"b{k}", phase=Phase.BACKWARD, partner=k, seconds={"any": 1.0})
        for k in (1, 0)
    ]
    builder.add_tensor(first, 4.0, [second])
    builder.add_tensor(second, 2.0, [back[0]])
    builder.add_tensor(back[0], 3.0, [back[1]])
    blocks = find_blocks(builder.finish())
    assert blocks.block_of_op.tolist() == [0, 1, 1, 0]
    assert blocks.wires == (((0, 1), 7.0),)


def test_tied_weights_wrap_around_to_the_first_block() -> None:
    builder = GraphBuilder("tied", 8)
    names = ["embedding", *(f"layer{number}" for number in range(8)), "head", "loss"]
    for number, name in enumerate(names):
        group = 0 if name in ("embedding", "head") else -1
        builder.add_op(name, group=group, seconds={"any": 1.0})
        if number:
            builder.add_tensor(number - 1, 1.0, [number])
    blocks = find_blocks(builder.finish())
    assert blocks.has_tail
    assert blocks.num_blocks == 9
    assert blocks.is_wrapped.tolist() == [False] * 9 + [True] * 2
    assert blocks.block_of_op.tolist() == [*range(9), 0, 0]
    assert blocks.stage_of_op((np.arange(9) // 3).astype(np.int32)).tolist() == (
        [0] * 3 + [1] * 3 + [2] * 3 + [3] * 2
    )
    assert ((0, 8), 1.0) in blocks.wires  # the last layer feeds the head, on the first's device


def test_a_chain_stays_a_chain_of_single_places() -> None:
    assert find_blocks(forward_chain(30)).num_blocks == 30


def test_places_that_nothing_joins_are_tied_to_the_place_before() -> None:
    pairs = {(k, k + 1) for k in range(5)} | {(6, 7)}  # 6 and 7 are an island, 8 alone
    tied = tie_loose(pairs, 9)
    assert {(5, 6), (6, 7), (7, 5)} <= tied
    assert {(7, 8), (8, 7)} <= tied


def test_tables_that_feed_one_place_are_tied_to_it() -> None:
    # A chain of 12 with a source (place 12) that feeds place 10, as a table of biases would be.
    places = 12
    order = {place: place for place in range(10)} | {12: 10, 10: 11, 11: 12}
    pairs = {(order[k], order[k + 1]) for k in range(places - 1)} | {(order[12], order[10])}
    assert tie_loose(pairs, 13) == {(10, 11), (11, 10)}


def test_towers_of_many_places_are_not_tied() -> None:
    # Two chains of 10 that meet: each has more places than are loose.
    size = MAX_LOOSE + 2
    pairs = {(k, k + 1) for k in range(size - 1)} | {(size + k, size + k + 1) for k in range(size)}
    pairs |= {(size - 1, 2 * size)}
    assert tie_loose(pairs, 2 * size + 1) == set()


@given(graphs(max_ops=16), st.integers(1, 8), st.sampled_from([0.01, 1.0, 100.0]))
def test_clusters_are_convex_and_keep_what_blocks_exchange(
    graph: Graph, count: int, weight: float
) -> None:
    blocks = find_blocks(graph)
    ones = np.ones(blocks.num_blocks)
    label = gather_blocks(
        blocks, ones, ones,
        num_clusters=count, weight=weight, seconds_per_byte=1.0, memory_bytes=np.inf,
    )  # fmt: skip
    assert len(label) == blocks.num_blocks
    clusters = project(blocks, label)
    assert all(u < v for u, v in clusters.edges)  # an order of clusters exists
    inner = sum(size for pins, size in blocks.wires if len({label[pin] for pin in pins}) == 1)
    total = sum(size for _, size in blocks.wires)
    assert sum(size for _, size in clusters.wires) == total - inner
    assert (label[blocks.block_of_op] == clusters.block_of_op).all()


def test_clusters_stay_within_memory() -> None:
    blocks = find_blocks(forward_chain(12))
    held = np.ones(12)
    label = gather_blocks(
        blocks, np.ones(12), held,
        num_clusters=1, weight=1.0, seconds_per_byte=1.0, memory_bytes=3.0,
    )  # fmt: skip
    assert np.bincount(label).max() <= 3


def test_few_blocks_are_not_clustered() -> None:
    blocks = find_blocks(forward_chain(5))
    label = gather_blocks(
        blocks, np.ones(5), np.ones(5),
        num_clusters=5, weight=1.0, seconds_per_byte=1.0, memory_bytes=np.inf,
    )  # fmt: skip
    assert label.tolist() == [0, 1, 2, 3, 4]
