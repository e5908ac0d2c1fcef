"""The best rates for a graph of arcs: by hand, on a grid, and against a conic solver."""

from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest
from bandwidth_strategies import arc_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.array import Floats
from meshwright.search.method.bandwidth.rate.master import certify
from meshwright.search.method.bandwidth.rate.path import PairRates, fill_rows, optimise_paths
from meshwright.search.method.bandwidth.rate.precedence import (
    ARC,
    Precedence,
    Walker,
    make_precedence,
)
from meshwright.search.method.bandwidth.rate.room import RateRoom


def graph_of(num_pairs: int, *arcs: tuple[int, int, int, float, float]) -> Precedence:
    """Arcs as source, target, pair (-1: none), fixed seconds and bytes."""
    rows = np.zeros(len(arcs), ARC)
    for k, name in enumerate(("source", "target", "pair", "fixed", "amount")):
        rows[name] = [arc[k] for arc in arcs]
    return make_precedence(1 + max(arc[1] for arc in arcs), num_pairs, rows)


def one_row(num_pairs: int, rate: float = 1.0) -> RateRoom:
    """All pairs leave one host."""
    return RateRoom(
        pair_of_way=np.arange(num_pairs),
        rows=np.ones((1, num_pairs)),
        bytes_per_second=np.array([rate]),
    )


def check(found: PairRates, precedence: Precedence, room: RateRoom, gap: float) -> None:
    """What every answer says of itself."""
    assert found.gap <= gap
    used = precedence.used()
    rates = found.bytes_per_second
    assert (rates[used] > 0).all()
    if len(room.pair_of_way) == room.num_pairs:
        assert (room.rows @ rates <= room.bytes_per_second * (1 + 1e-9)).all()
    walked = Walker(precedence).walk(np.where(rates > 0, rates, 1.0))[0]
    assert walked == pytest.approx(found.seconds, rel=1e-12)
    proven = certify(found.paths, room, found.weights, found.prices)
    assert proven == pytest.approx(found.bound_seconds, rel=1e-9)


def test_rates_of_two_transfers_in_a_row_are_as_the_roots_of_their_sizes() -> None:
    # t1/b + t2/(1 - b) is least at b : 1 - b = sqrt(t1) : sqrt(t2), and then (sqrt t1 + sqrt t2)^2.
    precedence = graph_of(2, (0, 1, 0, 0.0, 1.0), (1, 2, 1, 0.0, 4.0))
    found = optimise_paths(precedence, one_row(2), gap=1e-7)
    assert found.seconds == pytest.approx(9.0, rel=1e-6)
    assert found.bytes_per_second == pytest.approx([1 / 3, 2 / 3], rel=1e-2)
    check(found, precedence, one_row(2), 1e-6)


def test_rates_of_transfers_side_by_side_are_as_their_sizes() -> None:
    # max(t1/b, t2/(1 - b)): both end at t1 + t2.
    precedence = graph_of(2, (0, 1, 0, 0.0, 1.0), (0, 2, 1, 0.0, 3.0))
    found = optimise_paths(precedence, one_row(2), gap=1e-6)
    assert found.seconds == pytest.approx(4.0, rel=1e-5)
    assert found.bytes_per_second == pytest.approx([0.25, 0.75], rel=1e-3)


def test_a_transfer_with_time_to_spare_gets_no_more_than_it_needs() -> None:
    # The second has 10 s more: 1/b = 2/(1 - b) + ... only the first and the 10 s count.
    precedence = graph_of(2, (0, 1, 0, 10.0, 1.0), (0, 2, 1, 0.0, 2.0))
    found = optimise_paths(precedence, one_row(2), gap=1e-5)
    # 10 + 1/b = 2/(1 - b): b^2 10 + b (1 + 2 - 10) - 1 = 0.
    b = (7 + sqrt(49 + 40)) / 20
    assert found.seconds == pytest.approx(10 + 1 / b, rel=1e-4)


def test_each_edge_of_a_ring_has_the_whole_exit_and_entry() -> None:
    # Of four hosts each sends to the next only: the rate is all of an exit.
    pairs = [(k, (k + 1) % 4) for k in range(4)]
    rows = np.zeros((8, 4))
    for k, (source, target) in enumerate(pairs):
        rows[source, k] = rows[4 + target, k] = 1.0
    room = RateRoom(pair_of_way=np.arange(4), rows=rows, bytes_per_second=np.full(8, 2.0))
    precedence = graph_of(4, *((0, 1, k, 0.5, 6.0) for k in range(4)))
    found = optimise_paths(precedence, room)
    assert found.seconds == pytest.approx(3.5, rel=1e-3)
    assert found.bytes_per_second == pytest.approx([2.0] * 4, rel=1e-9)


def test_what_no_rate_helps_costs_its_least_and_leaves_the_rate_to_others() -> None:
    # Of the first at least 4 s go by anyway, so that it needs 1/4; the second gets 3/4.
    arcs = np.zeros(2, ARC)
    arcs["target"], arcs["pair"], arcs["amount"], arcs["least"] = (1, 2), (0, 1), (1, 3), (4, 0)
    found = optimise_paths(make_precedence(3, 2, arcs), one_row(2), gap=1e-5)
    assert found.seconds == pytest.approx(4.0, rel=1e-4)


def test_a_pair_with_two_ways_has_the_sum_of_both() -> None:
    # Ways of 1 and 3 for the first pair; the second shares the wide one: 1 + x and 3 - x.
    room = RateRoom(
        pair_of_way=np.array([0, 0, 1]),
        rows=np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]),
        bytes_per_second=np.array([1.0, 3.0]),
    )
    precedence = graph_of(2, (0, 1, 0, 0.0, 4.0), (0, 2, 1, 0.0, 4.0))
    found = optimise_paths(precedence, room, gap=1e-6)
    assert found.seconds == pytest.approx(2.0, rel=1e-5)
    check(found, precedence, room, 1e-6)


def test_without_traffic_nothing_gets_a_rate_and_the_time_is_proven() -> None:
    precedence = graph_of(2, (0, 1, -1, 3.0, 0.0), (1, 2, -1, 4.0, 0.0))
    found = optimise_paths(precedence, one_row(2))
    assert found.seconds == found.bound_seconds == 7.0
    assert not found.bytes_per_second.any()


def test_what_is_left_of_rows_is_handed_out_in_proportion() -> None:
    # Pairs 0 and 1 share a row of 3, pair 2 has one of 5 to itself.
    room = RateRoom(
        pair_of_way=np.arange(3),
        rows=np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        bytes_per_second=np.array([3.0, 5.0]),
    )
    assert fill_rows(room, np.array([0.5, 1.0, 1.0])) == pytest.approx([1.0, 2.0, 5.0])


@given(arc_graphs())
@settings(max_examples=60, deadline=None)
def test_the_gap_is_proven_on_random_graphs(case: tuple[Precedence, RateRoom]) -> None:
    precedence, room = case
    found = optimise_paths(precedence, room, gap=1e-4)
    check(found, precedence, room, 1e-3)
    again = optimise_paths(precedence, room, gap=1e-4)
    assert (again.bytes_per_second == found.bytes_per_second).all()
    warm = optimise_paths(precedence, room, gap=1e-4, start=found.bytes_per_second)
    check(warm, precedence, room, 1e-3)
    assert warm.seconds == pytest.approx(found.seconds, rel=1e-3)


@given(arc_graphs(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_no_rates_beat_the_bound_and_no_path_is_longer_than_the_step(
    case: tuple[Precedence, RateRoom], seed: int
) -> None:
    precedence, room = case
    found = optimise_paths(precedence, room)
    generator = np.random.default_rng(seed)
    for _ in range(20):
        rates = generator.exponential(size=room.num_pairs) ** 2 + 1e-3
        rates /= (room.rows @ rates / room.bytes_per_second).max()
        seconds, _ = Walker(precedence).walk(rates)
        assert seconds >= found.bound_seconds * (1 - 1e-9)
        assert (found.paths.seconds(rates) <= seconds * (1 + 1e-9)).all()


def grid_best(precedence: Precedence, room: RateRoom, points: int) -> float:
    """The best of all rates in so many steps a row, for hosts that send to two others at most."""
    used = precedence.used()
    best, walker = np.inf, Walker(precedence)
    shares = np.linspace(0.0, 1.0, points + 1)[1:-1]
    for parts in product(shares, repeat=max(len(used) - 1, 0)):
        rates = np.full(room.num_pairs, 1e-9)
        rates[used] = (*parts, 1.0) if len(used) > 1 else (1.0,)
        rates /= (room.rows @ rates / room.bytes_per_second).max()
        for _ in range(3):  # those whose rows are not full grow
            filled = fill_rows(room, rates)
            best, rates = min(best, walker.walk(filled)[0]), filled
    return best


@given(arc_graphs(max_hosts=2))
@settings(max_examples=40, deadline=None)
def test_a_grid_finds_nothing_better_by_more_than_a_hundredth(
    case: tuple[Precedence, RateRoom],
) -> None:
    precedence, room = case
    if not len(precedence.used()):
        return
    found = optimise_paths(precedence, room)
    best = grid_best(precedence, room, 200)
    assert found.bound_seconds <= best * (1 + 1e-9)
    assert found.seconds <= best * 1.01


def picked(precedence: Precedence) -> Precedence:
    """With the pairs in use only: what nothing is sent on has no best rate."""
    number = {pair: k for k, pair in enumerate(precedence.used().tolist())}
    arcs = precedence.arcs.copy()
    arcs["pair"] = [number.get(pair, -1) for pair in arcs["pair"].tolist()]
    return make_precedence(len(precedence.first_in) - 1, len(number), arcs)


def conic_seconds(precedence: Precedence, room: RateRoom) -> float:
    """The whole programme, an inequality an arc, by Clarabel. All pairs have traffic."""
    clarabel = pytest.importorskip("clarabel")
    sparse = pytest.importorskip("scipy.sparse")
    precedence, room = picked(precedence), room.picked(precedence.used())
    arcs, count = precedence.arcs, len(precedence.first_in) - 1
    num_ways = len(room.pair_of_way)
    # Variables: ends of nodes, the step, rates of ways, and for each pair u >= 1/b.
    step, way, slow = count, count + 1, count + 1 + num_ways
    size = slow + room.num_pairs
    unit = float(room.bytes_per_second.max())
    rows: list[dict[int, float]] = []
    limits: list[float] = []

    def at_most(row: dict[int, float], limit: float) -> None:
        rows.append(row)
        limits.append(limit)

    for arc in arcs:
        ends = {int(arc["source"]): 1.0, int(arc["target"]): -1.0}
        fixed = float(arc["fixed"])
        if arc["pair"] >= 0:
            at_most({**ends, slow + int(arc["pair"]): float(arc["amount"]) / unit}, -fixed)
            fixed += float(arc["least"])
        at_most(ends, -fixed)
    for node in range(count):
        at_most({node: 1.0, step: -1.0}, 0.0)
    for own, rate in zip(room.rows, room.bytes_per_second, strict=True):
        at_most({way + k: float(part) for k, part in enumerate(own) if part}, rate / unit)
    for k in range(num_ways):
        at_most({way + k: -1.0}, 0.0)
    at_most({0: 1.0}, 0.0)
    at_most({0: -1.0}, 0.0)
    num_linear = len(rows)
    # u b >= 1: |(2, u - b)| <= u + b.
    for pair in range(room.num_pairs):
        own_ways = {way + k: 1.0 for k in np.flatnonzero(room.pair_of_way == pair).tolist()}
        at_most({slow + pair: -1.0, **dict.fromkeys(own_ways, -1.0)}, 0.0)
        at_most({}, 2.0)
        at_most({slow + pair: -1.0, **own_ways}, 0.0)
    entries = [(k, column, value) for k, row in enumerate(rows) for column, value in row.items()]
    matrix = sparse.csc_matrix(
        ([e[2] for e in entries], ([e[0] for e in entries], [e[1] for e in entries])),
        shape=(len(rows), size),
    )
    goal = np.zeros(size)
    goal[step] = 1.0
    cones: list[Any] = [clarabel.NonnegativeConeT(num_linear)]
    cones += [clarabel.SecondOrderConeT(3) for _ in range(room.num_pairs)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    nothing = sparse.csc_matrix((size, size))
    solver = clarabel.DefaultSolver(nothing, goal, matrix, np.array(limits), cones, settings)
    return float(solver.solve().obj_val)


@given(arc_graphs())
@settings(max_examples=30, deadline=None)
def test_a_conic_solver_agrees(case: tuple[Precedence, RateRoom]) -> None:
    precedence, room = case
    if not len(precedence.used()):
        return
    found = optimise_paths(precedence, room, gap=2e-5)
    exact = conic_seconds(precedence, room)
    assert found.seconds == pytest.approx(exact, rel=1e-4, abs=1e-6)
    assert found.bound_seconds <= exact * (1 + 1e-6) + 1e-6


def ways_room(generator: np.random.Generator, num_pairs: int) -> RateRoom:
    """Two ways a pair over random links."""
    rows = (generator.random((6, 2 * num_pairs)) < 0.4).astype(np.float64)
    rows[generator.integers(6, size=2 * num_pairs), np.arange(2 * num_pairs)] = 1.0
    return RateRoom(
        pair_of_way=np.repeat(np.arange(num_pairs), 2),
        rows=rows[rows.any(axis=1)],
        bytes_per_second=(generator.random(6) * 4e6 + 1e6)[rows.any(axis=1)],
    )


@given(arc_graphs(), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_conic_solver_agrees_where_pairs_have_two_ways(
    case: tuple[Precedence, RateRoom], seed: int
) -> None:
    precedence = case[0]
    if not len(precedence.used()):
        return
    room = ways_room(np.random.default_rng(seed), precedence.num_pairs)
    found = optimise_paths(precedence, room, gap=2e-5)
    exact = conic_seconds(precedence, room)
    assert found.seconds == pytest.approx(exact, rel=1e-4, abs=1e-6)
    assert found.bound_seconds <= exact * (1 + 1e-6) + 1e-6


def many_hosts(num_hosts: int) -> tuple[Precedence, RateRoom, Floats]:
    """A ring of all hosts, then each sends to the opposite one."""
    pairs = [(k, (k + 1) % num_hosts) for k in range(num_hosts)]
    pairs += [(k, (k + num_hosts // 2) % num_hosts) for k in range(num_hosts)]
    rows = np.zeros((2 * num_hosts, len(pairs)))
    for k, (source, target) in enumerate(pairs):
        rows[source, k] = rows[num_hosts + target, k] = 1.0
    arcs = [(0, 1, k, 0.0, 1.0) for k in range(num_hosts)]
    arcs += [(1, 2, num_hosts + k, 0.0, 4.0) for k in range(num_hosts)]
    room = RateRoom(
        pair_of_way=np.arange(len(pairs)), rows=rows, bytes_per_second=np.ones(len(rows))
    )
    return graph_of(len(pairs), *arcs), room, np.repeat((1 / 3, 2 / 3), num_hosts)


def test_a_dozen_hosts_in_step_are_solved_to_a_thousandth() -> None:
    # Every host alike: as of two transfers in a row, though 144 paths are equally long.
    precedence, room, rates = many_hosts(12)
    found = optimise_paths(precedence, room, gap=1e-3)
    assert found.gap <= 1e-3
    assert found.seconds == pytest.approx(9.0, rel=2e-3)
    assert found.bytes_per_second == pytest.approx(rates, rel=0.1)
