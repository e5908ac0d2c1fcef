"""The best rates for a Precedence within a Room, by generating paths, to a proven gap.

The step is the longest of very many paths, few of which matter. So the best rates for some paths
are found, the graph is walked with them, the longest paths found there are added, and so on
(Kelley, "The cutting-plane method for solving convex programs", 1960). Rates for few paths alone
would swing; those at the barrier's centre stay away from all limits, and the barrier shrinks only
as fast as the gap (Goffin, Haurie, Vial, "Decomposition and nondifferentiable optimization with the
projective algorithm", Management Science 38, 1992). Every round proves a bound of its own.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, places_in
from meshwright.search.method.bandwidth.rate.master import (
    Master,
    Point,
    certify,
    product,
    scale_prices,
)
from meshwright.search.method.bandwidth.rate.precedence import Paths, Precedence, Walker, no_paths
from meshwright.search.method.bandwidth.rate.room import RateRoom, even_ways

_MAX_ROUNDS = 200
_MAX_WORK = 1e10
"""Multiplications that systems of all rounds may take, about: a second for each 1e9 or so. Up to a
dozen hosts that all send to all never come near; what is proven by then is the answer."""
_SHRINK = 0.15
"""What is left of the barrier where the paths that are known say enough."""
_SOFT = (0.1, 0.01)
"""Of the gap: how much shorter paths are that count e times less in a mixture."""
_BETWEEN = 0.7
"""How near to the best rates the graph is walked once more where new ones are worse."""
_INSIDE = 0.98
"""Of the best rates, which fill a row: where a centre is looked for."""
_MAX_KEPT = 192
"""Paths; of more, those of least weight are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRates:
    """What every pair gets, how long the step takes then, and what is proven."""

    bytes_per_second: Floats
    """By pair; zero for those that nothing is sent between."""
    ways: Floats
    """The same by way of the room."""
    seconds: float
    bound_seconds: float
    """No rates give a shorter step: `certify` of the paths, weights and prices."""
    paths: Paths
    """Over all pairs."""
    weights: Floats
    prices: Floats
    rounds: int
    """How often the graph was walked."""

    @property
    def gap(self) -> float:
        """How far above the bound, as a part of the step."""
        return (self.seconds - self.bound_seconds) / self.seconds if self.seconds > 0 else 0.0


def optimise_paths(
    precedence: Precedence, room: RateRoom, *, gap: float = 1e-4, start: Floats | None = None
) -> PairRates:
    """Rates within the rows whose step is at most `gap` above the proven bound.

    `start`: rates of an earlier answer for a like graph. Stops early where rounding does not let it
    come closer, and where dozens of hosts all send to all: the gap then says so.
    """
    used = precedence.used()
    if not len(used):
        return _constant(precedence, room)
    search = _PathSearch(_picked(precedence, used), room.picked(used), start, used)
    while search.gap > gap and search.rounds < _MAX_ROUNDS and search.work < _MAX_WORK:
        if not search.advance(gap):
            break
    return search.answer(precedence, room, used)


def fill_rows(room: RateRoom, ways: Floats) -> Floats:
    """What is left of rows, handed out: all ways grow in proportion, but for those whose row is
    full. No way gets less."""
    ways = ways.copy()
    is_open = ways > 0
    while is_open.any():
        growth = product(room.rows, np.where(is_open, ways, 0.0))
        left = np.maximum(room.bytes_per_second - product(room.rows, ways), 0.0)
        is_growing = growth > 0
        factor = float((left[is_growing] / growth[is_growing]).min())
        ways = np.where(is_open, ways * (1.0 + factor), ways)
        is_full = product(room.rows, ways) >= room.bytes_per_second * (1.0 - 1e-12)
        is_open &= ~(room.rows[is_full] > 0).any(axis=0)
    return ways


class _PathSearch:
    """Paths so far, the point that they led to, and the best of what was found and proven."""

    def __init__(
        self, precedence: Precedence, room: RateRoom, start: Floats | None, used: np.ndarray
    ) -> None:
        self.rate_unit = float(room.bytes_per_second.max())
        # Of rows that say the same, as all of a ring's do, one.
        scaled = np.round(room.rows / room.bytes_per_second[:, None] * self.rate_unit, 12)
        self.row_of = np.sort(np.unique(scaled, axis=0, return_index=True)[1])
        self.room = RateRoom(
            pair_of_way=room.pair_of_way,
            rows=room.rows[self.row_of],
            bytes_per_second=room.bytes_per_second[self.row_of] / self.rate_unit,
        )
        self.walker = Walker(precedence)
        self.rounds, self.work = 0, 0.0
        self.best, self.best_ways, self.bound = np.inf, np.zeros(0), 0.0
        self.paths = no_paths(room.num_pairs)
        ways = self._inside(None if start is None else start[used] / self.rate_unit)
        self.time_unit = 1.0
        self.time_unit = self._walk(ways) or 1.0
        self.best = self.best / self.time_unit
        self.paths = Paths(
            constants=self.paths.constants / self.time_unit,
            amounts=self.paths.amounts / self.time_unit,
        )
        self.point = Point(ways=ways, seconds=0.0)
        self.barrier = 0.3 / (len(ways) + len(self.room.bytes_per_second))
        self.weights, self.prices = np.ones(len(self.paths.constants)), np.zeros(len(self.row_of))
        self.proof = self.paths

    @property
    def gap(self) -> float:
        return (self.best - self.bound) / self.best

    def _inside(self, rates: Floats | None) -> Floats:
        """Rates well inside of the rows: near given ones, else all alike."""
        ways = 0.9 * even_ways(self.room)
        if rates is not None:
            start, pair_of = self.room.way_start, self.room.pair_of_way
            count = np.diff(np.append(start, len(pair_of)))
            given = (rates / count)[pair_of]
            ways = 0.9 * np.maximum(given, 1e-3 * ways)
            ways *= min(1.0, 0.9 / float(self._fullness(ways)))
        return np.asarray(ways)

    def _fullness(self, ways: Floats) -> float:
        return float((product(self.room.rows, ways) / self.room.bytes_per_second).max())

    def _walk(self, ways: Floats) -> float:
        """Walk the graph with these rates, grown until a row is full; add the long paths."""
        grown = ways / self._fullness(ways)
        rates = np.add.reduceat(grown, self.room.way_start)
        found, paths = self.walker.walk(rates * self.rate_unit, at_least=0.9)
        seconds = found / self.time_unit
        if seconds < self.best:
            self.best, self.best_ways = seconds, grown
        if len(paths.constants) > 1:
            softness = max(seconds - self.bound, 1e-4 * seconds) * self.time_unit
            for part in _SOFT:
                mixed = self.walker.mix(rates * self.rate_unit, part * softness)
                paths = paths.joined(mixed)
        scaled = Paths(
            constants=paths.constants / self.time_unit,
            amounts=paths.amounts / self.time_unit / self.rate_unit,
        )
        self.paths = self.paths.joined(scaled)
        self.rounds += 1
        return seconds

    def advance(self, gap: float) -> bool:
        """One round: centre, prove, walk. False: nothing changes any more."""
        master = Master(self.paths, self.room)
        self.point = self._centre(master)
        weights, prices = master.duals(self.point, self.barrier)
        prices = scale_prices(self.paths, self.room, weights, prices)
        bound = certify(self.paths, self.room, weights, prices)
        if bound > self.bound:
            self.bound, self.weights, self.prices, self.proof = bound, weights, prices, self.paths
        known = len(self.paths.constants)
        self.work += 10.0 * (known + len(prices)) ** 2 * (len(self.point.ways) + known)
        if self._walk(self.point.ways) > self.best:
            # What is best by now may be beaten between there and here.
            centre = self.point.ways / self._fullness(self.point.ways)
            self._walk(_BETWEEN * self.best_ways + (1.0 - _BETWEEN) * centre)
        # What the barrier keeps from limits costs about this much; less says more only where the
        # paths that are known are not what the gap comes from.
        blur = self.barrier * (known + len(self.point.ways) + len(self.prices))
        if blur > 0.5 * (self.best - self.bound) or len(self.paths.constants) == known:
            self.barrier *= _SHRINK
        if len(self.paths.constants) > max(_MAX_KEPT, len(self.point.ways) // 2):
            self._forget(weights)
        return blur > 1e-3 * gap * self.best or len(self.paths.constants) > known

    def _centre(self, master: Master) -> Point:
        """The centre for the barrier, from the better of the last one and the best rates.

        New paths may have cut the last one off: it begins with the barrier that is right there.
        """
        starts = [Point(ways=self.point.ways, seconds=master.longest(self.point.ways))]
        if len(self.best_ways):
            ways = _INSIDE * self.best_ways
            starts.append(Point(ways=ways, seconds=master.longest(ways)))
        point = min(starts, key=lambda each: each.seconds)
        count = len(self.paths.constants) + len(point.ways) + len(self.prices)
        above = max(point.seconds - self.bound, 1e-9 * point.seconds)
        barrier = max(self.barrier, above / count)
        point = Point(ways=point.ways, seconds=point.seconds + max(above, barrier))
        while True:
            point = master.centre(point, barrier)
            if barrier <= self.barrier:
                return point
            barrier = max(_SHRINK * barrier, self.barrier)

    def _forget(self, weights: Floats) -> None:
        """Keep the new paths and of the old ones half, the heaviest."""
        order = np.argsort(-weights, kind="stable")[: len(weights) // 2]
        new = np.arange(len(weights), len(self.paths.constants))
        self.paths = self.paths.picked(np.concatenate((np.sort(order), new)))

    def answer(self, precedence: Precedence, room: RateRoom, used: np.ndarray) -> PairRates:
        ways = fill_rows(self.room, self.best_ways)
        rates, on_ways = np.zeros(precedence.num_pairs), np.zeros(len(room.pair_of_way))
        on_ways[np.isin(room.pair_of_way, used)] = ways * self.rate_unit
        rates[used] = np.add.reduceat(ways, self.room.way_start) * self.rate_unit
        seconds, _ = self.walker.walk(rates[used])
        amounts = np.zeros((len(self.proof.constants), precedence.num_pairs))
        amounts[:, used] = self.proof.amounts * (self.time_unit * self.rate_unit)
        paths = Paths(constants=self.proof.constants * self.time_unit, amounts=amounts)
        is_row = room.rows[:, np.isin(room.pair_of_way, used)].any(axis=1)
        prices = np.zeros(len(room.rows))
        kept = np.flatnonzero(is_row)[self.row_of]
        prices[kept] = self.prices * (self.time_unit / self.rate_unit)
        return PairRates(
            bytes_per_second=rates,
            ways=on_ways,
            seconds=seconds,
            bound_seconds=min(certify(paths, room, self.weights, prices), seconds),
            paths=paths,
            weights=self.weights,
            prices=prices,
            rounds=self.rounds,
        )


def _picked(precedence: Precedence, used: np.ndarray) -> Precedence:
    """With the pairs in use only, numbered anew."""
    arcs = precedence.arcs.copy()
    place = places_in(used, precedence.num_pairs + 1, np.int32)
    arcs["pair"] = place[arcs["pair"]]
    return Precedence(arcs=arcs, first_in=precedence.first_in, num_pairs=len(used))


def _constant(precedence: Precedence, room: RateRoom) -> PairRates:
    """Nothing goes between hosts: no rate matters."""
    seconds, paths = Walker(precedence).walk(np.ones(precedence.num_pairs))
    return PairRates(
        bytes_per_second=np.zeros(precedence.num_pairs),
        ways=np.zeros(len(room.pair_of_way)),
        seconds=seconds,
        bound_seconds=seconds,
        paths=paths,
        weights=np.ones(len(paths.constants)),
        prices=np.zeros(len(room.rows)),
        rounds=1,
    )
