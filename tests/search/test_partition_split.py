import itertools
import math
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from split_strategies import best_contiguous, problems

from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.stage import improve as improve_module
from meshwright.search.method.pipeline.stage import split as split_module
from meshwright.search.method.pipeline.stage.cycle import number_components
from meshwright.search.method.pipeline.stage.device_pool import find_prices, make_pools
from meshwright.search.method.pipeline.stage.improve import Improvement
from meshwright.search.method.pipeline.stage.lattice import find_lattice
from meshwright.search.method.pipeline.stage.problem import (
    DeviceKind,
    SplitProblem,
    device_loads,
    fits_memory,
    make_problem,
)
from meshwright.search.method.pipeline.stage.reduce import reduce_problem
from meshwright.search.method.pipeline.stage.split import Bounds, StageSplit, solve_split
from meshwright.search.method.pipeline.stage.window import BorderWindows
from solver.free import contiguous
from solver.free.contiguous import price_bounds


def chain(seconds: list[float], wires: list[float], devices: int) -> SplitProblem:
    """Nodes in a row, a wire between each and the next."""
    pairs = [(k, k + 1) for k in range(len(seconds) - 1)]
    return make_problem(
        kinds=[DeviceKind(name="device", count=devices, seconds=np.array(seconds))],
        num_bytes=[0.0] * len(seconds),
        edges=pairs,
        wires=list(zip(pairs, wires, strict=True)),
    )


def check(problem: SplitProblem, found: StageSplit) -> None:
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
        kinds=[DeviceKind(name="device", count=3, seconds=np.array([5.0, 5.0, 5.0]))],
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
        DeviceKind(
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
        kinds=[DeviceKind(name="device", count=2, seconds=np.ones(6), memory_bytes=4.0)],
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


@given(problems(with_flights=False), st.sampled_from([None, price_bounds]))
@settings(max_examples=60, deadline=None)
def test_too_many_downsets_still_give_a_split_and_a_bound(
    problem: SplitProblem, bounds: Bounds | None
) -> None:
    best = best_contiguous(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "MAX_DOWNSETS", 2)
        found = solve_split(problem, budget_seconds=0.05, bounds=bounds)
    if found.stop is Stop.INFEASIBLE:
        return  # along the orders that were tried nothing may fit
    assert found.bound_seconds <= best * (1 + 1e-9) <= found.seconds * (1 + 2e-9)
    assert (found.stop is Stop.PROVED) == (found.seconds <= found.bound_seconds * (1 + 1e-9))
    check(problem, found)


@given(problems(with_flights=False), st.integers(2, 9), st.sampled_from([2, 10_000]))
@settings(max_examples=60, deadline=None)
def test_wires_far_too_slow_to_be_cut_hide_no_other(
    problem: SplitProblem, digits: int, downsets: int
) -> None:
    # What is added and taken away again leaves an error of its own size.
    is_slow = np.arange(problem.num_wires) % 2 == 0
    seconds = np.where(is_slow, problem.wire_seconds * 10.0**digits / 3, problem.wire_seconds)
    problem = replace(problem, wire_seconds=seconds)
    best = best_contiguous(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "MAX_DOWNSETS", downsets)
        found = solve_split(problem, budget_seconds=0.05)
    if found.stop is not Stop.INFEASIBLE:
        assert found.bound_seconds <= best * (1 + 1e-9)
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
    assert find_lattice(problem, 0) is None


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
        kinds=[DeviceKind(name="device", count=4, seconds=np.array([1.0] * count + [0.0] * count))],
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
            DeviceKind(
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


def test_many_dangling_ends_with_bytes_are_proved_though_memory_binds() -> None:
    # 2^40 downsets with every end apart. Joined to the nodes that they hang on, the first 20 nodes
    # and ends take 50 bytes of 45, the others 30: five of the ends have to go to the second device.
    count = 40
    edges = [(k, k + 1) for k in range(count - 1)] + [(k, count + k) for k in range(count)]
    problem = make_problem(
        kinds=[
            DeviceKind(
                name="device",
                count=2,
                seconds=np.array([1.0] * count + [0.0] * count),
                memory_bytes=45.0,
            )
        ],
        num_bytes=[1.5] * 20 + [0.5] * 20 + [1.0] * count,
        edges=edges,
        wires=[((k, k + 1), 0.5) for k in range(count - 1)],
    )
    found = solve_split(problem)
    assert found.stop is Stop.PROVED
    assert found.seconds == 20.5
    check(problem, found)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_nodes_joined_without_their_bytes_equal_enumeration(problem: SplitProblem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_module, "_MANY_TIMES", 1)
        patch.setattr(split_module, "_MANY_DOWNSETS", 1)
        found = solve_split(problem)
    assert found.seconds == pytest.approx(best_contiguous(problem), rel=1e-9)
    assert found.bound_seconds == pytest.approx(found.seconds, rel=1e-9)
    if found.stop is not Stop.INFEASIBLE:
        check(problem, found)


def test_a_long_dangling_branch_joins_from_its_end_in_one_go() -> None:
    # Only the last node of the branch may join the one before it, and so on: with a round over all
    # nodes for each this took half a minute.
    count = 2000
    problem = make_problem(
        kinds=[DeviceKind(name="device", count=2, seconds=np.array([1.0, 1.0] + [1e-6] * count))],
        num_bytes=[0.0] * (count + 2),
        edges=[(0, 1), (0, 2)] + [(k, k + 1) for k in range(2, count + 1)],
        wires=[((0, 1), 0.5), ((0, 2), 0.1)] + [((k, k + 1), 0.1) for k in range(2, count + 1)],
    )
    assert reduce_problem(problem).problem.num_nodes == 2


def test_what_fits_only_the_slow_kind_bounds_the_load() -> None:
    # Node 1 is too large for the fast device; the fast device's second would be the bound else.
    kinds = [
        DeviceKind(name="fast", count=1, seconds=np.ones(2), memory_bytes=3.0),
        DeviceKind(name="slow", count=1, seconds=np.full(2, 9.0)),
    ]
    problem = make_problem(kinds=kinds, num_bytes=[1.0, 4.0], edges=[(0, 1)], wires=[])
    found = solve_split(problem, budget_seconds=1e-9)
    assert (found.seconds, found.bound_seconds, found.stop) == (9.0, 9.0, Stop.PROVED)


def wide_problem(count: int, devices: int, seed: int) -> SplitProblem:
    """A random graph with far too many downsets."""
    rng = np.random.default_rng(seed)
    edges = [(max(0, v - int(rng.integers(1, 40))), v) for v in range(1, count) for _ in range(2)]
    readers: dict[int, set[int]] = {}
    for u, v in edges:
        readers.setdefault(u, {u}).add(v)
    return make_problem(
        kinds=[DeviceKind(name="device", count=devices, seconds=rng.lognormal(size=count))],
        num_bytes=np.zeros(count),
        edges=edges,
        wires=[(pins, float(rng.lognormal(-2))) for pins in readers.values()],
    )


def test_a_wide_graph_is_split_well_without_its_downsets(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    for module in (
        split_module,
        improve_module,
        contiguous,
    ):  # a busy machine gets as much work done
        monkeypatch.setattr(module, "perf_counter", lambda: 0.1 * next(looks))
    problem = wide_problem(300, 6, seed=5)
    found = solve_split(problem, budget_seconds=3.0, bounds=price_bounds)
    check(problem, found)
    assert found.statistics["downsets"] == math.inf
    improvement = Improvement(problem, math.inf, seed=0)
    improvement.run(0.0, 0.0)
    assert improvement.best is not None
    # One order alone ends 9 % above; the bound knows no wires.
    assert found.seconds < 0.97 * improvement.best.seconds
    assert found.seconds < 1.06 * found.bound_seconds


def test_the_same_seed_gives_the_same_split_of_a_wide_graph() -> None:
    problem = wide_problem(120, 4, seed=6)
    found = []
    for _ in range(2):
        improvement = Improvement(problem, perf_counter() + 60, seed=3)
        improvement.run(1.0, 0.0)
        assert improvement.best is not None
        found.append(improvement.best.stage_of_node.tolist())
    assert found[0] == found[1]


@given(problems(max_nodes=7), st.integers(0, 2**20))
@settings(max_examples=60, deadline=None)
def test_improved_splits_stay_contiguous_and_fit(problem: SplitProblem, seed: int) -> None:
    improvement = Improvement(problem, perf_counter() + 60, seed)
    improvement.run(0.0, 0.0)
    first = improvement.best
    improvement.run(0.02, 0.0)
    best = improvement.best
    if best is None:
        return
    assert first is None or best.seconds <= first.seconds
    edges = zip(problem.edge_source, problem.edge_target, strict=True)
    assert all(best.stage_of_node[u] <= best.stage_of_node[v] for u, v in edges)
    assert fits_memory(problem, best.stage_of_node, best.kind_of_stage)
    loads = device_loads(problem, best.stage_of_node, best.kind_of_stage)
    assert loads.max(initial=0.0) == pytest.approx(best.seconds, rel=1e-12)


def test_ctrl_c_keeps_the_best_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    problem = wide_problem(60, 3, seed=7)
    monkeypatch.setattr(BorderWindows, "improve", interrupt)
    found = solve_split(problem, budget_seconds=60.0)
    assert found.stop is Stop.LIMIT
    assert found.is_interrupted
    check(problem, found)
    monkeypatch.setattr(BorderWindows, "try_order", interrupt)
    with pytest.raises(KeyboardInterrupt):  # there is no split yet
        solve_split(problem)


def test_more_devices_than_nodes_take_no_more_room() -> None:
    found = solve_split(chain([1.0, 2.0], [0.5], 10**9))
    assert (found.seconds, found.stop) == (2.5, Stop.PROVED)


def test_more_pools_than_tables_hold_are_refused() -> None:
    kinds = [DeviceKind(name=f"kind {k}", count=99, seconds=np.ones(200)) for k in range(3)]
    problem = make_problem(kinds=kinds, num_bytes=np.zeros(200), edges=[], wires=[])
    with pytest.raises(InputError, match="must be at most 20000000, got 297 devices and 200 nodes"):
        solve_split(problem)


def test_a_node_that_fits_no_device_is_named() -> None:
    problem = make_problem(
        kinds=[DeviceKind(name="device", count=2, seconds=np.ones(2), memory_bytes=3.0)],
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


def test_nodes_out_of_order_are_refused() -> None:
    with pytest.raises(InputError, match="topological order, got edge 1 -> 0"):
        make_problem(
            kinds=[DeviceKind(name="a", count=1, seconds=np.ones(2))],
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
