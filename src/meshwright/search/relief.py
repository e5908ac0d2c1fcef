"""Makes plans that lack memory fit: they divide state and compute activations again.

A method decides what runs where as if everything were kept. Where its plan does not fit, each part
on a device that lacks memory may divide its state (ZeRO 1 to 3; Rajbhandari et al. 2020) and
compute activations again (Chen et al. 2016), and the simulator says what that saves and costs.
Knows nothing of how plans are found.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from meshwright.errors import InputError
from meshwright.plan.plan import Part, Plan, Recompute, Sync
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt
from meshwright.search.judge import Verdict
from meshwright.search.problem import Problem

_MANNERS = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Relief:
    """How a part saves memory."""

    recompute: int = 0
    """Its place among the manners, the cheapest first."""
    zero: int = 0


_MOST = (
    Relief(recompute=2, zero=3),
    Relief(recompute=2, zero=1),
    Relief(zero=1),
    Relief(recompute=2),
)
"""What saves the most memory, tried in turn until a plan fits. More is not always less memory: with
some schedules what is gathered or computed again stays for several microbatches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A plan with so much relief for some of its parts, and the simulator's word on it."""

    reliefs: Mapping[int, Relief]
    plan: Plan
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relieved:
    """A plan that was looked at: as it is, with all relief there is, and what its parts can do."""

    plain: _Trial
    offered: Mapping[int, Sequence[Relief]]
    most: _Trial


@dataclass(slots=True)
class Reliever:
    """Relieves plans of one problem, each at most once."""

    problem: Problem
    clock: Clock
    _plain: dict[Plan, _Trial | None] = field(default_factory=dict)
    """Plans as they are; None: the graph does not allow it."""
    _known: dict[Plan, _Relieved] = field(default_factory=dict)
    """What came of plans."""

    def offer(self, fronts: Iterable[Sequence[Plan]], attempt: Attempt) -> None:
        """Offer what comes of plans that lack memory where that is faster than the best that fits.

        A front has plans in the order of their steps, of which each lacks less than those before:
        the first of them that fits with all relief there is is found by halving. One front is
        looked at however late it is: a plan that can be run is worth more than a bit of time.
        """
        for front in fronts:
            if self.clock.is_over and (attempt.fits or self._known):
                return
            low, high, found = 0, len(front), None
            while low < high:
                middle = (low + high) // 2
                plan = front[middle]
                plain, is_new = self._try_plain(plan), plan not in self._known
                if plain is not None and plain.verdict.step_seconds >= attempt.step_seconds:
                    high = middle  # as are those after it
                    continue
                tried = None if plain is None else self._relieve(plain)
                if tried is None or not tried.most.verdict.fits:
                    low = middle + 1
                else:
                    high, found = middle, tried if is_new else found
                for each in () if tried is None else (tried.plain, tried.most):
                    attempt.offer(each.plan, each.verdict)
            if found is not None:
                best = self._lessen(found)
                attempt.offer(best.plan, best.verdict)

    def _try_plain(self, plan: Plan) -> _Trial | None:
        if plan not in self._plain:
            verdict = self._settle(plan)
            trial = None if verdict is None else _Trial(reliefs={}, plan=plan, verdict=verdict)
            self._plain[plan] = trial
        return self._plain[plan]

    def _relieve(self, plain: _Trial) -> _Relieved:
        """What a plan becomes with all relief for those of its parts that lack memory, or for all
        where that is not enough."""
        plan = plain.plan
        for chosen in () if plan in self._known else self._choices(plain):
            offered = {number: self._reliefs(plan, number) for number in chosen}
            most = self._most(plan, offered) or plain
            self._known[plan] = _Relieved(plain=plain, offered=offered, most=most)
            if most.verdict.fits:
                break
        return self._known[plan]

    def _choices(self, plain: _Trial) -> Iterator[Sequence[int]]:
        """The parts that relief is looked for in: those on devices that lack memory, then all."""
        index, parts = self.problem.cluster.index, plain.plan.parts
        over = plain.verdict.over_bytes
        lacks = [
            number
            for number, part in enumerate(parts)
            if any(over[index[each]] > 0 for each in part.devices)
        ]
        yield lacks
        if len(lacks) < len(parts):
            yield range(len(parts))

    def _most(self, plan: Plan, offered: Mapping[int, Sequence[Relief]]) -> _Trial | None:
        """The first of `_MOST` that fits, else what lacks least; None: none is allowed."""
        best = None
        tried: list[Mapping[int, Relief]] = []
        for most in _MOST:
            alike = _within(offered, most)
            if alike in tried:
                continue
            tried.append(alike)
            found = self._try(plan, alike)
            if found is not None and (best is None or found.verdict.rank < best.verdict.rank):
                best = found
            if best is not None and best.verdict.fits:
                break
        return best

    def _settle(self, plan: Plan) -> Verdict | None:
        """None: the graph does not allow it."""
        try:
            return self.problem.settle(plan)
        except InputError:
            return None

    def _reliefs(self, plan: Plan, number: int) -> tuple[Relief, ...]:
        """What a part can do, the most last. Gradients are divided on their own only where
        microbatches add them up: else they are gone before the last of them is there."""
        part = plan.parts[number]
        is_divided = part.num_replicas > 1 and part.sync is not Sync.DUPLICATE
        zeros: tuple[int, ...] = (0,)
        if is_divided and not self.problem.graph.mixes.any():
            adds_up = plan.schedule is not None and plan.schedule.microbatches > 1
            zeros = (0, 1, 2, 3) if adds_up else (0, 1, 3)
        manners = range(len(_MANNERS))
        return tuple(Relief(recompute=each, zero=zero) for each, zero in product(manners, zeros))

    def _lessen(self, relieved: _Relieved) -> _Trial:
        """The fastest found that fits: the same relief for all, then less of it part by part.

        Nothing is computed again where a division of state alone is enough."""
        plan, offered, best = relieved.plain.plan, relieved.offered, relieved.most
        for relief in sorted({each for reliefs in offered.values() for each in reliefs}):
            if (
                best is not relieved.most
                and relief.recompute > max(best.reliefs.values()).recompute
            ):
                break
            best = self._better(plan, _within(offered, relief), best)
        if len(offered) == 1:
            return best
        for number, reliefs in offered.items():
            for relief in reliefs:
                if relief < best.reliefs[number]:
                    best = self._better(plan, {**best.reliefs, number: relief}, best)
        return best

    def _better(self, plan: Plan, reliefs: Mapping[int, Relief], best: _Trial) -> _Trial:
        if self.clock.is_over:
            return best
        found = self._try(plan, reliefs)
        return best if found is None or best.verdict.rank <= found.verdict.rank else found

    def _try(self, plan: Plan, reliefs: Mapping[int, Relief]) -> _Trial | None:
        parts = tuple(
            _relieved(part, reliefs.get(number, Relief())) for number, part in enumerate(plan.parts)
        )
        relieved = replace(plan, parts=parts)
        verdict = self._settle(relieved)
        return None if verdict is None else _Trial(reliefs=reliefs, plan=relieved, verdict=verdict)


def _within(offered: Mapping[int, Sequence[Relief]], most: Relief) -> dict[int, Relief]:
    """By part the most that it can do within a relief."""
    return {
        number: max(
            each for each in reliefs if each.recompute <= most.recompute and each.zero <= most.zero
        )
        for number, reliefs in offered.items()
    }


def _relieved(part: Part, relief: Relief) -> Part:
    """A part with relief; shards are summed and gathered by all, so not by a server."""
    sync = part.sync if relief.zero == 0 else Sync.ALL_REDUCE
    return replace(part, recompute=_MANNERS[relief.recompute], zero=relief.zero, sync=sync)
