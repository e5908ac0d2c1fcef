"""Bytes that move from one plan to another, worked out by hand and by counting number by number."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.change.host import drop_hosts
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.part import Part, Sync
from meshwright.plan.plan import Plan
from meshwright.program.state import HeldState, StateShape, find_state, held_boxes
from meshwright.replan.move import STORAGE, Moves, find_moves, transfer_seconds
from meshwright.source import load_graph
from small import connected, star

WEIGHT = 24.0
"""Bytes of a weight of six numbers; its optimiser has twice as many, and a count of 4 bytes."""


def trained(num_layers: int = 2) -> Graph:
    """A chain of layers with a weight each, its gradient and its update by Adam."""
    builder = GraphBuilder("trained", batch=8)
    forward = [
        builder.add_op(
            f"forward{number}",
            seconds={"any": 1.0},
            parameter_bytes=WEIGHT,
            state_bytes=WEIGHT,
            group=number,
            precision="fp32",
        )
        for number in range(num_layers)
    ]
    backward = [
        builder.add_op(
            f"backward{number}",
            phase=Phase.BACKWARD,
            seconds={"any": 1.0},
            group=number,
            partner=forward[number],
        )
        for number in reversed(range(num_layers))
    ]
    backward.reverse()
    for number in range(num_layers):
        update = builder.add_op(
            f"update{number}", kind="adam", phase=Phase.UPDATE, split=Split.NONE,
            seconds={"any": 0.0}, group=number, state_bytes=2 * WEIGHT + 4, precision="fp32",
        )  # fmt: skip
        builder.add_tensor(backward[number], WEIGHT, [update], partial=True)
        later = [forward[number + 1]] if number + 1 < num_layers else []
        builder.add_tensor(forward[number], 8.0, [backward[number], *later])
        if number:
            builder.add_tensor(backward[number], 8.0, [backward[number - 1]])
    return builder.finish()


STATE = 3 * WEIGHT + 4
"""What one layer holds."""


def data(graph: Graph, *devices: str, zero: int = 0) -> Plan:
    return Plan(parts=(Part(ops=graph.op_names, devices=devices, zero=zero),))


def layers(graph: Graph, *homes: tuple[str, ...]) -> Plan:
    ops = [[n for n in graph.op_names if n.endswith(str(k))] for k in range(len(homes))]
    return Plan(
        parts=tuple(
            Part(ops=tuple(own), devices=home) for own, home in zip(ops, homes, strict=True)
        )
    )


def moves(graph: Graph, before: Plan, after: Plan, left: Cluster | None = None) -> Moves:
    cluster = connected(4)
    return find_moves(graph, (cluster, before), (left or cluster, after))


def without(*hosts: str) -> Cluster:
    return drop_hosts(connected(4), hosts, "without")


def test_a_new_replica_needs_all_of_the_state() -> None:
    graph = trained()
    found = moves(graph, data(graph, "d0"), data(graph, "d0", "d1"))
    assert found.needed_bytes == {"d1": 2 * STATE}
    assert found.flows == {("d0", "d1"): 2 * STATE}
    assert found.between_hosts == {("h0", "h1"): 2 * STATE}
    assert found.network_seconds == pytest.approx(2 * STATE)  # a byte a second
    assert (found.stored_bytes, found.storage_seconds) == (0, 0)
    assert found.state_bytes == 4 * STATE


def test_replicas_that_stay_need_nothing() -> None:
    graph = trained()
    found = moves(graph, data(graph, "d0", "d1", "d2"), data(graph, "d2", "d0"))
    assert (found.needed_bytes, found.seconds) == ({}, 0)


def test_a_layer_that_moves_takes_its_state_along() -> None:
    graph = trained()
    found = moves(graph, layers(graph, ("d0",), ("d1",)), layers(graph, ("d0",), ("d2",)))
    assert found.flows == {("d1", "d2"): STATE}


def test_what_died_with_its_holder_comes_from_the_storage() -> None:
    graph = trained()
    before = layers(graph, ("d0",), ("d1",))
    found = moves(graph, before, data(graph, "d0"), without("h1"))
    assert found.flows == {(STORAGE, "d0"): STATE}
    assert found.between_hosts == {(STORAGE, "h0"): STATE}
    # Three hosts are left, so that two links of a byte a second lead into each.
    assert found.storage_seconds == STATE / 2
    # The last host has no network left: it reads over the three links that it had.
    last = find_moves(graph, (connected(4), before), (without("h1", "h2", "h3"), data(graph, "d0")))
    assert last.storage_seconds == STATE / 3
    given_rate = find_moves(
        graph, (connected(4), before), (without("h1"), data(graph, "d0")),
        storage_bytes_per_second=8.0,
    )  # fmt: skip
    assert given_rate.storage_seconds == STATE / 8


def test_shards_of_zero_are_divided_anew() -> None:
    graph = trained(1)
    found = moves(graph, data(graph, "d0", "d1", zero=1), data(graph, "d0", "d1", "d2", zero=1))
    # Six numbers, three for each of two holders, become two for each of three: d1 has had 3 to 5
    # and needs 2 and 3, d2 needs 4 and 5, and all of the weight and of the count.
    numbers = 2 * 4.0  # bytes of a number of the optimiser
    assert found.needed_bytes == {"d1": numbers, "d2": 2 * numbers + WEIGHT + 4}
    assert found.flows["d0", "d1"] == numbers
    assert found.flows["d1", "d2"] >= 2 * numbers


def test_senders_take_turns() -> None:
    graph = trained(2)
    before = data(graph, "d0", "d1")
    after = data(graph, "d0", "d1", "d2", "d3")
    flows = moves(graph, before, after).flows
    sent = {source: 0.0 for source, _ in flows}
    for (source, _), size in flows.items():
        sent[source] += size
    assert set(sent) == {"d0", "d1"}
    assert abs(sent["d0"] - sent["d1"]) <= 2 * STATE / 2


def test_the_nearest_holder_sends() -> None:
    cluster = find_cluster("titan-v-2x2")
    graph = trained(1)
    names = [device.name for device in cluster.devices]
    before, after = data(graph, names[0], names[2]), data(graph, *names)
    flows = find_moves(graph, (cluster, before), (cluster, after)).flows
    assert set(flows) == {(names[0], names[1]), (names[2], names[3])}


def test_transfers_share_links() -> None:
    # Both come in over d2's link of 2 bytes a second, each at 1; then the longer one is alone,
    # and as fast as its own sender's 1 byte a second.
    cluster = star([1.0, 1.0, 2.0])
    assert transfer_seconds(cluster, {("d0", "d2"): 3.0, ("d1", "d2"): 5.0}) == pytest.approx(5.0)
    narrow = star([4.0, 4.0, 2.0])
    assert transfer_seconds(narrow, {("d0", "d2"): 3.0, ("d1", "d2"): 5.0}) == pytest.approx(4.0)
    assert transfer_seconds(cluster, {}) == 0.0


def numbers_of(piece: HeldState, part: Part, number: int, shape: StateShape) -> np.ndarray:
    """Which numbers a device of a part holds, counted one by one."""
    held = np.zeros((shape.experts, shape.features, shape.rest), dtype=np.bool_)
    for box in held_boxes(piece, part, number, shape):
        where = tuple(slice(a, a + n) for a, n in zip(box.offset, box.shape, strict=True))
        assert not held[where].any(), "no number is held twice"
        held[where] = True
    return held


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.booleans(),
    st.booleans(), st.integers(1, 5),
)  # fmt: skip
def test_every_number_has_as_many_holders(
    tensor: int, groups: int, expert: int, is_cut: bool, of_experts: bool, is_sharded: bool,
    rest: int,
) -> None:  # fmt: skip
    count = tensor * groups * expert
    devices = tuple(f"d{number}" for number in range(count))
    part = Part(ops=("o",), devices=devices, tensor=tensor, expert=expert)
    shape = StateShape(experts=2 * expert, features=6 * tensor, rest=rest)
    piece = HeldState(
        key=("weights", "o"), numbers=shape.numbers, number_bytes=4.0, parts=(0,), is_cut=is_cut,
        of_experts=of_experts, is_sharded=is_sharded,
    )  # fmt: skip
    held = np.sum([numbers_of(piece, part, each, shape) for each in range(count)], axis=0)
    divided = (tensor if is_cut else 1) * (expert if of_experts else 1)
    copies = count // divided
    if is_sharded:  # of those that hold the same, one has each number; a team divides no more
        copies = 1 if is_cut else tensor
        if expert > 1 and not of_experts:
            copies *= 1
    assert (held == copies).all()


CASES = ("mlp", "bert-small", "gpt2")


@pytest.mark.parametrize("model", CASES)
def test_a_device_with_everything_holds_the_graphs_state(model: str) -> None:
    graph = load_graph(model)
    cluster = find_cluster("titan-v-2x2")
    plan = data(graph, cluster.devices[0].name)
    total = sum(piece.num_bytes for piece in find_state(graph, cluster, plan))
    assert total == pytest.approx(float(graph.state_bytes.sum()), rel=1e-9)


@pytest.mark.parametrize("model", CASES)
def test_from_nothing_a_plan_needs_what_it_holds(model: str) -> None:
    graph = load_graph(model)
    cluster = find_cluster("titan-v-4x2")
    names = [device.name for device in cluster.devices]
    left = drop_hosts(cluster, ["host0"], "without")
    before = data(graph, names[0])  # which is gone
    after = data(graph, *names[2:6], zero=3)
    found = find_moves(graph, (cluster, before), (left, after))
    assert found.total_bytes == pytest.approx(found.state_bytes)
    assert found.stored_bytes == pytest.approx(found.state_bytes)


def test_parameter_servers_and_duplicates_hold_all_of_it() -> None:
    graph = trained(1)
    for sync in (Sync.PARAMETER_SERVER, Sync.DUPLICATE):
        part = Part(ops=graph.op_names, devices=("d0", "d1"), sync=sync)
        after = Plan(parts=(replace(part, devices=("d0", "d1", "d2")),))
        assert moves(graph, Plan(parts=(part,)), after).needed_bytes == {"d2": STATE}
