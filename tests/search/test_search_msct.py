"""m-SCT: schedules worked out by hand, memory, and what holds on any graph."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs, make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.answer import Stop
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.msct.favourite import Favourites, find_favourites, mean_delays
from meshwright.search.method.msct.msct import follow_forward, schedule_msct
from meshwright.search.order.list_schedule import order_seconds
from meshwright.search.portfolio import search_by
from meshwright.source import zoo_graph

msct = partial(search_by, "m-sct")
single = partial(search_by, "single")


def dag(seconds: list[float], edges: dict[tuple[int, int], float], state: float = 0.0) -> Graph:
    builder = GraphBuilder("dag")
    for number, each in enumerate(seconds):
        builder.add_op(f"o{number}", seconds={"any": each}, state_bytes=state)
    for (source, target), size in edges.items():
        builder.add_tensor(source, size, [target])
    return builder.finish()


def favourites(num_ops: int, *pairs: tuple[int, int]) -> Favourites:
    child, parent = (np.full(num_ops, -1, dtype=np.int32) for _ in range(2))
    for source, target in pairs:
        child[source], parent[target] = target, source
    return Favourites(child=child, parent=parent, relaxed_seconds=0.0)


def find_chain(instance: Instance) -> Favourites:
    return find_favourites(mean_delays(instance, instance.unit_of))


def test_a_diamond_takes_five_seconds_on_two_devices() -> None:
    # a 0-1 and its favourite, say b, 1-3 on one device; c waits for a's tensor, 2-4 on the other,
    # where its favourite d waits for b's until 4 and ends at 5.
    graph = dag([1, 2, 2, 1], {(0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 3): 1})
    cluster = make_cluster(["fast"] * 2)
    instance = make_instance(graph, cluster)
    placed, _, seconds = schedule_msct(instance, find_chain(instance), instance.unit_of)
    assert seconds == 5.0
    assert (placed[0] == placed[1]) != (placed[0] == placed[2])
    assert msct(graph, cluster).step_seconds == pytest.approx(5.0)


WAITING = ([2.0, 2.0, 5.0, 5.0], {(0, 2): 1.0, (0, 3): 4.0, (1, 3): 1.0})
"""Ops 0 and 1 run side by side until 2. Op 3 reads 4 bytes of op 0 and 1 of op 1, which is there at
3; op 2 reads 1 byte of op 0."""


def test_a_device_waits_for_the_favourite_child_of_its_last_op() -> None:
    # Op 2 could start beside op 0 at 2, but its input would be anywhere at 3 only. So op 3 gets the
    # device at 3, op 2 the other, both until 8.
    instance = make_instance(dag(*WAITING), make_cluster(["fast"] * 2))
    chain = favourites(4, (0, 3))
    placed, order, seconds = schedule_msct(instance, chain, instance.unit_of, queues=False)
    assert seconds == 8.0
    assert placed[3] == placed[0] != placed[2]
    assert order.tolist()[:2] == [0, 1]


def test_without_favourites_the_first_to_start_takes_the_device() -> None:
    # Op 2 from 2 to 7 beside op 0; op 3 has op 0's tensor on the other device at 6, until 11.
    instance = make_instance(dag(*WAITING), make_cluster(["fast"] * 2))
    _, _, seconds = schedule_msct(instance, favourites(4), instance.unit_of, queues=False)
    assert seconds == 11.0


def test_an_urgent_op_does_not_wait() -> None:
    # Op 4 needs nothing: it runs on op 0's device while that waits for op 3's other input until 7,
    # since the other device is busy until 6.
    seconds = [2.0, 6.0, 1.0, 5.0, 4.0]
    graph = dag(seconds, {(0, 3): 9.0, (1, 3): 1.0, (0, 2): 1.0})
    instance = make_instance(graph, make_cluster(["fast"] * 2))
    placed, _, total = schedule_msct(
        instance, favourites(5, (0, 3)), instance.unit_of, queues=False
    )
    assert placed[4] == placed[0]
    assert total == 12.0  # op 4 2-6, op 3 7-12


def test_transfers_of_a_device_queue() -> None:
    # Op 0's device runs op 1 from 1 to 5. Its tensors for ops 2 and 3 leave one after the other and
    # are there at 2 and 3, or both at 2.
    graph = dag([1.0, 4.0, 4.0, 4.0], {(0, 1): 1.0, (0, 2): 1.0, (0, 3): 1.0})
    instance = make_instance(graph, make_cluster(["fast"] * 3))
    none = favourites(4)
    assert schedule_msct(instance, none, instance.unit_of)[2] == 7.0
    assert schedule_msct(instance, none, instance.unit_of, queues=False)[2] == 6.0


def test_a_tensor_is_sent_to_a_device_once() -> None:
    # Op 0's tensor of 3 bytes is read by ops 2 and 3, which share a device with op 1.
    builder = GraphBuilder("once")
    for number, group in enumerate([-1, 4, 4, 4]):
        builder.add_op(f"o{number}", seconds={"any": 1.0}, group=group)
    builder.add_tensor(0, 3.0, [2, 3])
    instance = make_instance(builder.finish(), make_cluster(["fast"] * 2))
    placed, _, seconds = schedule_msct(instance, favourites(4), instance.unit_of)
    assert placed.tolist() == [0, 1, 1, 1]
    assert seconds == 6.0  # there at 4, then two ops


def test_unequal_devices_are_chosen_by_the_end() -> None:
    # Three ops of 1 s on the fast device and 4 on the slow one: the third ends at 3 behind the
    # other two, at 4 alone.
    builder = GraphBuilder("unequal")
    for number in range(3):
        builder.add_op(f"o{number}", seconds={"fast": 1.0, "slow": 4.0})
    answer = msct(builder.finish(), make_cluster(["slow", "fast"]))
    assert answer.step_seconds == 3.0


def test_a_full_device_is_passed_over() -> None:
    # Ten ops that hold 10 bytes each, devices of 60: two are needed, and one transfer.
    chain = {(i, i + 1): 1.0 for i in range(9)}
    graph = dag([1.0] * 10, chain, state=10.0)
    answer = msct(graph, make_cluster(["fast"] * 2, memory_bytes=60.0))
    assert answer.plan is not None
    assert answer.step_seconds == pytest.approx(11.0)
    assert max(answer.peak_bytes) <= 60.0


def test_too_little_memory_is_said() -> None:
    graph = dag([1.0] * 4, {}, state=10.0)
    answer = msct(graph, make_cluster(["fast"] * 2, memory_bytes=15.0))
    assert answer.stop is Stop.INFEASIBLE
    assert "are missing" in answer.binding


def test_an_op_that_no_device_runs_is_named() -> None:
    builder = GraphBuilder("nowhere")
    builder.add_op("alien", seconds={"fast": math.inf})
    answer = msct(builder.finish(), make_cluster(["fast"]))
    assert "'alien'" in answer.binding


def test_ops_go_where_they_can_run() -> None:
    builder = GraphBuilder("picky")
    builder.add_op("left", seconds={"fast": 1.0, "slow": math.inf})
    builder.add_op("right", seconds={"fast": math.inf, "slow": 1.0})
    assert msct(builder.finish(), make_cluster(["fast", "slow"])).step_seconds == 1.0


def test_backward_ops_follow_their_forward_ops() -> None:
    builder = GraphBuilder("pairs")
    for number in range(2):
        builder.add_op(f"f{number}", seconds={"any": 1.0})
    for number in range(2):
        builder.add_op(f"b{number}", seconds={"any": 1.0}, phase=Phase.BACKWARD, partner=1 - number)
    instance = make_instance(builder.finish(), make_cluster(["fast"] * 2))
    unit_of = follow_forward(instance)
    assert unit_of is not None
    assert unit_of.tolist() == [0, 1, 1, 0]
    assert follow_forward(make_instance(dag([1.0, 1.0], {}), make_cluster(["fast"]))) is None


@given(graphs(), clusters(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_schedules_are_orders_that_run_as_they_say(
    graph: Graph, cluster: Cluster, queues: bool
) -> None:
    instance = make_instance(graph, cluster)
    chain = find_chain(instance)
    placed, order, seconds = schedule_msct(instance, chain, instance.unit_of, queues=queues)
    assert sorted(order.tolist()) == list(range(graph.num_ops))
    # Waiting for a favourite or for a channel is idle time that the order alone does not need.
    assert order_seconds(instance, placed, order) <= seconds * (1 + 1e-9)
    for unit in range(instance.num_units):
        assert len(set(placed[instance.unit_of == unit].tolist())) == 1


@given(graphs(), clusters())
@settings(max_examples=30, deadline=None)
def test_answers_keep_to_their_bound_and_repeat(graph: Graph, cluster: Cluster) -> None:
    answer = msct(graph, cluster)
    assert answer.step_seconds >= answer.bound_seconds * (1 - 1e-9)
    assert msct(graph, cluster).plan == answer.plan


def test_m_sct_beats_one_device_where_ops_are_parallel() -> None:
    graph, cluster = zoo_graph("inception-v3", 32), find_cluster("v100-32-x4")
    assert msct(graph, cluster).step_seconds < 0.9 * single(graph, cluster).step_seconds
