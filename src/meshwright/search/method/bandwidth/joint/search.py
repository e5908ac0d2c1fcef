"""Searches placements and rates together: placements under rates, rates for placements, in turn.

A placement is searched for under some rates, the network is shared out anew for what is found, and
so on until neither helps; from several rates, then from changes of the best ones. Last come exact
search around the best and moves of single units that are timed with rates of their own. The
simulator has the last word on everything.

Placements on the devices of some hosts only are searched apart: a search on all rarely stays there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from meshwright.array import Floats, Ints, marked
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance
from meshwright.search.judge import tighten
from meshwright.search.method.bandwidth.joint.judge import Bench, Judge, JudgedPlan, Shared
from meshwright.search.method.bandwidth.joint.space import RateSpace, RateStart, find_starts
from meshwright.search.method.placement.apart import FIRST_WAITS, Narrow, narrow
from meshwright.search.method.placement.contend import contend
from meshwright.search.method.placement.improve import improve
from meshwright.search.method.placement.placement_walk import Placed

_MOVE_GAIN = 1e-6
_PASSES = 4
"""Times that all units near the longest path are gone through."""


_TURNS = 6
"""Placements and rates in turn, at most, from one start."""
_GAIN = 1e-4
"""Part of the time that has to be gained for another turn."""
_WEIGHTS = (1.0, 2.0, 0.5)
"""Powers of how much transfers wait, one after the other while nothing faster is found."""
_LARGE_OPS = 5_000
_LARGE_STARTS = 4
"""Rates that steps of more ops than this begin with: a round takes a second."""
_PATIENCE, _LARGE_PATIENCE = 8, 2
"""Changes of the best rates that find nothing faster before the search ends; for large steps."""
_SPREAD = 0.5
"""Of the logarithms of rates that are changed."""
_TRIES = 8
"""Times that memory which may be filled is lowered."""


class JointSearch:
    """One search: what is known so far, and how it goes on."""

    def __init__(
        self,
        judge: Judge,
        space: RateSpace,
        limits: Floats,
        *,
        seed: int,
        clock: Clock,
        bound: float,
    ) -> None:
        self.best: JudgedPlan | None = None
        self.statistics: dict[str, float] = {"turns": 0.0}
        self._judge, self._instance, self._space = judge, judge.instance, space
        self._limits, self._seed, self._clock, self._bound = limits, seed, clock, bound
        self._is_fair = judge.sharing == "fair"
        self._is_large = self._instance.num_ops > _LARGE_OPS
        self._tries = 0
        self._hoped = space.most
        self._bench = self._make_bench()

    def run(self, device_of_unit: Ints | None) -> None:
        """First rounds from several rates, the best of them further; then changes of the best."""
        if device_of_unit is not None:
            ones = np.ones_like(self._hoped)
            known = self._bench.time(device_of_unit, self._hoped, ones)
            self._take_shared(known, self._hoped, ones)
        begun: list[tuple[RateStart, JudgedPlan]] = []
        for number, start in enumerate(self._starts()):
            if self._is_done():
                return
            found = self._begin(start, self._seed + 100 * number)
            begun += [(start, found)] if found is not None else []
        begun.sort(key=lambda each: each[1].verdict.rank)
        for number, (start, found) in enumerate(begun):
            if not self._is_done():
                self._alternate(start, self._seed + 100 * number + 10, found)
        if device_of_unit is not None and not self._is_done():
            everywhere = RateStart(hosts=np.arange(self._space.num_hosts), rates=self._hoped)
            self._alternate(everywhere, self._seed, None, device_of_unit)
        for step in (self._change_best, self._improve_best, self._move_best):
            if not self._is_done():
                step()

    def _starts(self) -> Iterator[RateStart]:
        return islice(find_starts(self._space), _LARGE_STARTS if self._is_large else None)

    def take(self, found: JudgedPlan) -> bool:
        """Keep it if it is the best; whether it is faster by enough to go on."""
        if self.best is None:
            self.best = found
            return True
        is_better = found.verdict.beats(self.best.verdict, _GAIN)
        if found.verdict.rank < self.best.verdict.rank:
            self.best = found
        return is_better

    def _is_over(self) -> bool:
        return self._clock.is_over

    def _is_done(self) -> bool:
        if self.best is None:
            return False
        verdict = self.best.verdict
        is_proved = verdict.fits and verdict.step_seconds <= self._bound * (1 + 1e-9)
        return is_proved or self._is_over()

    def _take_shared(self, placed: Placed, rates: Floats, waits: Floats) -> tuple[JudgedPlan, bool]:
        """Share the network out for a placement, simulate it, keep it if it is the best."""
        shared = self._bench.reallocate(placed, rates, waits)
        found = self._judge.simulate(shared, self._bench.start_order(shared))
        self.statistics["turns"] += 1
        if not found.verdict.fits and self._tries < _TRIES:
            self._tries += 1
            self._limits = tighten(self._limits, found.verdict)
            self._bench = self._make_bench()
        return found, self.take(found)

    def _alternate(
        self,
        start: RateStart,
        seed: int,
        best: JudgedPlan | None,
        device_of_unit: Ints | None = None,
    ) -> bool:
        """Placements and rates in turn, from what is known; whether it is faster than all before.

        `best` is what the start has led to; without it, `device_of_unit` is a placement.
        """
        has_gained, idle = False, 0
        rates, waits = start.rates, np.ones_like(start.rates)
        for turn in range(_TURNS):
            if best is not None and best.shared is not None:
                rates, device_of_unit = best.shared.rates, best.shared.placed.device_of_unit
                waits = self._waits(best, _WEIGHTS[idle]) if self._is_fair else waits
            assert device_of_unit is not None, "given, or of what it has begun with"
            placed = self._narrow(start, rates, waits).search(
                seed + turn, self._is_over, device_of_unit
            )
            found, is_gain = self._take_shared(placed, rates, waits)
            has_gained |= is_gain
            idle = 0 if best is None or found.verdict.beats(best.verdict, _GAIN) else idle + 1
            if idle >= (len(_WEIGHTS) if self._is_fair else 1) or self._is_done():
                break
            best = found if idle == 0 else best
        if has_gained and self.best is not None:
            self.take(self._judge.polish(self.best))
        return has_gained

    def _begin(self, start: RateStart, seed: int) -> JudgedPlan | None:
        """The best of several first rounds; None: some op can run on no device of the hosts."""
        best: JudgedPlan | None = None
        for number, wait in enumerate(FIRST_WAITS[: 1 if self._is_large else None]):
            waits = np.full_like(start.rates, wait if self._is_fair else 1.0)
            place = self._narrow(start, start.rates, waits)
            if not place.can_run or (best is not None and self._is_done()):
                break
            placed = place.search(seed + number, self._is_over)
            found, _ = self._take_shared(placed, start.rates, waits)
            best = found if best is None or found.verdict.rank < best.verdict.rank else best
        return best

    def _narrow(self, start: RateStart, rates: Floats, waits: Floats) -> Narrow:
        devices = np.flatnonzero(np.isin(self._space.hosts.host_of, start.hosts))
        return narrow(self._bench.under(rates, waits), devices, self._limits)

    def _waits(self, found: JudgedPlan, weight: float) -> Floats:
        """By pair of hosts: how many times as long as alone transfers take in a plan."""
        assert found.shared is not None, "what waits is under rates"
        host_of, rates = self._space.hosts.host_of, found.shared.rates
        waits = np.ones_like(rates)
        alone = self._bench.under(rates, waits)
        slowed = contend(alone, found.plan, weight)
        if slowed is not None:
            here, there = np.nonzero(self._space.pairs[np.ix_(host_of, host_of)])
            slow = alone.bandwidth[here, there] / slowed.bandwidth[here, there]
            np.maximum.at(waits, (host_of[here], host_of[there]), slow)
        return waits

    def _make_bench(self) -> Bench:
        return Bench(self._instance, self._space, self._limits)

    def _change_best(self) -> None:
        """Begin anew at the best placement under other rates, while that helps."""
        random = np.random.default_rng(self._seed)
        patience, idle, number = _LARGE_PATIENCE if self._is_large else _PATIENCE, 0, 0
        while idle < patience and not self._is_done():
            shared = self._best_shared()
            if shared is None:
                return
            rates = self._changed(shared.rates, random)
            start = RateStart(hosts=np.arange(self._space.num_hosts), rates=rates)
            number += 1
            seed = self._seed + 10_000 + 100 * number
            has_gained = self._alternate(start, seed, None, shared.placed.device_of_unit)
            idle = 0 if has_gained else idle + 1
        self.statistics["changes"] = float(number)

    def _changed(self, rates: Floats, random: np.random.Generator) -> Floats:
        """Half way to what pairs may get at most, and by some luck."""
        luck = np.exp(random.normal(0.0, _SPREAD, rates.shape))
        changed: Floats = np.sqrt(rates * self._hoped) * luck
        return np.minimum(changed, self._space.most)

    def _best_shared(self) -> Shared | None:
        """Of the best plan, if it fits and is under rates."""
        best = self.best
        return best.shared if best is not None and best.verdict.fits else None

    def _improve_best(self) -> None:
        """Exact search around the best placement, under its rates."""
        shared = self._best_shared()
        if shared is None:
            return
        instance = self._bench.under(shared.rates, shared.waits)
        found = improve(instance, shared.placed, self._limits, self._seed, self._clock, self._bound)
        self.statistics["neighbourhoods"] = float(found.num_searched)
        if found.placed is not shared.placed:
            self._take_shared(found.placed, shared.rates, shared.waits)

    def _move_best(self) -> None:
        shared = self._best_shared()
        if shared is None:
            return
        moved = improve_shared(self._bench, shared, self._seed, self._is_over)
        self.statistics["moves"] = float(moved.num_tried)
        if moved.shared is not shared:
            self.take(self._judge.simulate(moved.shared, self._bench.start_order(moved.shared)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitMoves:
    """The best that was found, and how many moves were timed with rates of their own."""

    shared: Shared
    num_tried: int


def improve_shared(
    bench: Bench, shared: Shared, seed: int, is_over: Callable[[], bool]
) -> UnitMoves:
    """Move or swap units on the longest path and next to it, wherever it is faster.

    Most moves cannot pay: what is no faster when every pair of hosts has all that its ways can
    carry is left out before anything is shared out.
    """
    random, most = np.random.default_rng(seed), bench.space.most
    best, tried = shared, 0
    for _ in range(_PASSES):
        before = best
        units = _units_near(bench, best)
        for unit in random.permutation(units).tolist():
            for device_of_unit in _moves(bench.instance, best.placed.device_of_unit, unit, random):
                if is_over():
                    return UnitMoves(shared=best, num_tried=tried)
                limit = best.placed.seconds * (1 - _MOVE_GAIN)
                hoped = bench.time(device_of_unit, most, best.waits, limit=limit)
                if not hoped.rank <= (best.placed.lacking_bytes, limit):
                    continue
                tried += 1
                found = bench.reallocate(hoped, best.rates, best.waits)
                if found.rank < (best.placed.lacking_bytes, limit):
                    best = found
        if best is before:
            break
    return UnitMoves(shared=best, num_tried=tried)


def _units_near(bench: Bench, shared: Shared) -> Ints:
    """The units of the longest path, and those that exchange tensors with them."""
    instance = bench.instance
    on_path = marked(instance.num_units, instance.unit_of[bench.longest_path(shared)])
    source = instance.unit_of[np.repeat(np.arange(instance.num_ops), np.diff(instance.out_start))]
    target = instance.unit_of[instance.out_edges["op"]]
    near = on_path.copy()
    near[target[on_path[source]]] = True
    near[source[on_path[target]]] = True
    return np.flatnonzero(near).astype(np.int32)


def _moves(
    instance: Instance, device_of_unit: Ints, unit: int, random: np.random.Generator
) -> Iterator[Ints]:
    """The unit on each other device that can run it, and in the place of another unit."""
    can_run = np.isfinite(instance.unit_seconds)
    for device in np.flatnonzero(can_run[unit, instance.type_of]).tolist():
        if device != device_of_unit[unit]:
            moved = device_of_unit.copy()
            moved[unit] = device
            yield moved
    other = int(random.integers(instance.num_units))
    here, there = device_of_unit[unit], device_of_unit[other]
    fits = can_run[unit, instance.type_of[there]] and can_run[other, instance.type_of[here]]
    if here != there and fits:
        swapped = device_of_unit.copy()
        swapped[unit], swapped[other] = there, here
        yield swapped
