"""The best rates for a handful of paths: a convex programme, by a barrier and Newton's method.

Least T such that every path takes at most T and no row is more than full. On the barrier's central
path the weight of a path is the barrier parameter over its slack, and the price of a row likewise:
they prove how far from the best the point is (`meshwright.search.method.bandwidth.rate.master`). A
Newton step solves a system as large as paths and rows, however many pairs there are: all else is
diagonal, or a rank more for each pair that has several ways (Boyd and Vandenberghe, Convex
Optimization, 2004, sections 11.3 and appendix C.4). Knows nothing of graphs.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats
from meshwright.search.method.bandwidth.rate.precedence import Paths
from meshwright.search.method.bandwidth.rate.room import RateRoom

_MATRIX, _VECTOR = 200_000, 8_000
"""Multiplications that are done in one thread: some 2^18, and 2^13 for a vector."""
_ROWS = 96
"""How many rows a system has at most that is solved in one thread: its square is below 10,000.
From some size on OpenBLAS takes all cores and waits for them, also where others use them: on two
busy cores a system of 150 rows took 136 ms in place of 0.4 (2026-11-15)."""

_MAX_STEPS = 40
"""Newton steps for one centre; a dozen is usual."""
_RIDGE = 1e-13
"""Relative: keeps the system from being singular where rounding swallows its identity."""
_CLOSE = 0.01
"""Half the square of the Newton decrement at which a centre is close enough."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """Rates within the rows, and a time that all paths are below."""

    ways: Floats
    """The rate on each way; rows are full at their own rate, time and rates are scaled to one."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Slack:
    """What is left at a point, and the point's rates."""

    rates: Floats
    paths: Floats
    rows: Floats


class Master:
    """One set of paths and rows."""

    def __init__(self, paths: Paths, room: RateRoom) -> None:
        self._constants, self._amounts = paths.constants, paths.amounts
        self._rows, self._limits = room.rows, room.bytes_per_second
        self._pair_of, self._start = room.pair_of_way, room.way_start
        self._is_single = len(self._pair_of) == len(self._start)

    def longest(self, ways: Floats) -> float:
        """Of the paths, at these rates."""
        return float((self._constants + product(self._amounts, 1.0 / self._sums(ways))).max())

    def centre(self, point: Point, barrier: float) -> Point:
        """From a point inside to (near) the one that balances time against nearness to limits."""
        slack = self._slack(point)
        value = self._value(point, slack, barrier)
        for _ in range(_MAX_STEPS):
            step, rise, decrement = self._newton(point, slack, barrier)
            if decrement < _CLOSE:
                break
            size = 1.0
            while size > 1e-12:
                tried = Point(ways=point.ways + size * step, seconds=point.seconds + size * rise)
                left = self._slack(tried)
                new = self._value(tried, left, barrier)
                if new < value - 0.1 * size * decrement:
                    point, slack, value = tried, left, new
                    break
                size *= 0.5
            else:
                break
        return point

    def duals(self, point: Point, barrier: float) -> tuple[Floats, Floats]:
        """The weights of paths and prices of rows that a point near a centre stands for.

        One over each slack at the centre, as far as the next Newton step can see it. On the central
        path the weights add up to one over the barrier parameter.
        """
        slack = self._slack(point)
        step, rise, _ = self._newton(point, slack, barrier)
        faster = product(self._amounts / slack.rates**2, self._sums(step))
        weights = (1.0 - (rise + faster) / slack.paths) / slack.paths
        prices = (1.0 + product(self._rows, step) / slack.rows) / slack.rows
        weights, prices = np.maximum(weights, 0.0), np.maximum(prices, 0.0)
        if not weights.sum() > 0:
            weights, prices = 1.0 / slack.paths, 1.0 / slack.rows
        total = float(weights.sum())
        return weights / total, prices / total

    def _sums(self, ways: Floats) -> Floats:
        return ways if self._is_single else np.add.reduceat(ways, self._start)

    def _slack(self, point: Point) -> _Slack:
        rates = self._sums(point.ways)
        if not point.ways.min() > 0:
            return _Slack(rates=rates, paths=np.full(1, -1.0), rows=self._limits)
        return _Slack(
            rates=rates,
            paths=point.seconds - self._constants - product(self._amounts, 1.0 / rates),
            rows=self._limits - product(self._rows, point.ways),
        )

    def _value(self, point: Point, slack: _Slack, barrier: float) -> float:
        if not (slack.paths.min() > 0 and slack.rows.min() > 0):
            return np.inf
        logs = np.log(slack.paths).sum() + np.log(slack.rows).sum() + np.log(point.ways).sum()
        return float(point.seconds / barrier - logs)

    def _newton(self, point: Point, slack: _Slack, barrier: float) -> tuple[Floats, float, float]:
        """The step of ways, that of seconds, and half the square of the decrement."""
        path_force, row_force = 1.0 / slack.paths, 1.0 / slack.rows
        steep = self._amounts / slack.rates**2
        bend = 2.0 * product(steep.T, path_force) / slack.rates
        if not self._is_single:
            steep = steep[:, self._pair_of]
        # Each row times its force: then what follows is the identity and more.
        normals = np.concatenate((path_force[:, None] * steep, row_force[:, None] * self._rows))
        signs = np.concatenate((-np.ones(len(path_force)), np.ones(len(row_force))))
        # Minus the gradient: what pushes the ways up, and the seconds.
        push = 1.0 / point.ways - product(normals.T, signs)
        rise = path_force.sum() - 1.0 / barrier
        spread = self._soften(np.column_stack((normals.T, push)), point.ways, bend)
        system = product(normals, spread[:, :-1])
        diagonal = np.diag_indices_from(system)
        system[diagonal] = system[diagonal] * (1.0 + _RIDGE) + 1.0
        ahead = np.concatenate((path_force, np.zeros(len(row_force))))
        known = np.column_stack((product(normals, spread[:, -1]), ahead))
        solved = solve(system, known)
        shift = (rise - ahead @ solved[:, 0]) / (ahead @ solved[:, 1])
        reaction = solved[:, 0] + shift * solved[:, 1]
        step = spread[:, -1] - product(spread[:, :-1], reaction)
        return step, float(shift), 0.5 * float(push @ step + rise * shift)

    def _soften(self, columns: Floats, ways: Floats, bend: Floats) -> Floats:
        """The inverse of the Hessian without paths and rows: diagonal, and a rank more a pair."""
        if self._is_single:
            return np.asarray(columns / (1.0 / ways**2 + bend)[:, None])
        square = (ways**2)[:, None]
        spread = square * columns
        sums = np.add.reduceat(spread, self._start, axis=0)
        weight = np.add.reduceat(ways**2, self._start)
        part = (bend / (1.0 + bend * weight))[:, None] * sums
        return np.asarray(spread - square * part[self._pair_of])


def certify(paths: Paths, room: RateRoom, weights: Floats, prices: Floats) -> float:
    """The seconds that no rates go below, by weights of paths and prices of rows.

    Holds for any weights and prices that are not negative; good ones come from an optimum. Prices
    are in seconds for each byte a second. The step takes at least the weighted mean of the paths,
    sum of c + w/b over pairs, where c is the mean constant and w the pair's mean amount. To every
    pair add and subtract its rate times its price m, that of the cheapest of its ways. w/b + m b
    is never below 2 sqrt(w m), whatever b is, and what is subtracted is never more than the rows'
    rates at their prices, since rows are never more than full.
    """
    assert bool(np.all(weights >= 0)) and bool(np.all(prices >= 0))
    share = weights / weights.sum()
    constant = float(share @ paths.constants)
    amounts = product(paths.amounts.T, share)
    price = np.minimum.reduceat(product(room.rows.T, prices), room.way_start)
    return constant + float(2.0 * np.sqrt(amounts * price).sum() - prices @ room.bytes_per_second)


def scale_prices(paths: Paths, room: RateRoom, weights: Floats, prices: Floats) -> Floats:
    """The multiple of the prices that proves most: of 2 s sqrt(x) - p x at x = (s / p)^2."""
    amounts = product(paths.amounts.T, weights) / weights.sum()
    price = np.minimum.reduceat(product(room.rows.T, prices), room.way_start)
    gain, cost = float(np.sqrt(amounts * price).sum()), float(prices @ room.bytes_per_second)
    return prices * (gain / cost) ** 2 if cost > 0 else prices


def product(one: Floats, other: Floats) -> Floats:
    """The product of a matrix and a matrix or vector."""
    most = _MATRIX if other.ndim == 2 else _VECTOR
    count = max(1, most // max(other.size, 1))
    if count >= len(one):
        return np.asarray(one @ other)
    return np.concatenate([one[k : k + count] @ other for k in range(0, len(one), count)])


def solve(system: Floats, known: Floats) -> Floats:
    """What a symmetric, positive definite matrix makes the known columns of.

    A half at a time: rows of the first half are put into those of the second.
    """
    if len(system) <= _ROWS:
        return np.asarray(np.linalg.solve(system, known))
    half = len(system) // 2
    count = len(system) - half
    first = solve(system[:half, :half], np.concatenate((system[:half, half:], known[:half]), 1))
    below = system[half:, :half]
    left = system[half:, half:] - product(below, first[:, :count])
    second = solve(left, known[half:] - product(below, first[:, count:]))
    return np.concatenate((first[:, count:] - product(first[:, :count], second), second))
