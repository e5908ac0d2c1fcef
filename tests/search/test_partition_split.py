import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_strategies import best_contiguous, problems

from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.search.partition import split as split_module
from meshwright.search.partition.cycle import number_components
from meshwright.search.partition.lattice import find_lattice
from meshwright.search.partition.pool import find_prices, make_pools
from meshwright.search.partition.problem import (
    Kind,
    SplitProblem,
    device_loads,
    fits_memory,
    make_problem,
)
from meshwright.search.partition.reduce import reduce_problem
from meshwright.search.partition.split import Split, solve_split
from meshwright.search.partition.throughput import read_throughput

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "dnn_partitioning.py"
LISTED_MS = {
    "layer_bert24_inference": 17.7899,
    "layer_bert24_training": 41.7458,
    "layer_resnet50_inference": 33.7747,
    "layer_gnmt_inference": 32.9107,
    "op_bert_l-3_inference": 27.9186,
    "op_bert_l-6_training": 72.865,
    "op_resnet50_inference": 124.349,
}
"""The optima that the authors' own programme prints."""


def chain(seconds: list[float], wires: list[float], devices: int) -> SplitProblem:
    """Nodes in a row, a wire between each and the next."""
    pairs = [(k, k + 1) for k in range(len(seconds) - 1)]
    return make_problem(
        kinds=[Kind(name="device", count=devices, seconds=np.array(seconds))],
        num_bytes=[0.0] * len(seconds),
        edges=pairs,
        wires=list(zip(pairs, wires, strict=True)),
    )


def check(problem: SplitProblem, found: Split) -> None:
    """The claims of an answer about itself."""
    assert (found.stage_of_node >= 0).all()
    edges = zip(problem.edge_source, problem.edge_target, strict=True)
    assert all(found.stage_of_node[u] <= found.stage_of_node[v] for u, v in edges)
    loads = device_loads(problem, found.stage_of_node, found.kind_of_stage)
    assert loads.max() == pytest.approx(found.seconds, rel=1e-12)
    assert fits_memory(problem, found.stage_of_node, found.kind_of_stage)


def test_a_chain_worked_out_by_hand() -> None:
    # 4 | 1 2 | 3: loads 4 + 1, 1 + 1 + 2 + 1, 3 + 1; any other cut has a load above 5.
    found = solve_split(chain([4.0, 1.0, 2.0, 3.0], [1.0, 9.0, 1.0], 3))
    assert found.stop is Stop.PROVED
    assert found.seconds == found.bound_seconds == 5.0
    assert found.stage_of_node.tolist() == [0, 1, 1, 2]


def test_a_wire_is_paid_once_by_its_source_and_once_by_every_reader() -> None:
    # What node 0 makes is read by 1 and 2, each on a device of its own: all three pay 1.
    problem = make_problem(
        kinds=[Kind(name="device", count=3, seconds=np.array([5.0, 5.0, 5.0]))],
        num_bytes=[0.0] * 3,
        edges=[(0, 1), (0, 2)],
        wires=[((0, 1, 2), 1.0)],
    )
    assert device_loads(problem, [0, 1, 2], [0, 0, 0]).tolist() == [6.0, 6.0, 6.0]
    assert device_loads(problem, [0, 0, 1], [0, 0]).tolist() == [11.0, 6.0]
    assert solve_split(problem).seconds == 6.0


def test_replicas_share_what_a_stage_costs() -> None:
    # Two devices: 3 + 3 on one each with a wire of 2 is 5; both nodes on two replicas are 3.
    kinds = [
        Kind(
            name=f"x{m}", count=2, seconds=np.full(2, 3.0 / m), wire_share=1 / m, width=m, pool="p"
        )
        for m in (1, 2)
    ]
    problem = make_problem(kinds=kinds, num_bytes=[0.0, 0.0], edges=[(0, 1)], wires=[((0, 1), 2.0)])
    found = solve_split(problem)
    assert (found.seconds, found.kind_of_stage, found.stop) == (3.0, (1,), Stop.PROVED)


def test_microbatches_in_flight_move_nodes_to_later_stages() -> None:
    # One saved byte a node; the first of two stages holds 2 microbatches and 4 bytes fit: of six
    # nodes it can have two.
    problem = make_problem(
        kinds=[Kind(name="device", count=2, seconds=np.ones(6), memory_bytes=4.0)],
        num_bytes=[0.0] * 6,
        saved_bytes=[1.0] * 6,
        in_flight=(2, 1),
        edges=[(k, k + 1) for k in range(5)],
        wires=[],
    )
    found = solve_split(problem)
    assert found.stage_of_node.tolist() == [0, 0, 1, 1, 1, 1]
    assert found.seconds == 4.0


@given(problems())
@settings(max_examples=150, deadline=None)
def test_splits_equal_enumeration(problem: SplitProblem) -> None:
    best = best_contiguous(problem)
    found = solve_split(problem)
    if math.isinf(best):
        assert found.stop is Stop.INFEASIBLE
        assert found.reason
    else:
        assert found.stop is Stop.PROVED
        assert found.seconds == pytest.approx(best, rel=1e-9)
        assert found.bound_seconds == pytest.approx(best, rel=1e-9)
        check(problem, found)


@given(problems(with_flights=False))
@settings(max_examples=60, deadline=None)
def test_too_many_downsets_still_give_a_split_and_a_bound(problem: SplitProblem) -> None:
    best = best_contiguous(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "MAX_DOWNSETS", 2)
        found = solve_split(problem)
    if found.stop is Stop.INFEASIBLE:
        return  # along one order of the nodes nothing may fit
    assert found.bound_seconds <= best * (1 + 1e-9) <= found.seconds * (1 + 2e-9)
    assert (found.stop is Stop.PROVED) == (found.seconds <= found.bound_seconds * (1 + 1e-9))
    check(problem, found)


@given(problems(max_nodes=7))
@settings(max_examples=100, deadline=None)
def test_lattices_are_all_closed_sets(problem: SplitProblem) -> None:
    edges = list(zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True))
    nodes = range(problem.num_nodes)
    closed = {
        sum(1 << node for node in nodes if inside[node])
        for inside in itertools.product([False, True], repeat=problem.num_nodes)
        if all(inside[u] or not inside[v] for u, v in edges)
    }
    lattice = find_lattice(problem, 1000)
    assert lattice is not None
    sets = lattice.bits[:, 0].tolist()
    assert set(sets) == closed
    assert len(sets) == len(closed)
    for number, each in enumerate(sets):
        steps = range(lattice.step_start[number], lattice.step_start[number + 1])
        grown = {int(lattice.step_node[k]): sets[lattice.step_to[k]] for k in steps}
        want = {v: each | 1 << v for v in nodes if not each >> v & 1 and each | 1 << v in closed}
        assert grown == want
    assert find_lattice(problem, len(closed) - 1) is None


@given(problems(with_flights=False))
@settings(max_examples=100, deadline=None)
def test_reductions_keep_the_optimum(problem: SplitProblem) -> None:
    reduction = reduce_problem(problem)
    best = best_contiguous(problem)
    assert best_contiguous(reduction.problem) == pytest.approx(best, rel=1e-9)


@given(problems(with_flights=False))
@settings(max_examples=100, deadline=None)
def test_prices_bound_every_split_from_below(problem: SplitProblem) -> None:
    prices = find_prices(problem, make_pools(problem))
    assert prices.bound_seconds <= best_contiguous(problem) * (1 + 1e-9)


def test_a_ladder_of_free_nodes_shrinks_to_what_costs() -> None:
    # 40 dangling ends without seconds make 2^40 downsets; they join the nodes that they hang on.
    count = 40
    edges = [(k, k + 1) for k in range(count - 1)] + [(k, count + k) for k in range(count)]
    problem = make_problem(
        kinds=[Kind(name="device", count=4, seconds=np.array([1.0] * count + [0.0] * count))],
        num_bytes=[1.0] * (2 * count),
        edges=edges,
        wires=[((k, k + 1, count + k), 0.5) for k in range(count - 1)],
    )
    found = solve_split(problem)
    assert found.stop is Stop.PROVED
    assert found.seconds == 11.0  # 10 nodes and a wire on each side
    check(problem, found)


def test_bytes_of_dangling_ends_count_where_memory_binds() -> None:
    # As above with 22 bytes a device for 20 nodes and ends of one byte each: joined they are
    # heavier than need be, and the answer still fits.
    count = 20
    edges = [(k, k + 1) for k in range(count - 1)] + [(k, count + k) for k in range(count)]
    problem = make_problem(
        kinds=[
            Kind(
                name="device",
                count=2,
                seconds=np.array([1.0] * count + [0.0] * count),
                memory_bytes=22.0,
            )
        ],
        num_bytes=[1.0] * (2 * count),
        edges=edges,
        wires=[((k, k + 1, count + k), 0.5) for k in range(count - 1)],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "MAX_DOWNSETS", 1000)
        found = solve_split(problem)
    assert found.stop is Stop.PROVED
    assert found.seconds == 10.5
    check(problem, found)


def test_a_node_that_fits_no_device_is_named() -> None:
    problem = make_problem(
        kinds=[Kind(name="device", count=2, seconds=np.ones(2), memory_bytes=3.0)],
        num_bytes=[1.0, 4.0],
        edges=[],
        wires=[],
    )
    found = solve_split(problem)
    assert found.stop is Stop.INFEASIBLE
    assert found.reason == (
        "node 1 fits no device: it holds 4 bytes, the most that a device has is 3"
    )


def test_no_devices_is_an_answer() -> None:
    found = solve_split(chain([1.0], [], 0))
    assert (found.stop, found.reason) == (Stop.INFEASIBLE, "there is no device")


def test_more_devices_than_nodes_leave_some_idle() -> None:
    found = solve_split(chain([1.0, 2.0], [0.5], 8))
    assert found.seconds == 2.5
    assert len(found.kind_of_stage) == 2


def test_no_time_gives_a_split_and_a_true_bound() -> None:
    rng = np.random.default_rng(1)
    problem = chain(rng.random(50).tolist(), rng.random(49).tolist(), 5)
    found = solve_split(problem, budget_seconds=1e-9)
    assert found.bound_seconds <= solve_split(problem).seconds <= found.seconds


@pytest.mark.parametrize("name", LISTED_MS)
def test_published_files_reach_the_listed_optimum(name: str, shared: Path) -> None:
    path = shared / "dnn-partitioning" / "throughput" / f"{name}.json"
    problem = read_throughput(path.read_bytes(), str(path), contiguous=True).problem
    found = solve_split(problem)
    assert found.stop is Stop.PROVED
    assert found.seconds * 1e3 == pytest.approx(LISTED_MS[name], rel=1e-5)


def document(**changes: object) -> bytes:
    node = {"supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 1.0}
    nodes = [
        {"id": 1, "isBackwardNode": 0, "colorClass": 5, **node},
        {"id": 2, "isBackwardNode": 0, "colorClass": 6, **node},
        {"id": 3, "isBackwardNode": 1, "colorClass": 6, **node},
        {"id": 4, "isBackwardNode": 1, "colorClass": 7, **node},
        {"id": 5, "isBackwardNode": 1, "colorClass": 5, **node},
    ]
    edges = [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in [(1, 2), (2, 3), (3, 4), (4, 5)]]
    fields = {"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 9.0, "nodes": nodes, "edges": edges}
    return json.dumps(fields | changes).encode()


def test_backward_ops_without_a_forward_op_stand_in_the_mirror_image() -> None:
    # Backward 3 -> 4 -> 5 mirrors to: class 5, class 7, class 6. In two stages: {1, 5, 4} {2, 3} or
    # {1, 5} {4, 2, 3}: three seconds, node 1's wire and the one backward wire.
    read = read_throughput(document(), "file", contiguous=True)
    assert read.node_of_op.tolist() == [0, 2, 2, 1, 0]
    found = solve_split(read.problem)
    assert found.seconds == pytest.approx((3 + 0.5 + 0.5) / 1e3)


def test_classes_on_a_cycle_share_a_stage() -> None:
    # Class 5 is nodes 1 and 3, with node 2 of class 6 between.
    node = {"supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 0}
    nodes = [{"id": k, "colorClass": colour, **node} for k, colour in ((1, 5), (2, 6), (3, 5))]
    edges = [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in [(1, 2), (2, 3)]]
    data = document(nodes=nodes, edges=edges)
    assert read_throughput(data, "file", contiguous=True).problem.num_nodes == 1
    assert read_throughput(data, "file", contiguous=False).problem.num_nodes == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"maxCPUs": -1}, "maxCPUs must be at least 0, got -1"),
        ({"maxFPGAs": None}, "maxFPGAs and maxSizePerFPGA must be given"),
        (
            {"edges": [{"sourceId": 3, "destId": 2, "cost": 0}]},
            "no forward node may read a backward node, node 2 reads 3",
        ),
        (
            {"edges": [{"sourceId": u, "destId": 3 - u, "cost": 0} for u in (1, 2)]},
            "must have no cycle",
        ),
    ],
)
def test_a_broken_file_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_throughput(document(**changes), "file", contiguous=True)


def test_nodes_out_of_order_are_refused() -> None:
    with pytest.raises(InputError, match="topological order, got edge 1 -> 0"):
        make_problem(
            kinds=[Kind(name="a", count=1, seconds=np.ones(2))],
            num_bytes=[0.0, 0.0],
            edges=[(1, 0)],
            wires=[],
        )


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=16))
def test_components_are_what_reaches_each_other(pairs: list[tuple[int, int]]) -> None:
    reach = np.eye(8, dtype=np.bool_)
    for u, v in pairs:
        reach[u, v] = True
    for k in range(8):
        reach |= np.outer(reach[:, k], reach[k])
    found = number_components(8, pairs)
    for u, v in itertools.product(range(8), repeat=2):
        assert (found[u] == found[v]) == (reach[u, v] and reach[v, u])
    assert all(found[u] <= found[v] for u, v in pairs)
    assert set(found) == set(range(max(found) + 1))


@pytest.mark.parametrize(
    ("options", "changes", "objective", "devices"),
    [
        (["--contiguous"], {}, 4.0, [0, 1]),
        # The backward op alone may be anywhere; two accelerators cannot do 5 ms in less than 3.
        ([], {}, 4.0, [0, 1]),
        (["--contiguous"], {"maxSizePerFPGA": 1.0}, None, []),
        ([], {"maxSizePerFPGA": 1.0}, None, []),
    ],
)
def test_the_benchmark_prints_a_line_a_file(
    options: list[str],
    changes: dict[str, object],
    objective: float | None,
    devices: list[int],
    tmp_path: Path,
) -> None:
    path = tmp_path / "five.json"
    path.write_bytes(document(**changes))
    command = [sys.executable, str(BENCHMARK), str(path), *options, "--json", "--budget", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    if objective is None:
        assert (record["stop"], record["objective"], record["split"]) == ("INFEASIBLE", None, [])
        assert "fits no device" in record["reason"] or "memory" in record["reason"]
    else:
        assert record["objective"] == pytest.approx(objective)
        assert record["stop"] == "PROVED"
        assert [each["id"] for each in record["split"]] == [1, 2, 3, 4, 5]
        assert sorted({each["device"] for each in record["split"]}) == devices
