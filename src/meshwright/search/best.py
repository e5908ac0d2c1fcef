"""The best of the answers of several methods, and each of them in a line."""

import math
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

from meshwright.plan.answer import Answer, Stop
from meshwright.search.judge import refuse, settle_stop
from meshwright.search.method.bandwidth.joint.joint import GAP, UNIFORM
from meshwright.units import format_seconds


def best_answer(answers: Mapping[str, Answer], bound: float, started: float, stop: Stop) -> Answer:
    """The fastest that fits, with the bound on all plans; else why the nearest does not fit."""
    statistics = {f"{name}_seconds": each.step_seconds for name, each in answers.items()}
    of_hybrid = answers.get("hybrid")
    if of_hybrid is not None and of_hybrid.bound_seconds <= 0:
        of_hybrid = None  # the step was not for it
    if of_hybrid is not None:
        bound = min(bound, of_hybrid.bound_seconds)  # the other is of ops that are not divided
    if any(UNIFORM in each.statistics for each in answers.values()):
        statistics[UNIFORM] = min(
            each.statistics.get(UNIFORM, each.step_seconds) for each in answers.values()
        )
    winner = min(answers, key=lambda name: answers[name].step_seconds)
    best = answers[winner]
    if GAP in best.statistics:
        statistics[GAP] = best.statistics[GAP]
    if best.plan is None:
        lacking = {name: _missing(each) for name, each in answers.items()}
        nearest = min(lacking, key=lambda name: lacking[name])
        binding = f"{answers[nearest].binding} (by the nearest method, {nearest})"
        if of_hybrid is not None:  # of all plans its own need the least, so it knows what would do
            nearest, binding = "hybrid", of_hybrid.binding
        peak_bytes = answers[nearest].peak_bytes
        return refuse("auto", binding, bound, started, statistics, peak_bytes, stop)
    return replace(
        best,
        method=f"auto:{winner}",
        notes=(),  # of what one method looked at; the bound is of all plans
        bound_seconds=bound,
        stop=settle_stop(stop, best.step_seconds, bound),
        search_seconds=perf_counter() - started,
        statistics=statistics,
    )


def _missing(answer: Answer) -> float:
    return answer.statistics.get("missing_bytes", math.inf)


def describe_answer(name: str, answer: Answer) -> str:
    """The step that a method found and how long it took, or why none fits."""
    if answer.plan is None:
        return f"{name}: no plan fits: {answer.binding}"
    return (
        f"{name}: {format_seconds(answer.step_seconds)} a step "
        f"({format_seconds(answer.search_seconds)} to find)"
    )
