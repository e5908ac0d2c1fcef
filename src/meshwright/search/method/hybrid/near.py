"""What is near some plans: the scope with widths like theirs, and the plans themselves."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwright.errors import InputError
from meshwright.plan.plan import Plan
from meshwright.search.incumbent import Attempt
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.problem import Problem
from meshwright.search.start import is_allowed

_LAYER_ERROR = 0.1
"""How far the step of a plan op by op may be from its step by layer."""


def near_scope(scope: Scope, starts: Sequence[Plan]) -> Scope:
    """The scope with widths of teams within twice and half of those of some plans.

    Replicas, stages, microbatches, ZeRO and recomputation stay as open as they were: they have to
    take up what devices come or go.
    """
    if not starts:
        return scope
    parts = [part for plan in starts for part in plan.parts]
    return replace(
        scope,
        tensor=_near(scope.tensor, {part.tensor for part in parts}),
        context=_near(scope.context, {part.context for part in parts}),
        expert=_near(scope.expert, {part.expert for part in parts}),
    )


def _near(limits: Sequence[int], used: Iterable[int]) -> tuple[int, ...]:
    """Of the widths that are allowed (none: all) those near the ones that are used."""
    wanted = sorted({width for one in used for width in (one // 2, one, 2 * one) if width >= 1})
    kept = tuple(width for width in wanted if not limits or width in limits)
    return kept or tuple(limits)


def offer_near(problem: Problem, attempt: Attempt, best_seconds: float) -> None:
    """Offer the starts that may be faster than the best draft, by their steps by layer."""
    for plan in (each for each in problem.starts if is_allowed(problem, each)):
        try:
            quick = problem.try_plan(plan, "layer")
            if quick.fits and quick.step_seconds <= (1 + _LAYER_ERROR) * best_seconds:
                attempt.offer(plan, problem.settle(plan))
        except InputError:  # it cannot be run here; who made it says why
            continue
