"""The product's own search for placements, with the simulator's word on what it finds.

The search itself knows transfers that take their time alone and what ops hold when forward ends;
the simulator knows the sharing of links and the true peak of memory. So every round's placement is
simulated, the best by the simulator is the answer, where memory is lacking the next rounds may fill
less of it, and where links are shared further rounds count with links as slow as they were.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Phase
from meshwright.plan.plan import Plan
from meshwright.search.bound.window import ROUNDING, branch_bound, can_branch
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import devices_of_units, explain_nowhere, order_plan
from meshwright.search.judge import Verdict
from meshwright.search.method.placement.apart import FIRST_WAITS, Narrow, host_sets, narrow, slowed
from meshwright.search.method.placement.contend import contend
from meshwright.search.method.placement.exhaustive.memory import holds_everything
from meshwright.search.method.placement.exhaustive.search import exhaust
from meshwright.search.method.placement.improve import improve
from meshwright.search.method.placement.level_search import search_rounds
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk
from meshwright.search.order.decode import OrderDecoder
from meshwright.search.problem import Problem
from meshwright.search.relief import Reliever
from meshwright.search.start import own_starts

_PATIENCE, _LARGE_PATIENCE = 3, 1
"""The search ends after so many rounds without anything faster, in small and in large steps."""
_LARGE_OPS = 5_000
"""Steps of more ops than these are large: a round takes seconds there."""
_NEAR = 0.02
"""Large steps get no further round once the plan is so near to the bound."""
_GAIN = 1e-4
"""A plan is faster only if it is so by more than this part of the time."""
_PROVED = 1e-9
"""The gap at which a plan is as fast as the bound, but for rounding."""
_CONTENDED_ROUNDS = 8
"""Rounds on links that are slowed down as simulated, at most."""
_WEIGHTS = (1.0, 2.0, 0.5)
"""Powers of the slow-down, one after the other while nothing faster is found."""
_SECONDS_AN_OP = 2e-5
"""What simulating the last round's plan takes, which the budget has to leave."""
_ALONE_SHARE = 0.15
"""Of the time for rounds that take every transfer to be alone, where links are shared."""
_APART_HOSTS = 16
"""Clusters of so many hosts at most are searched on some of them by themselves ..."""
_APART_SHARE = 0.7
"""... for this part of what is left of the time at most, ..."""
_APART_TURNS = 6
"""... each with so many turns of placements and of links as slow as these make them."""
_ON_SHARE, _ON_PATIENCE, _SPREAD = 0.6, 8, 0.5
"""Of the time left for rounds from the best with links slowed by luck, how many of them may find
nothing, and the spread of the logarithms of that luck."""
_EXHAUSTED_OPS = 12
"""Steps of so few ops are searched to the end."""
_TRIES = 8
"""So often at most, what may be filled of the memory is lowered because a plan did not fit."""
_TIGHTER = 0.9
"""Each time it is lowered to this part at most."""
_ROOM = 1.1
"""It never falls below so many times what has to be held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SimulatedPlan:
    placed: Placed | None
    """None: found by looking at everything."""
    plan: Plan
    verdict: Verdict


def placement(problem: Problem, attempt: Attempt) -> None:
    """The best placement and order that rounds of search find until they find no better ones, or
    until the best is proven."""
    attempt.raise_bound(problem.placement_bound)
    if reason := explain_nowhere(problem.instance):
        attempt.refuse(reason)
        return
    search = _PlacementSearch(problem, attempt)
    with problem.clock.heard():
        search.run()


class _PlacementSearch:
    """One search: what is known so far, and how it goes on."""

    def __init__(self, problem: Problem, attempt: Attempt) -> None:
        self.instance, self.attempt = problem.instance, attempt
        self.best: _SimulatedPlan | None = None
        self._problem, self._seed = problem, problem.seed
        clock = problem.clock
        answering = min(_SECONDS_AN_OP * self.instance.num_ops, 0.3 * clock.left)
        self._clock = clock.sooner(answering)
        self._limits = usable_bytes(problem.graph, problem.cluster)
        self._statistics = attempt.statistics
        self._statistics["rounds"] = 0.0

    def run(self) -> None:
        """PlacementWalk in rounds, then search neighbourhoods, then raise the bound.

        From starts: rounds from the best of them, and what needs no search."""
        starts = own_starts(self._problem, "placement")
        if starts:
            self._run_near(starts)
            return
        self._take_plain()
        shares_links = self._problem.sharing == "fair" and len(self.instance.cluster.hosts) > 1
        if not self._is_done():
            self._walk(self._clock.rest(_ALONE_SHARE, tells=False) if shares_links else self._clock)
        self._relieve()
        if self._problem.sharing == "fair" and not self._is_done():
            self._walk_contended()
            self._walk_apart()
        if self.instance.num_ops <= _EXHAUSTED_OPS and not self._is_done():
            self._exhaust()
        if not self._is_done():
            self._improve()
        if shares_links and not self._is_done():
            self._walk_on()
        if not self._is_done():
            self._branch()
        if not self._is_done():
            self._follow()
        self._clock.look()

    def _relieve(self) -> None:
        """Offer what the best becomes where it lacks memory and computes activations again."""
        if self.best is not None and not self.best.verdict.fits:
            Reliever(self._problem, self._clock).offer([[self.best.plan]], self.attempt)

    def _run_near(self, starts: Sequence[Plan]) -> None:
        walk = PlacementWalk(self.instance, self._limits, self._seed)
        for plan in starts:
            self._take(walk.time(devices_of_units(self.instance, plan)))
        best = self.best
        assert best is not None and best.placed is not None, "there is a start"
        if not self._is_done():
            self._walk(self._clock, best.placed.device_of_unit)
        if self._problem.sharing == "fair" and not self._is_done():
            self._walk_contended()
        if not (self._is_done() or self._is_near()):
            self._take_plain()
        if not self._is_done() and self.instance.num_ops <= _EXHAUSTED_OPS:
            self._exhaust()
        self._clock.look()

    def _is_over(self) -> bool:
        return self._clock.is_over

    def _is_done(self) -> bool:
        """Whether the best is proven, or all that was asked for."""
        verdict = self.best.verdict if self.best else None
        limit = self.attempt.bound_seconds * (1 + _PROVED)
        is_proved = bool(verdict and verdict.fits and verdict.step_seconds <= limit)
        return is_proved or self._clock.is_satisfied

    def _is_near(self) -> bool:
        """Whether another round of a large step would take longer than it is worth."""
        return (
            self.instance.num_ops > _LARGE_OPS
            and self.best is not None
            and self.best.verdict.fits
            and self.best.verdict.step_seconds <= self.attempt.bound_seconds * (1 + _NEAR)
        )

    def _walk(self, clock: Clock, start: Ints | None = None) -> None:
        """Rounds, from a placement if one is given; one at least."""
        idle, tries = 0, 0
        is_large = start is not None or self.instance.num_ops > _LARGE_OPS
        patience = _LARGE_PATIENCE if is_large else _PATIENCE
        search = search_rounds(
            self.instance, self._limits, self._seed, lambda: clock.is_over, start
        )
        for number in count():
            if number and (clock.is_over or idle >= patience):
                break
            placed = next(search)
            verdict, is_better = self._take(placed)
            self._statistics["rounds"] += 1
            idle = 0 if is_better else idle + 1
            if self._is_done() or self._is_near():
                break
            if not verdict.fits and tries < _TRIES:
                tries, idle = tries + 1, 0
                self._limits = self._tightened(placed, verdict)
                seed = self._seed + number + 1
                search = search_rounds(
                    self.instance, self._limits, seed, lambda: clock.is_over, start
                )

    def _walk_contended(self) -> None:
        """PlacementWalk on with links as slow as the best plan makes them by using them at once."""
        idle = 0
        for number in range(_CONTENDED_ROUNDS):
            best = self.best
            if best is None or best.placed is None or not best.verdict.fits or self._is_over():
                return
            instance = contend(self.instance, best.plan, _WEIGHTS[idle])
            if instance is None:
                return
            seed = self._seed + 1000 + number
            start = best.placed.device_of_unit
            search = search_rounds(instance, self._limits, seed, self._is_over, start)
            _, is_better = self._take(next(search))
            self._statistics["contended_rounds"] = number + 1.0
            idle = 0 if is_better else idle + 1
            if idle == len(_WEIGHTS):
                return

    def _walk_apart(self) -> None:
        """Search on some hosts by themselves, links slowed; then on from what each has led to."""
        if not 2 <= len(self.instance.cluster.hosts) <= _APART_HOSTS:
            return
        clock = self._clock.rest(_APART_SHARE, tells=False)
        is_large = self.instance.num_ops > _LARGE_OPS
        begun: list[tuple[Longs, _SimulatedPlan]] = []
        for number, devices in enumerate(host_sets(self.instance)):
            known: _SimulatedPlan | None = None
            for turn, wait in enumerate(FIRST_WAITS[: 1 if is_large else None]):
                place = narrow(slowed(self.instance, wait), devices, self._limits)
                if clock.is_over or not place.can_run:
                    break
                found = self._search(place, self._seed + 100 * number + turn, clock)
                known = found if known is None or found.verdict.rank < known.verdict.rank else known
            begun += [(devices, known)] if known is not None else []
        begun.sort(key=lambda each: each[1].verdict.rank)
        for number, (devices, found) in enumerate(begun):
            self._alternate(devices, found, self._seed + 2000 + 100 * number, clock)

    def _walk_on(self) -> None:
        """From the best, with links as slow as it makes them, more or less by some luck."""
        hosts = self.instance.cluster.host_of
        everywhere, random = np.arange(self.instance.num_devices), np.random.default_rng(self._seed)
        clock, idle, number = self._clock.rest(_ON_SHARE, tells=False), 0, 0
        while idle < _ON_PATIENCE and not (clock.is_over or self._is_done()):
            best = self.best
            if best is None or best.placed is None or not best.verdict.fits:
                return
            instance = contend(self.instance, best.plan) or self.instance
            luck = np.exp(random.normal(0.0, _SPREAD, (len(self.instance.cluster.hosts),) * 2))
            instance = replace(instance, bandwidth=instance.bandwidth * luck[np.ix_(hosts, hosts)])
            seed = self._seed + 10_000 + 100 * number
            number += 1
            place = narrow(instance, everywhere, self._limits)
            found = self._search(place, seed, clock, best.placed)
            self._alternate(everywhere, found, seed + 1, clock)
            idle = 0 if self.best is not best else idle + 1

    def _alternate(self, devices: Longs, start: _SimulatedPlan, seed: int, clock: Clock) -> None:
        """Placements on some devices, and links as slow as these make them, in turn."""
        best, idle = start, 0
        for turn in range(_APART_TURNS):
            if clock.is_over or self._is_done() or best.placed is None:
                return
            instance = contend(self.instance, best.plan, _WEIGHTS[idle]) or self.instance
            place = narrow(instance, devices, self._limits)
            found = self._search(place, seed + turn, clock, best.placed)
            idle = 0 if found.verdict.beats(best.verdict, _GAIN) else idle + 1
            if idle == len(_WEIGHTS):
                return
            best = found if idle == 0 else best

    def _search(
        self, place: Narrow, seed: int, clock: Clock, start: Placed | None = None
    ) -> _SimulatedPlan:
        """What a round on some devices finds, simulated, and kept if it is the best."""
        known = None if start is None else start.device_of_unit
        found = self._simulated(place.search(seed, lambda: clock.is_over, known), None)
        self._keep(found)
        return found

    def _tightened(self, placed: Placed, verdict: Verdict) -> Floats:
        """Limits in proportion to what counts here of a device's true peak.

        On all devices: on the one that lacks alone the next round would only change places.
        """
        instance = self.instance
        used = np.bincount(
            placed.device_of_unit, weights=instance.unit_bytes, minlength=instance.num_devices
        )
        worst = int(np.argmax(verdict.over_bytes))
        counted = used[worst] / verdict.peak_bytes[worst]
        usable = usable_bytes(instance.graph, instance.cluster)
        limits = np.minimum(_TIGHTER * self._limits, usable * counted)
        # Never so tight that nothing could keep to it.
        least = _ROOM * float(instance.unit_bytes.sum()) / max(float(limits.sum()), 1.0)
        lowered: Floats = np.minimum(limits * max(1.0, least), usable)
        return lowered

    def _take_plain(self) -> None:
        """What needs no search: one device of each type, and HEFT, in its own order.

        The walk knows nothing of shared links, so that by the simulator's word either may win.
        """
        instance = self.instance
        walk = PlacementWalk(instance, self._limits, self._seed)
        for kind in np.flatnonzero(np.isfinite(instance.seconds).all(axis=0)).tolist():
            members = np.flatnonzero(instance.type_of == kind)
            device = members[np.argmax(self._limits[members])]
            self._take(walk.time(np.full(instance.num_units, device, np.int32)))
        device_of_op, order, _ = self._problem.schedule_heft(self._limits)
        device_of_unit = np.zeros(instance.num_units, np.int32)
        device_of_unit[instance.unit_of] = device_of_op
        self._take(walk.time(device_of_unit, order), order)

    def _exhaust(self) -> None:
        """Look at everything; what is then the best is proven to be.

        It is not where memory decides and activations may be computed again: a placement that does
        so fits where one that keeps them does not, and may be faster than what fits without.
        """
        assert self.best is not None, "a first round always ends"
        known = self.best.verdict.step_seconds if self.best.verdict.fits else np.inf
        found = exhaust(
            self.instance, sharing=self._problem.sharing, incumbent_seconds=known, clock=self._clock
        )
        self._statistics["nodes"] = float(found.num_nodes)
        if found.verdict and found.verdict.rank < self.best.verdict.rank:
            assert found.plan is not None, "what has a verdict is a plan"
            self.best = _SimulatedPlan(placed=None, plan=found.plan, verdict=found.verdict)
            self.attempt.offer(found.plan, found.verdict)
        keeps_all = not (self.instance.graph.phase == Phase.BACKWARD).any()
        is_proof = found.is_complete and (keeps_all or holds_everything(self.instance))
        if is_proof and self.best.verdict.fits:
            self.attempt.raise_bound(self.best.verdict.step_seconds)

    def _follow(self) -> None:
        """Search around the placement of an earlier method, where that is faster than all here."""
        assert self.best is not None, "a first round always ends"
        others = self.attempt.incumbent.attempts.values()
        known = [each for each in others if each.claim is Claim.PLACEMENT and each.fits]
        first = min(known, key=lambda each: each.step_seconds, default=self.attempt)
        if first is self.attempt or first.plan is None or self._is_over():
            return
        walk = PlacementWalk(self.instance, self._limits, self._seed)
        before = self.best
        self._take(walk.time(devices_of_units(self.instance, first.plan)))
        if self.best is not before:
            self._improve()

    def _branch(self) -> None:
        if self._is_over() or not can_branch(self.instance):
            return
        if self.best is not None and self.best.verdict.fits:
            target = self.best.verdict.step_seconds
            self.attempt.raise_bound(branch_bound(self.instance, target, self._is_over))

    def _improve(self) -> None:
        """Exact search around the best placement, by the times without sharing."""
        if self.best is None or self.best.placed is None or not self.best.verdict.fits:
            return
        found = improve(
            self.instance, self.best.placed, self._limits, self._seed, self._clock,
            self.attempt.bound_seconds,
        )  # fmt: skip
        self._statistics["neighbourhoods"] = float(found.num_searched)
        self.attempt.raise_bound(found.bound_seconds * ROUNDING)
        if found.placed is not self.best.placed:
            self._take(found.placed)

    def _take(self, placed: Placed, order: Ints | None = None) -> tuple[Verdict, bool]:
        """Simulate a placement, by its starts or in an order; keep it if it is the best."""
        found = self._simulated(placed, order)
        return found.verdict, self._keep(found)

    def _keep(self, found: _SimulatedPlan) -> bool:
        """Keep a plan if it is the best; whether it is so by enough to go on."""
        is_better = self.best is None or found.verdict.beats(self.best.verdict, _GAIN)
        if is_better or (self.best and found.verdict.rank < self.best.verdict.rank):
            self.best = found
            self.attempt.offer(found.plan, found.verdict)
        return is_better

    def _simulated(self, placed: Placed, order: Ints | None) -> _SimulatedPlan:
        """The plan of a placement, its ops in an order or as they start, and what it takes."""
        instance = self.instance
        device_of_op = placed.device_of_unit[instance.unit_of].astype(np.int32)
        if order is None:
            decoder = OrderDecoder(instance)
            decoder.seconds(device_of_op, placed.order)
            order = decoder.start_order()
        plan = order_plan(instance, device_of_op, order)
        return _SimulatedPlan(placed=placed, plan=plan, verdict=self._problem.try_plan(plan))
