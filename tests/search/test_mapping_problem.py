"""What a mapping problem says: shares, times, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from mapping_strategies import chain_problem, small_problems

from mapping_stages import stage_problem
from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Phase
from meshwright.search.method.pipeline.map.problem import (
    MappingProblem,
    check_assignment,
    find_reason,
    stage_seconds,
    with_rings,
)
from meshwright.search.method.pipeline.map.start import consecutive_mapping, p2p_first_mapping


def test_replica_r_talks_to_replica_r_alone() -> None:
    start, partner, wire = chain_problem(np.full((4, 4), 1.0), stages=2, replicas=2).wires
    assert start.tolist() == [0, 1, 2, 3, 4]
    assert partner.tolist() == [2, 3, 0, 1]
    assert wire.tolist() == [0.5] * 4


def test_uneven_replicas_exchange_the_overlap_of_their_shares() -> None:
    problem = MappingProblem(
        seconds=np.ones((2, 1)),
        replicas_of_slot=np.array([2, 3], np.int32),
        wire_bytes=np.array([[0.0, 6.0], [6.0, 0.0]]),
        sync_bytes=np.zeros(2),
        memory_bytes=np.zeros(2),
        type_of_device=np.zeros(5, np.int32),
        device_memory_bytes=np.ones(5),
        bandwidth=np.ones((5, 5)),
    )
    start, partner, wire = problem.wires
    # Halves against thirds: the first half covers the first third and half of the second.
    assert partner[start[0] : start[1]].tolist() == [2, 3]
    assert wire[start[0] : start[1]] == pytest.approx([2.0, 1.0])
    assert partner[start[3] : start[4]].tolist() == [0, 1]
    assert wire[start[3] : start[4]] == pytest.approx([1.0, 1.0])


def test_a_stage_takes_compute_transfers_and_ring() -> None:
    # Two stages of two replicas; 8 bytes between the stages, 4 of gradients each.
    rates = np.array(
        [[1, 4, 2, 1], [4, 1, 1, 2], [2, 1, 1, 8], [1, 2, 8, 1]], dtype=np.float64
    )  # fmt: skip
    problem = MappingProblem(
        seconds=np.array([[1.0], [2.0]]),
        replicas_of_slot=np.array([2, 2], np.int32),
        wire_bytes=np.array([[0.0, 8.0], [8.0, 0.0]]),
        sync_bytes=np.array([4.0, 4.0]),
        memory_bytes=np.zeros(2),
        type_of_device=np.zeros(4, np.int32),
        device_memory_bytes=np.ones(4),
        bandwidth=rates,
    )
    found = with_rings(problem, np.array([0, 1, 2, 3], np.int32))
    # Stage 0: 1 + 4 bytes at 2 B/s + 2 (2 - 1) / 2 x 4 bytes at 4 B/s; stage 1: 2 + 2 + 4 / 8.
    assert stage_seconds(problem, found) == pytest.approx([4.0, 4.5])


def test_baselines_walk_the_devices_in_their_order() -> None:
    problem = chain_problem(np.ones((6, 6)), stages=3, replicas=2)
    consecutive, p2p = consecutive_mapping(problem), p2p_first_mapping(problem)
    assert consecutive is not None
    assert p2p is not None
    assert consecutive.devices(problem) == ((0, 1), (2, 3), (4, 5))
    assert p2p.devices(problem) == ((0, 3), (1, 4), (2, 5))


@given(small_problems())
@settings(max_examples=30, deadline=None)
def test_baselines_are_assignments_where_there_are_any(problem: MappingProblem) -> None:
    for order in (consecutive_mapping, p2p_first_mapping):
        found = order(problem)
        if found is not None:
            assert not find_reason(problem)
            check_assignment(problem, found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth": np.zeros((4, 4))}, "bandwidth must be positive"),
        ({"bandwidth": np.ones((3, 3))}, "bandwidth must have the shape"),
        ({"wire_bytes": np.array([[0.0, 1.0], [2.0, 0.0]])}, "wire_bytes must be symmetric"),
        ({"replicas_of_slot": np.array([2, 0])}, "every slot needs a replica"),
        ({"sync_bytes": np.array([1.0, np.inf])}, "sync_bytes must be finite"),
        ({"type_of_device": np.full(4, 3)}, "type_of_device must be from 0 to 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, np.ndarray], message: str) -> None:
    problem = chain_problem(np.ones((4, 4)), stages=2, replicas=2)
    names = (
        "seconds", "replicas_of_slot", "wire_bytes", "sync_bytes", "memory_bytes",
        "type_of_device", "device_memory_bytes", "bandwidth",
    )  # fmt: skip
    fields = {name: getattr(problem, name) for name in names}
    with pytest.raises(InputError, match=message):
        MappingProblem(**(fields | change))


def test_a_graph_becomes_slots_with_skips_both_ways() -> None:
    builder = GraphBuilder("skip", batch=4)
    ops = [builder.add_op(f"op{k}", seconds={"any": 4.0}, parameter_bytes=8.0) for k in range(3)]
    back = builder.add_op("back", phase=Phase.BACKWARD, seconds={"any": 2.0})
    builder.add_tensor(ops[0], 10.0, [ops[1], ops[2]])
    builder.add_tensor(ops[1], 20.0, [ops[2]])
    builder.add_tensor(ops[2], 3.0, [back])
    graph = builder.finish()
    slots = np.array([0, 1, 2, 0], np.int32)
    problem = stage_problem(graph, find_cluster("v100-32-x4"), slots, [2, 1, 1])
    assert problem.wire_bytes.tolist() == [[0, 10, 13], [10, 0, 20], [13, 20, 0]]
    assert problem.sync_bytes.tolist() == [8, 8, 8]
    assert problem.seconds[:, 0] == pytest.approx([3.0, 4.0, 4.0])  # half a batch of 4 + 2
