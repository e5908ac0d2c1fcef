import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.stage.anneal import Annealing
from meshwright.search.method.pipeline.stage.problem import (
    DeviceKind,
    SplitProblem,
    device_loads,
    fits_memory,
    make_problem,
)
from solver.free import bound as free_bound
from solver.free.bound import Bounding
from solver.free.curve import Fidelity, whole_loads
from solver.free.fraction import fractional_bound
from solver.free.line import line_up, make_line
from solver.free.reduce import reduce_problem
from solver.free.solve import FreeSplit, solve_free

ROUNDING = 1e-9


def brute_force(problem: SplitProblem, kinds: tuple[int, ...]) -> float:
    """The least largest load over all assignments; infinity where none fits."""
    best = math.inf
    for split in product(range(len(kinds)), repeat=problem.num_nodes):
        if fits_memory(problem, split, kinds):
            best = min(best, float(device_loads(problem, split, kinds).max()))
    return best


def devices_of(problem: SplitProblem) -> tuple[int, ...]:
    return tuple(k for k, kind in enumerate(problem.kinds) for _ in range(kind.count))


@st.composite
def problems(draw: st.DrawFn, most_nodes: int = 5, memory: bool = True) -> SplitProblem:
    """Up to three devices of two kinds, small whole numbers so that ties and zeros are common."""
    num_nodes = draw(st.integers(1, most_nodes))
    counts = draw(st.sampled_from([(1, 1), (2, 0), (2, 1), (3, 0), (1, 2)]))
    shares = draw(st.sampled_from([(1.0, 0.0), (1.0, 0.5), (1.0, 1.0)]))
    seconds = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 7.5, math.inf])
    sizes = draw(st.lists(st.integers(0, 3), min_size=num_nodes, max_size=num_nodes))
    kinds = [
        DeviceKind(
            name=name,
            count=count,
            seconds=np.array([draw(seconds) for _ in range(num_nodes)]),
            memory_bytes=draw(st.sampled_from([3.0, 6.0, math.inf])) if memory else math.inf,
            wire_share=share,
        )
        for name, count, share in zip(("fast", "slow"), counts, shares, strict=True)
    ]
    pins = st.sets(st.integers(0, num_nodes - 1), min_size=1, max_size=4)
    wires = st.tuples(pins, st.sampled_from([0.0, 0.25, 1.0, 2.0, 4.0]))
    return make_problem(
        kinds=kinds, num_bytes=sizes, edges=(), wires=draw(st.lists(wires, max_size=6))
    )


def check(problem: SplitProblem, found: FreeSplit) -> None:
    if found.stop is Stop.INFEASIBLE:
        return
    assert fits_memory(problem, found.device_of_node, found.kind_of_device)
    loads = device_loads(problem, found.device_of_node, found.kind_of_device)
    assert found.seconds == loads.max()
    assert found.bound_seconds <= found.seconds


@settings(max_examples=60, deadline=None)
@given(problems())
def test_small_splits_are_proved_and_equal_brute_force(problem: SplitProblem) -> None:
    found = solve_free(problem, budget_seconds=1.0)
    check(problem, found)
    best = brute_force(problem, devices_of(problem))
    assert found.seconds == pytest.approx(best, rel=ROUNDING)
    assert found.stop is (Stop.PROVED if best < math.inf else Stop.INFEASIBLE)


@settings(max_examples=60, deadline=None)
@given(problems(memory=False), st.sampled_from([1, 2, 512]), st.sampled_from([1, 4_000_000]))
def test_the_bound_by_prices_is_never_above_the_best_split(
    problem: SplitProblem, most_states: int, turn_cells: int
) -> None:
    # One or two states leave wires out, one turn and cell is raised to the fewest cells.
    kinds = devices_of(problem)
    best = brute_force(problem, kinds)
    if not 0 < best < math.inf:
        return
    split = next(
        np.array(each, dtype=np.int32)
        for each in product(range(len(kinds)), repeat=problem.num_nodes)
        if device_loads(problem, each, kinds).max() == best
    )
    assert fractional_bound(problem) <= best
    fidelity = Fidelity(turn_cells=turn_cells, most_states=most_states, least_step=1e-4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free_bound, "_FIDELITIES", (fidelity,))
        for seconds in (best, 3 * best):
            bounding = Bounding(problem, line_up(problem), seconds)
            bounding.run(split, kinds, 100_000)
            assert bounding.seconds <= best * (1 + ROUNDING)


@settings(max_examples=80, deadline=None)
@given(problems(most_nodes=5))
def test_joining_nodes_keeps_the_best_value(problem: SplitProblem) -> None:
    kinds = devices_of(problem)
    reduced = reduce_problem(problem)
    best = brute_force(problem, kinds)
    assert brute_force(reduced.problem, kinds) == pytest.approx(best, rel=ROUNDING)


@settings(max_examples=60, deadline=None)
@given(problems(most_nodes=5), st.integers(0, 2**20))
def test_walks_never_rise_above_their_start(problem: SplitProblem, seed: int) -> None:
    kinds = devices_of(problem)
    starts = [
        each
        for each in product(range(len(kinds)), repeat=problem.num_nodes)
        if fits_memory(problem, each, kinds)
        and np.isfinite(device_loads(problem, each, kinds)).all()
    ]
    if not starts:
        return
    start = starts[seed % len(starts)]
    found = solve_free(problem, start, seed=seed, budget_seconds=0.01)
    check(problem, found)
    assert found.seconds <= device_loads(problem, start, kinds).max()


def chain(
    num_nodes: int, devices: int, wire: float, memory_bytes: float = math.inf
) -> SplitProblem:
    fast = DeviceKind(
        name="fast", count=devices, seconds=np.ones(num_nodes), memory_bytes=memory_bytes
    )
    return make_problem(
        kinds=[fast],
        num_bytes=np.ones(num_nodes),
        edges=[(i, i + 1) for i in range(num_nodes - 1)],
        wires=[((i, i + 1), wire) for i in range(num_nodes - 1)],
    )


def test_a_chain_of_twelve_on_three_devices_is_cut_twice() -> None:
    # Four nodes each; the middle device pays for both of its ends: 4 + 2 * 0.1. With five nodes on
    # an end device and two wires in the middle, 5.1 is worse; 3 in the middle makes an end of 5.
    found = solve_free(chain(12, 3, 0.1), budget_seconds=5.0)
    assert found.stop is Stop.PROVED
    assert found.seconds == pytest.approx(4.2)


def test_a_free_split_beats_every_contiguous_one_on_heavy_ends() -> None:
    # Contiguous splits cut the chain of 3, 3, 1, 1 seconds once: 3 and 5, or 6 and 2.
    problem = make_problem(
        kinds=[DeviceKind(name="fast", count=2, seconds=np.array([3.0, 3.0, 1.0, 1.0]))],
        num_bytes=np.zeros(4),
        edges=[(0, 1), (1, 2), (2, 3)],
        wires=[((0, 1), 1e-3), ((1, 2), 1e-3), ((2, 3), 1e-3)],
    )
    found = solve_free(problem, [0, 1, 1, 1], budget_seconds=2.0)
    assert found.stop is Stop.PROVED
    # {0, 2} and {1, 3} take 4 and cut three wires; {0, 3} and {1, 2} cut two of them.
    assert found.seconds == pytest.approx(4.002)


def test_a_slow_kind_takes_its_fraction_of_the_work() -> None:
    # Ten nodes of 1 second on two fast devices or 10 on a CPU: L + L + L / 10 = 10.
    kinds = [
        DeviceKind(name="fast", count=2, seconds=np.ones(10)),
        DeviceKind(name="cpu", count=1, seconds=np.full(10, 10.0), wire_share=0.0),
    ]
    problem = make_problem(kinds=kinds, num_bytes=np.zeros(10), edges=(), wires=())
    assert fractional_bound(problem) == pytest.approx(10 / 2.1)


def test_a_cpu_pays_nothing_for_wires_but_its_partner_does() -> None:
    problem = make_problem(
        kinds=[
            DeviceKind(name="fast", count=1, seconds=np.array([4.0, 4.0])),
            DeviceKind(name="cpu", count=1, seconds=np.array([9.0, 5.5]), wire_share=0.0),
        ],
        num_bytes=np.zeros(2),
        edges=[(0, 1)],
        wires=[((0, 1), 1.0)],
    )
    # Node 1 on the CPU: 5.5 there, 4 + 1 on the accelerator.
    found = solve_free(problem, [0, 0], budget_seconds=1.0)
    assert (found.seconds, found.stop) == (5.5, Stop.PROVED)
    assert found.device_of_node.tolist() == [0, 1]


def test_the_same_seed_gives_the_same_split() -> None:
    rng = np.random.default_rng(0)
    problem = make_problem(
        kinds=[DeviceKind(name="fast", count=3, seconds=rng.uniform(1, 2, 40))],
        num_bytes=np.zeros(40),
        edges=(),
        wires=[(rng.choice(40, 3, replace=False).tolist(), 0.1) for _ in range(30)],
    )
    first, second = (solve_free(problem, seed=7, budget_seconds=0.5) for _ in range(2))
    assert first.device_of_node.tolist() == second.device_of_node.tolist()
    assert first.bound_seconds == second.bound_seconds


def test_wires_are_left_out_where_states_are_too_many() -> None:
    # Every node of the first half is wired to every one of the second: 36 wires are open halfway.
    problem = make_problem(
        kinds=[DeviceKind(name="fast", count=2, seconds=np.ones(12))],
        num_bytes=np.zeros(12),
        edges=(),
        wires=[((u, v), 1.0) for u in range(6) for v in range(6, 12)],
    )
    line = make_line(problem, range(12), np.ones(36, dtype=np.int64), most_states=16)
    assert line.num_states.max() <= 16
    assert line.num_left_out > 0


@settings(max_examples=40, deadline=None)
@given(
    problems(most_nodes=5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5)
)
def test_walks_in_order_keep_stages_in_order(
    problem: SplitProblem, pairs: list[tuple[int, int]]
) -> None:
    edges = [(u, v) for u, v in pairs if u < v < problem.num_nodes]
    source, target = (np.array([e[k] for e in edges], dtype=np.int32) for k in (0, 1))
    problem = replace(problem, edge_source=source, edge_target=target)
    kinds = devices_of(problem)
    device = next(
        (d for d, kind in enumerate(kinds) if np.isfinite(problem.kinds[kind].seconds).all()), None
    )
    if device is None:
        return
    start = np.full(problem.num_nodes, device, dtype=np.int32)
    line = range(problem.num_nodes)
    walks = Annealing(problem, kinds, start, line, seed=1, in_order=True)
    walks.run(2000)
    assert (walks.best[source] <= walks.best[target]).all()


def test_seconds_far_beyond_any_limit_stay_whole_numbers() -> None:
    # 1e30 units are no 64-bit integer; they only have to be above every limit.
    loads = whole_loads(np.array([0.0, 2.5, 1e30, math.inf]), 1.0)
    assert loads.tolist() == [0, 2, 2**50, -1]


def test_a_wire_that_nobody_can_pay_and_a_node_that_nobody_waits_for_are_proved() -> None:
    # Three pins, so the wire is not joined away: all on one device, 3 seconds; CPUs take 1e12.
    kinds = [
        DeviceKind(name="fast", count=2, seconds=np.ones(3)),
        DeviceKind(name="cpu", count=1, seconds=np.full(3, 1e12), wire_share=0.0),
    ]
    problem = make_problem(kinds=kinds, num_bytes=np.zeros(3), edges=(), wires=[((0, 1, 2), 1e15)])
    found = solve_free(problem, budget_seconds=1.0)
    assert (found.seconds, found.stop) == (3.0, Stop.PROVED)


def test_ctrl_c_keeps_the_best_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bounding, "run", interrupt)
    found = solve_free(chain(12, 3, 0.1), budget_seconds=60.0)
    assert found.stop is Stop.LIMIT
    assert found.is_interrupted
    check(chain(12, 3, 0.1), found)


def test_a_start_that_breaks_memory_is_refused() -> None:
    with pytest.raises(InputError, match="the start must fit every device's memory"):
        solve_free(chain(4, 2, 0.1, memory_bytes=2.0), [0, 0, 0, 0])


def test_a_start_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match="one of 2 devices for each of 4 nodes, got 3 entries"):
        solve_free(chain(4, 2, 0.1), [0, 0, 0])


def test_a_start_on_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="kind fast has 2 devices, the start uses 3"):
        solve_free(chain(4, 2, 0.1), [0, 1, 2, 2], kind_of_device=[0, 0, 0])


def test_replicated_stages_are_refused() -> None:
    kind = DeviceKind(name="pairs", count=4, seconds=np.ones(2), width=2)
    problem = make_problem(kinds=[kind], num_bytes=np.zeros(2), edges=(), wires=())
    with pytest.raises(InputError, match="kind pairs must have width 1"):
        solve_free(problem)


def test_too_little_memory_in_all_is_an_answer() -> None:
    found = solve_free(chain(4, 2, 0.1, memory_bytes=1.0))
    assert found.stop is Stop.INFEASIBLE
    assert found.reason == "memory: all nodes together hold 4 bytes, all devices have 2"


def test_a_node_that_runs_nowhere_is_named() -> None:
    kind = DeviceKind(name="fast", count=2, seconds=np.array([1.0, math.inf]))
    problem = make_problem(kinds=[kind], num_bytes=np.zeros(2), edges=(), wires=())
    found = solve_free(problem)
    assert (found.stop, found.reason) == (
        Stop.INFEASIBLE,
        "node 1: no device can run and hold it",
    )


def test_microbatches_in_flight_belong_to_device_numbers() -> None:
    # A node takes 2 * 2 of device 0's 4 bytes, and 1 * 2 of device 1's.
    problem = make_problem(
        kinds=[DeviceKind(name="fast", count=2, seconds=np.ones(3), memory_bytes=4.0)],
        num_bytes=np.zeros(3),
        saved_bytes=[2.0, 2.0, 2.0],
        in_flight=[2, 1],
        edges=(),
        wires=(),
    )
    found = solve_free(problem, [0, 1, 1], budget_seconds=1.0)
    assert (found.seconds, found.stop) == (2.0, Stop.PROVED)
    assert (found.device_of_node == 0).sum() == 1


def test_no_nodes_take_no_time() -> None:
    kind = DeviceKind(name="fast", count=2, seconds=np.zeros(0))
    problem = make_problem(kinds=[kind], num_bytes=(), edges=(), wires=())
    assert (solve_free(problem).seconds, solve_free(problem).stop) == (0.0, Stop.PROVED)


def test_a_walk_finds_memory_for_a_start_that_does_not_fit() -> None:
    problem = chain(6, 3, 0.1, memory_bytes=2.0)
    walks = Annealing(problem, (0, 0, 0), [0] * 6, list(range(6)), 0)
    assert not walks.fits
    assert walks.run(2000)
    assert walks.fits
    assert fits_memory(problem, walks.best, (0, 0, 0))
