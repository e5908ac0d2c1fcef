"""Plans anew on a changed cluster, from the plan that was there."""

from dataclasses import dataclass, replace

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.plan.answer import Answer
from meshwright.plan.request import Request
from meshwright.planned import Planned
from meshwright.replan.carry import Carried, carry_plan
from meshwright.search.portfolio import Report, find_plan


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
    """The new plan, which always is one."""


def replan_plan(
    planned: Planned,
    cluster: Cluster,
    *,
    budget_seconds: float,
    seed: int = 0,
    progress: Report | None = None,
) -> Replanned:
    """The best plan for a changed cluster that a search near the old plan finds.

    `planned` is what was asked and found before; its limits hold for the new plan, too. InputError
    where there was no plan, or where none fits now.
    """
    request, plan = planned.request, planned.plan
    if plan is None:
        raise InputError("replan: there must be a plan to start from, but none was found to fit")
    carried = carry_plan(request.graph, request.cluster, cluster, plan)
    changed = replace(request, cluster=cluster, budget_seconds=budget_seconds, seed=seed)
    answer = _search(changed, carried, progress)
    if answer.plan is None:
        raise InputError(f"replan: no plan fits on cluster {cluster.name}: {answer.binding}")
    return Replanned(planned=planned, cluster=cluster, carried=carried, answer=answer)


def _search(request: Request, carried: Carried, progress: Report | None) -> Answer:
    """Search near what was carried over; where nothing near it fits, everywhere."""

    def find(request: Request, carried: Carried) -> Answer:
        return find_plan(
            request.graph,
            request.cluster,
            method=request.method,
            seed=request.seed,
            budget_seconds=request.budget_seconds,
            sharing=request.sharing,
            progress=progress,
            microbatches=request.microbatches,
            scope=request.scope,  # type: ignore[arg-type]
            allocate=request.allocate,
            gap=request.gap,
            runtime=request.runtime,
            starts=carried.starts,
        )

    answer = find(request, carried)
    if answer.plan is None and carried.starts:
        answer = find(request, replace(carried, plan=None, repaired=()))
    return answer
