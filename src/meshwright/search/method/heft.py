"""HEFT as a method: its placement and order, made again with less memory until the plan fits."""

from meshwright.search.incumbent import Attempt
from meshwright.search.instance import explain_nowhere, order_plan
from meshwright.search.judge import tighten
from meshwright.search.problem import Problem

_TRIES = 6
"""Plans that lack memory are made again with less to fill, so often at most."""


def heft(problem: Problem, attempt: Attempt) -> None:
    """HEFT's placement and order."""
    attempt.raise_bound(problem.placement_bound)
    if reason := explain_nowhere(problem.instance):
        attempt.refuse(reason)
        return
    limits = problem.cluster.memory_bytes
    for _ in range(_TRIES):
        device_of_op, order, seconds = problem.schedule_heft(limits)
        plan = order_plan(problem.instance, device_of_op, order)
        verdict = problem.try_plan(plan)
        attempt.statistics["unshared_seconds"] = seconds
        attempt.offer(plan, verdict)
        if verdict.fits:
            break
        limits = tighten(limits, verdict)
