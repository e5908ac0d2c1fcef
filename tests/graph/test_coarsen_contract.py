"""Merging ops by label: what a merged op is, and the way back."""

import random

import networkx as nx
import numpy as np
import pytest
from coarsen_strategies import assert_topological, chain_of, line, steps
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.array import Floats, Ints
from meshwright.graph.build import GraphBuilder
from meshwright.graph.coarsen.coarsening import Coarsening, contract
from meshwright.graph.column import ANY_TYPE
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.search.instance import held_bytes

Labelled = tuple[Graph, Floats, Ints]


@st.composite
def labelled(draw: st.DrawFn) -> Labelled:
    """A step and labels that make no cycle: runs of some topological order."""
    graph, seconds = draw(steps())
    digraph = nx.DiGraph()
    digraph.add_nodes_from(range(graph.num_ops))
    digraph.add_edges_from(zip(*(ends.tolist() for ends in graph.edges), strict=True))
    noise = random.Random(draw(st.integers(0, 100)))
    keys = [noise.random() for _ in range(graph.num_ops)]
    order = list(nx.lexicographical_topological_sort(digraph, key=lambda op: keys[op]))
    names = draw(st.permutations(range(graph.num_ops)))  # labels need not rise
    label = np.zeros(graph.num_ops, dtype=np.int32)
    run = 0
    for op in order:
        run += draw(st.booleans())
        label[op] = names[min(run, graph.num_ops - 1)]
    return graph, seconds, label


@given(labelled())
def test_every_op_is_in_one_coarse_op(case: Labelled) -> None:
    graph, _, label = case
    coarsening = contract(graph, label)
    assert len(coarsening.members) == coarsening.graph.num_ops
    assert sorted(coarsening.members.index.tolist()) == list(range(graph.num_ops))
    for coarse in range(coarsening.graph.num_ops):
        members = coarsening.members[coarse].tolist()
        assert members == sorted(members)
        assert {int(label[op]) for op in members} == {int(label[members[0]])}
        assert np.all(coarsening.coarse_of[members] == coarse)


@given(labelled())
def test_what_adds_up_adds_up(case: Labelled) -> None:
    graph, seconds, label = case
    coarsening = contract(graph, label, seconds={"v100": seconds})
    coarse = coarsening.graph
    summed = (
        "flops", "fixed_flops", "bytes_read", "fixed_bytes_read", "bytes_written",
        "fixed_bytes_written", "calls", "parameter_bytes", "state_bytes",
    )  # fmt: skip
    for number in range(coarse.num_ops):
        members = coarsening.members[number]
        for name in summed:
            assert getattr(coarse, name)[number] == getattr(graph, name)[members].sum()
        assert coarse.seconds["v100"][number] == seconds[members].sum()
        assert coarse.workspace_bytes[number] >= graph.workspace_bytes[members].max()
        assert coarse.saved_bytes[number] >= graph.saved_bytes[members].sum()
        heaviest = members[np.argmax(seconds[members])]
        assert coarse.op_names[number] == graph.op_names[heaviest]
        assert coarse.phase[number] == graph.phase[heaviest]
        splits = set(graph.split[members].tolist())
        assert coarse.split[number] == (splits.pop() if len(splits) == 1 else Split.NONE)
    assert np.array_equal(coarsening.add_up(seconds), coarse.seconds["v100"])


@given(labelled())
def test_tensors_that_leave_a_coarse_op_stay_with_all_their_readers(case: Labelled) -> None:
    graph, _, label = case
    coarsening = contract(graph, label)
    coarse_of = coarsening.coarse_of.tolist()
    expected = []
    for tensor in range(graph.num_tensors):
        readers = graph.readers[tensor].tolist()
        source = coarse_of[graph.tensor_source[tensor]]
        outside = {coarse_of[op] for op in readers} - {source}
        if outside or not readers:
            expected.append((source, float(graph.tensor_bytes[tensor]), sorted(outside)))
    coarse = coarsening.graph
    found = [
        (int(source), float(size), coarse.readers[tensor].tolist())
        for tensor, (source, size) in enumerate(
            zip(coarse.tensor_source, coarse.tensor_bytes, strict=True)
        )
    ]
    assert sorted(found) == sorted(expected)


@given(labelled(), st.randoms(use_true_random=False))
def test_orders_and_places_come_back(case: Labelled, noise: random.Random) -> None:
    graph, _, label = case
    coarsening = contract(graph, label)
    digraph = nx.DiGraph()
    digraph.add_nodes_from(range(coarsening.graph.num_ops))
    digraph.add_edges_from(zip(*(ends.tolist() for ends in coarsening.graph.edges), strict=True))
    keys = [noise.random() for _ in digraph]
    order = list(nx.lexicographical_topological_sort(digraph, key=lambda op: keys[op]))
    assert_topological(graph, coarsening.order(order))
    devices = [noise.randrange(3) for _ in digraph]
    placed = coarsening.place(devices)
    assert [devices[coarse] for coarse in coarsening.coarse_of] == placed.tolist()


@given(labelled())
def test_hard_groups_are_kept_and_unite(case: Labelled) -> None:
    graph, _, label = case
    coarsening = contract(graph, label)
    together = nx.Graph()
    together.add_nodes_from(range(graph.num_ops))
    for column in (graph.group, label):
        for number in set(column.tolist()) - {-1}:
            nx.add_path(together, np.flatnonzero(column == number).tolist())
    group = coarsening.graph.group
    for component in nx.connected_components(together):
        coarse = {int(coarsening.coarse_of[op]) for op in component}
        numbers = {int(group[each]) for each in coarse}
        assert len(numbers) == 1
        assert (numbers == {-1}) == (len(coarse) == 1)
        if numbers != {-1}:
            assert set(np.flatnonzero(group == numbers.pop()).tolist()) == coarse


@given(labelled(), st.data())
def test_two_coarsenings_compose(case: Labelled, data: st.DataObject) -> None:
    graph, seconds, label = case
    first = contract(graph, label, seconds={ANY_TYPE: seconds})
    cut = data.draw(st.integers(0, first.graph.num_ops))
    halves = (np.arange(first.graph.num_ops) >= cut).astype(np.int32)
    both = first.then(second := contract(first.graph, halves))
    assert both.graph is second.graph
    assert np.array_equal(both.coarse_of, second.coarse_of[first.coarse_of])
    order = np.arange(both.graph.num_ops)
    assert_topological(graph, both.order(order))
    assert_topological(graph, first.order(second.order(order)))
    assert both.graph.seconds[ANY_TYPE].sum() == seconds.sum()


@given(labelled())
def test_what_is_held_for_backward_is_not_less(case: Labelled) -> None:
    # Within phases: a coarse op of several has only the phase of its heaviest member.
    graph, _, label = case
    by_phase = label * len(Phase) + graph.phase.astype(np.int32)
    assume(_is_acyclic(graph, by_phase))
    coarsening = contract(graph, by_phase)
    assert held_bytes(coarsening.graph).sum() == held_bytes(graph).sum()


def _is_acyclic(graph: Graph, label: Ints) -> bool:
    digraph = nx.DiGraph()
    for source, target in zip(*(ends.tolist() for ends in graph.edges), strict=True):
        if label[source] != label[target]:
            digraph.add_edge(int(label[source]), int(label[target]))
    return bool(nx.is_directed_acyclic_graph(digraph))


def _step_of_six() -> Graph:
    """Forward a -> b -> c, backward c' -> b' -> a'; b' reads what a made."""
    builder = GraphBuilder("step", 1)
    for name in "abc":
        builder.add_op(name, workspace_bytes=1, saved_bytes=2)
    for name in "cba":
        builder.add_op(f"{name}'", phase=Phase.BACKWARD, partner="abc".index(name))
    for source, size, targets in (
        (0, 10, [1, 4]), (1, 20, [2]), (2, 30, [3]), (3, 40, [4]), (4, 50, [5]),
    ):  # fmt: skip
        builder.add_tensor(source, size, targets)
    return builder.finish()


def _merge(graph: Graph, *sets: str) -> Coarsening:
    label = np.arange(graph.num_ops, dtype=np.int32)
    for each in sets:
        ops = [graph.index[name] for name in each.split()]
        label[ops] = ops[0]
    return contract(graph, label)


def test_inner_tensors_become_workspace_while_alive() -> None:
    # a's tensor leaves. While b runs nothing inner is alive but its own 20 (1 more to work with);
    # while c runs these 20 and its 30, which leave.
    coarsening = _merge(_step_of_six(), "a b c")
    assert coarsening.graph.workspace_bytes.tolist() == [21, 0, 0, 0]
    assert coarsening.graph.saved_bytes.tolist() == [6, 0, 0, 0]
    assert coarsening.graph.tensor_bytes.tolist() == [10, 30, 40, 50]
    assert coarsening.graph.partner.tolist() == [-1, 0, 0, 0]


def test_inner_tensors_alive_at_once_add_up() -> None:
    # While c' runs: c's 30 (kept for backward: saved), its own 40; then 40 and 50.
    coarsening = _merge(_step_of_six(), "c c' b' a'")
    assert coarsening.graph.workspace_bytes.tolist() == [1, 1, 90]
    assert coarsening.graph.saved_bytes.tolist() == [2, 2, 32]


def test_what_backward_members_read_of_forward_members_counts_as_saved() -> None:
    graph = _step_of_six()
    coarsening = _merge(graph, "a b c c' b' a'")
    assert coarsening.graph.saved_bytes.tolist() == [6 + 10 + 30]
    assert coarsening.graph.partner.tolist() == [-1]
    assert held_bytes(coarsening.graph).sum() == held_bytes(graph).sum()


def test_a_tensor_read_by_members_and_others_stays_with_the_others() -> None:
    coarsening = _merge(_step_of_six(), "a b")
    assert coarsening.graph.readers[0].tolist() == [coarsening.coarse_of[4]]


def test_a_cycle_is_our_fault() -> None:
    graph = chain_of(line(3), 3)
    with pytest.raises(AssertionError, match="makes a cycle"):
        contract(graph, np.array([0, 1, 0], dtype=np.int32))


def test_labels_that_do_not_rise_are_ordered() -> None:
    coarsening = contract(chain_of(line(4), 4), np.array([9, 9, 2, 5], dtype=np.int32))
    assert coarsening.coarse_of.tolist() == [0, 0, 1, 2]


def test_measured_times_add_where_all_are_known() -> None:
    builder = GraphBuilder("step", 1)
    for name, seconds in (("a", {"h200": 1.0}), ("b", {"h200": 2.0, "cpu": 3.0}), ("c", {})):
        builder.add_op(name, seconds=seconds)
    builder.add_tensor(0, 1, [1])
    builder.add_tensor(1, 1, [2])
    coarse = _merge(builder.finish(), "a b").graph
    assert coarse.seconds["h200"][0] == 3.0
    assert np.isnan(coarse.seconds["h200"][1])
    assert np.isnan(coarse.seconds["cpu"]).all()


def test_soft_groups_unite_with_hard_ones() -> None:
    builder = GraphBuilder("step", 1)
    for op, group in enumerate((0, 0, -1, -1, -1)):
        builder.add_op(f"op{op}", group=group)
    graph = builder.finish()
    soft = np.array([-1, 7, 7, 8, -1], dtype=np.int32)
    coarsening = contract(graph, np.arange(5, dtype=np.int32), soft)
    assert coarsening.graph.group.tolist() == [0, 0, 0, -1, -1]


def test_nothing_to_merge_changes_no_size() -> None:
    graph = _step_of_six()
    coarse = contract(graph, np.arange(6, dtype=np.int32)).graph
    assert coarse.op_names == graph.op_names
    for name in ("flops", "workspace_bytes", "saved_bytes", "tensor_bytes", "use_op", "partner"):
        assert np.array_equal(getattr(coarse, name), getattr(graph, name))


def test_a_graph_without_ops() -> None:
    coarsening = contract(GraphBuilder("none", 1).finish(), np.zeros(0, dtype=np.int32))
    assert coarsening.graph.num_ops == 0
    assert coarsening.order(np.zeros(0, dtype=np.int64)).tolist() == []
