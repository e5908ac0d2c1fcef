"""Every bound is below the optimum, and those that should be tight are."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from mapping_strategies import best_by_trying, chain_problem, small_problems

from meshwright.cluster.catalogue import find_cluster
from meshwright.search.method.pipeline.map.coarse import find_hosts, solve_coarse
from meshwright.search.method.pipeline.map.match import least_limit, match_slots
from meshwright.search.method.pipeline.map.pack import pack_bound, place_floors
from meshwright.search.method.pipeline.map.problem import MappingProblem, find_reason, stage_seconds
from meshwright.search.method.pipeline.map.solve import part_of, solve_mapping
from meshwright.search.method.pipeline.map.start import consecutive_mapping
from meshwright.search.method.pipeline.map.symmetry import find_symmetry


@given(small_problems())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_bound_is_above_the_optimum(problem: MappingProblem) -> None:
    if find_reason(problem):
        return
    best = best_by_trying(problem) * (1 + 1e-9)
    floors = place_floors(problem)
    bound = least_limit(floors, problem.replicas_of_slot)
    assert bound <= best
    assert pack_bound(problem, 0.0, 10 * best + 1) <= best
    hosts = np.arange(problem.num_devices, dtype=np.int32) // 2
    start = consecutive_mapping(problem)
    if start is None or hosts.max() == 0:
        return
    value = float(stage_seconds(problem, start).max())
    coarse = solve_coarse(
        problem, hosts, floors, 0.0, value, start.device_of_place,
        work=1.0, most_seconds=5.0, seed=0,
    )  # fmt: skip
    assert coarse is None or coarse.bound_seconds <= best


@given(small_problems(most_places=5, most_devices=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_part_of_the_slots_is_never_slower_than_all(problem: MappingProblem) -> None:
    if find_reason(problem):
        return
    part = part_of(problem, list(range((problem.num_slots + 1) // 2)))
    assert best_by_trying(part) <= best_by_trying(problem) * (1 + 1e-9)


def test_wires_that_cannot_leave_a_host_fill_it() -> None:
    # Lines of three on hosts of two: one wire of each line must cross, 1 byte at 1 B/s.
    host = np.arange(6) // 2
    rates = np.where(host[:, None] == host[None, :], 100.0, 1.0)
    problem = chain_problem(rates, stages=3, replicas=2, sync=0.0)
    # compute 0.1, half a byte at 1 B/s over the slow link.
    assert pack_bound(problem, 0.0, 10.0) == pytest.approx(0.6, abs=0.02)
    assert solve_mapping(problem).seconds == pytest.approx(0.605)


def test_hosts_are_found_where_bandwidth_steps() -> None:
    cluster = find_cluster("titan-v-4x4")
    problem = chain_problem(cluster.bandwidth, stages=4, replicas=4)
    hosts = find_hosts(problem)
    assert hosts is not None
    assert hosts.tolist() == np.repeat(np.arange(4), 4).tolist()


def test_devices_of_a_host_are_twins_and_hosts_are_alike() -> None:
    problem = chain_problem(find_cluster("titan-v-4x4").bandwidth, stages=4, replicas=4)
    found = find_symmetry(problem)
    assert found.twin.tolist() == np.repeat([0, 4, 8, 12], 4).tolist()
    assert len(set(found.kind.tolist())) == 1
    assert found.group.tolist() == np.repeat(np.arange(4), 4).tolist()


def test_a_device_of_another_type_is_no_twin() -> None:
    fields = chain_problem(np.ones((4, 4)), stages=2, replicas=2)
    problem = MappingProblem(
        seconds=np.array([[1.0, 2.0], [1.0, 2.0]]),
        replicas_of_slot=fields.replicas_of_slot,
        wire_bytes=fields.wire_bytes,
        sync_bytes=fields.sync_bytes,
        memory_bytes=fields.memory_bytes,
        type_of_device=np.array([0, 0, 1, 0], np.int32),
        device_memory_bytes=fields.device_memory_bytes,
        bandwidth=fields.bandwidth,
    )
    assert find_symmetry(problem).twin.tolist() == [0, 0, 2, 0]


def test_matching_hands_devices_on() -> None:
    can_run = np.array([[True, True, True], [True, False, False], [True, True, False]])
    slot_of, missing = match_slots(can_run, np.array([1, 1, 1], np.int32))
    assert missing == 0
    assert slot_of.tolist() == [1, 2, 0]
    assert match_slots(can_run, np.array([1, 2, 0], np.int32))[1] == 1
