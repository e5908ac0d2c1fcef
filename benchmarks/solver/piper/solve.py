"""Searches for Piper's best plan: limits rise until one has a plan, then close in on the optimum.

A limit without a plan is a proven bound; a plan's own seconds are the next limit's ceiling. Exact
where the upsets can be listed; otherwise, and first where they are many, over some of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from meshwright.plan.answer import Stop
from solver.piper.chain import (
    Chains,
    OutOfTimeError,
    bytes_an_upset,
    find_upsets,
)
from solver.piper.order import (
    keep_abreast,
    line_up,
    order_by_branch,
    order_by_level,
    reorder,
    restore,
)
from solver.piper.problem import Problem, Stage, find_fault, plan_seconds

TOLERANCE = 1e-10
"""Relative: plans that are better by less than this are not looked for."""

_STEPS = (0.01, 0.03, 0.08, 0.2, 0.5, 1.5, 5.0, math.inf)
"""How far above the bound the limit is set, in turn."""
_NEAR = 1e-3
"""Relative: once the optimum is known so well, the plan in hand is mostly it."""
_MANY_UPSETS = 500
"""Above, plans over some of them come first: they take a fraction of the time."""
_SOME_UPSETS = 10_000
_DISTANCES = (1, 2, 4)
"""Levels apart: branches are kept abreast so far, while that leaves but some upsets."""
_SHORT_SHARE = 0.3
"""Of the time, for plans over some upsets."""
_MAX_BYTES = 3e9
"""Of tables over upsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found."""

    plan: tuple[Stage, ...]
    """First stage first; empty where none was found."""
    seconds: float
    """Of a microbatch; infinity without a plan."""
    bound_seconds: float
    """No plan takes less; infinity where it is proved that none fits."""
    stop: Stop
    statistics: Mapping[str, float]


def solve(problem: Problem, *, budget_seconds: float = 600.0) -> Found:
    """The plan of the fewest seconds a microbatch."""
    return _Search(problem, perf_counter(), budget_seconds).run()


class _Search:
    """One search; what it knows stays when its time is up."""

    def __init__(self, problem: Problem, began: float, budget_seconds: float) -> None:
        self._problem, self._until = problem, began + budget_seconds
        self._until_all = began + _SHORT_SHARE * budget_seconds
        self._plan: tuple[Stage, ...] = ()
        self._seconds, self._bound = math.inf, 0.0
        self._low, self._proves = 0.0, False
        self._order: Sequence[int] = ()
        self._statistics: dict[str, float] = {"stages_seen": 0.0, "limits": 0.0}

    def run(self) -> Found:
        """Over all upsets, where they can be listed."""
        problem = self._problem
        lattice = find_upsets(problem, int(_MAX_BYTES / bytes_an_upset(problem)))
        self._statistics["upsets"] = lattice.num_downsets if lattice else math.inf
        is_proved = False
        if lattice is None or lattice.num_downsets > _MANY_UPSETS:
            self._search_some(min(_SOME_UPSETS, self._statistics["upsets"] / 4))
        if lattice is not None:
            chains = Chains(problem, lattice, self._until)
            self._bound = max(self._bound, chains.first_bound)
            is_proved = self._close_in(chains, range(len(problem.nodes)), proves=True)
        if is_proved:
            self._bound = self._seconds
        return Found(
            plan=self._plan,
            seconds=self._seconds,
            bound_seconds=self._bound,
            stop=_stop(is_proved, bool(self._plan)),
            statistics=self._statistics,
        )

    def _search_some(self, most: float) -> None:
        """Look for plans over some upsets: those of orders of the nodes, then, where these are not
        too many, those that keep branches abreast."""
        problem, count = self._problem, len(self._problem.nodes)
        by_level = order_by_level(problem)
        abreast = reorder(problem, by_level)
        for order in ([*range(count)], order_by_branch(problem), by_level):
            self._search_restricted(order, line_up(problem), count + 1)
        for distance in _DISTANCES:
            self._search_restricted(by_level, keep_abreast(abreast, distance), int(most))

    def _search_restricted(
        self, order: Sequence[int], extra: Sequence[tuple[int, int]], max_upsets: int
    ) -> None:
        problem = reorder(self._problem, order)
        lattice = find_upsets(problem, max_upsets, extra)
        if lattice is not None:
            chains = Chains(problem, lattice, self._until_all)
            self._bound = max(self._bound, chains.first_bound)
            self._close_in(chains, order)

    def _close_in(self, chains: Chains, order: Sequence[int], *, proves: bool = False) -> bool:
        """Find the best plan of these chains, where that is better; whether it came to an end.
        `order`: of the nodes that they number."""
        self._low, self._order, self._proves = self._bound, order, proves
        try:
            self._rise(chains)
            while self._seconds < math.inf and self._ceiling > self._low:
                gap = self._seconds / self._low - 1 if self._low > 0 else math.inf
                if gap > _NEAR:
                    self._try(chains, min((self._low + self._seconds) / 2, self._ceiling))
                elif self._try(chains, self._ceiling):
                    self._try(chains, (self._low + self._seconds) / 2)
        except OutOfTimeError:
            return False
        finally:
            self._statistics["stages_seen"] += chains.stages_seen
        return True

    def _rise(self, chains: Chains) -> None:
        first = self._low
        for step in _STEPS if first > 0 else (math.inf,):
            if self._low >= self._ceiling:
                return
            limit = first * (1 + step) if step < math.inf else math.inf
            if self._try(chains, min(limit, self._ceiling)):
                return

    @property
    def _ceiling(self) -> float:
        return self._seconds * (1 - TOLERANCE)

    def _try(self, chains: Chains, limit: float) -> bool:
        """Look for a plan within a limit; keep it, or that there is none."""
        self._statistics["limits"] += 1
        found = chains.find(limit)
        if found is None:
            self._low = limit
            if self._proves:
                self._bound = max(self._bound, limit)
            return False
        plan = [restore(stage, self._order) for stage in found]
        assert not find_fault(self._problem, plan)
        seconds = plan_seconds(self._problem, plan)
        assert seconds <= limit * (1 + 1e-9)
        if seconds < self._seconds:
            self._plan, self._seconds = tuple(plan), seconds
        return True


def _stop(is_proved: bool, has_plan: bool) -> Stop:
    if is_proved:
        return Stop.PROVED if has_plan else Stop.INFEASIBLE
    return Stop.LIMIT
