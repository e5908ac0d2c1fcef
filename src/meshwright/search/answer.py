"""Words what methods have found as an Answer. Decides nothing but which plan is the best."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.cost.compute import time_sources
from meshwright.plan.answer import Answer, Stop
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent, is_proved
from meshwright.search.problem import Problem
from meshwright.units import format_seconds

UNIFORM = "uniform_seconds"
"""The statistic that says what the best plan takes without an allocation."""
GAP = "allocation_gap"
"""The statistic that says how far the allocation may be from the best for its plan."""


def answer_attempt(problem: Problem, attempt: Attempt) -> Answer:
    """What one method says."""
    statistics = dict(attempt.statistics)
    if attempt.verdict is not None and not attempt.fits:
        statistics["missing_bytes"] = attempt.verdict.missing_bytes
    if attempt.uniform_seconds is not None:
        statistics[UNIFORM] = attempt.uniform_seconds
    if attempt.allocation_gap is not None:
        statistics[GAP] = attempt.allocation_gap
    return _make(problem, attempt, attempt.method, statistics)


def answer_only(problem: Problem, attempt: Attempt, note: str) -> Answer:
    """What `auto` says where one method is all that it tried, with that method's own bound: one on
    all plans takes a minute on 16,384 devices."""
    answer = answer_attempt(problem, attempt)
    counts = {
        key: each
        for key, each in answer.statistics.items()
        if not key.endswith("_seconds") or key == UNIFORM
    }
    return replace(
        answer,
        method=_of_auto(attempt),
        statistics={**counts, f"{attempt.method}_seconds": attempt.step_seconds},
        notes=(note, *answer.notes),
    )


def answer_best(problem: Problem, incumbent: Incumbent, clock: Clock) -> Answer:
    """What `auto` says: the fastest plan that fits, with a bound on all plans; else why the nearest
    one does not fit."""
    attempts = list(incumbent.attempts.values())
    statistics = {f"{each.method}_seconds": each.step_seconds for each in attempts}
    layered = [each for each in attempts if each.claim is Claim.LAYERED and each.bound_seconds > 0]
    if any(each.uniform_seconds is not None for each in attempts):
        statistics[UNIFORM] = min(
            each.step_seconds if each.uniform_seconds is None else each.uniform_seconds
            for each in attempts
        )
    # Without a bound the step was not for that method, and none of its plans is in question.
    bound = min([problem.plan_bound, *(each.bound_seconds for each in layered)])
    best = incumbent.best
    if best is not None and best.allocation_gap is not None:
        statistics[GAP] = best.allocation_gap
    nearest = best or min(attempts, key=lambda each: each.missing_bytes)
    binding = f"{nearest.binding} (by the nearest method, {nearest.method})"
    if best is None and layered:  # of all plans its own need the least: it knows what would do
        nearest = layered[0]
        binding = nearest.binding
    answer = replace(
        _make(problem, nearest, _of_auto(nearest), statistics),
        bound_seconds=bound,
        binding=binding if best is None else "",
        notes=(),  # of what one method looked at; the bound is of all plans
        search_seconds=clock.elapsed,
    )
    if clock.is_interrupted:
        return replace(answer, stop=Stop.INTERRUPTED)
    if best is None:
        return replace(answer, stop=Stop.INFEASIBLE)
    if is_proved(answer.step_seconds, bound):
        return replace(answer, stop=Stop.PROVED)
    if clock.is_satisfied and answer.gap <= problem.gap:
        return replace(answer, stop=Stop.GAP)
    is_cut = clock.is_cut or any(each.stop is Stop.LIMIT for each in attempts)
    return replace(answer, stop=Stop.LIMIT if is_cut else Stop.ENDED)


def refuse_all(problem: Problem, method: str, reason: str) -> Answer:
    """The answer where no plan of any method can fit."""
    nobody = Incumbent(problem.clock).begin(method, Claim.UNDIVIDED)
    nobody.raise_bound(problem.plan_bound)
    nobody.refuse(reason)
    nobody.search_seconds = problem.clock.elapsed
    return answer_attempt(problem, nobody)


def describe_attempt(attempt: Attempt) -> str:
    """The step that a method found and how long it took, or why none fits."""
    if not attempt.fits:
        return f"{attempt.method}: no plan fits: {attempt.binding}"
    return (
        f"{attempt.method}: {format_seconds(attempt.step_seconds)} a step "
        f"({format_seconds(attempt.search_seconds)} to find)"
    )


def _of_auto(attempt: Attempt) -> str:
    return f"auto:{attempt.method}" if attempt.fits else "auto"


def _make(
    problem: Problem, attempt: Attempt, method: str, statistics: Mapping[str, float]
) -> Answer:
    graph, cluster = problem.graph, problem.cluster
    found: dict[str, Any] = {"runner_ups": attempt.runner_ups} if attempt.fits else {}
    return Answer(
        model=graph.name,
        cluster=cluster.name,
        batch=graph.batch,
        runtime=problem.runtime,
        times=time_sources(graph, cluster),
        method=method,
        plan=attempt.plan if attempt.fits else None,
        step_seconds=attempt.step_seconds,
        bound_seconds=attempt.bound_seconds,
        stop=attempt.stop,
        binding=attempt.binding,
        search_seconds=attempt.search_seconds,
        peak_bytes=attempt.verdict.peak_bytes if attempt.verdict else (),
        statistics=statistics,
        notes=attempt.notes,
        history=tuple(attempt.incumbent.history),
        **found,
    )
