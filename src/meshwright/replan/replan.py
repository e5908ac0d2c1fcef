"""Plans anew on a changed cluster, from the plan that was there."""

from dataclasses import dataclass, replace

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Plan
from meshwright.planned import Planned
from meshwright.replan.carry import Carried, carry_plan
from meshwright.search.portfolio import Report, answer_request

BUDGET_PART = 1 / 7
"""The part of a request's budget that a search near its plan gets, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The plan for a changed cluster, beside the one that was there."""

    planned: Planned
    """What was asked before, and the plan that was found for it."""
    cluster: Cluster
    """The cluster that is planned for now."""
    carried: Carried
    """The old plan on this cluster."""
    answer: Answer
    """The new plan; without one it says what is in the way."""


def search_near(
    planned: Planned,
    cluster: Cluster,
    *,
    budget_seconds: float,
    seed: int = 0,
    progress: Report | None = None,
) -> Replanned:
    """The best plan for a changed cluster that a search near the old plan finds, or an answer that
    none fits.

    `planned` is what was asked and found before; its limits hold for the new plan, too. InputError
    where there was no plan. Where nothing near the old plan fits, or none of its devices is there
    any more, the whole space is searched in the same time.
    """
    plan = need_plan(planned)
    request = planned.request
    carried = carry_plan(request.graph, request.cluster, cluster, plan)
    changed = replace(request, cluster=cluster, budget_seconds=budget_seconds, seed=seed)
    answer = answer_request(changed, starts=carried.starts, progress=progress)
    if answer.plan is None and carried.starts:
        answer = answer_request(changed, progress=progress)
    return Replanned(planned=planned, cluster=cluster, carried=carried, answer=answer)


def need_plan(planned: Planned) -> Plan:
    """The plan that was there; InputError where there was none."""
    if planned.plan is None:
        raise InputError(
            "replan: must have a plan to start from, but the search found none that fits"
        )
    return planned.plan
