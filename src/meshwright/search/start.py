"""Plans that a search starts from: which method goes on from which, and what is offered of them.

A search with starts looks at what is near them and at what needs no search, and at nothing else:
that is what makes it quick where a plan is there already. Knows nothing of where starts come from.
"""

from collections.abc import Sequence

from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import has_layers
from meshwright.plan.describe import num_slots
from meshwright.plan.plan import Plan
from meshwright.search.claim import Claim
from meshwright.search.incumbent import Attempt
from meshwright.search.method.name import ENTRIES, SEARCHES
from meshwright.search.problem import Problem

_QUICK = ("single", "data", "data-proportional", "consecutive", "pipedream")
"""Methods that simulate a few plans, whatever the start."""


def suits(claim: Claim, plan: Plan) -> bool:
    """Whether a plan is one of those that a claim is about, as far as its form tells."""
    if claim is Claim.LAYERED:
        return True
    if not plan.is_plain:
        return False
    is_placed = plan.schedule is None and all(len(part.devices) == 1 for part in plan.parts)
    if claim is Claim.PLACEMENT:
        return is_placed and not plan.allocations
    return is_placed if claim is Claim.ALLOCATED else True


def kind_of(plan: Plan) -> str:
    """The method that searches among plans of this form."""
    if not plan.is_plain:
        return "hybrid"
    if plan.schedule is not None:
        return "pipeline"
    return "placement" if suits(Claim.ALLOCATED, plan) else "deploy"


def near_methods(graph: Graph, starts: Sequence[Plan]) -> tuple[str, ...]:
    """Of the methods that `auto` tries those that look at what is near some plans, or that need no
    search."""
    kinds = {kind_of(plan) for plan in starts}
    if kinds == {"hybrid"}:
        return ("hybrid",)
    others = {"deploy"} if kinds != {"placement"} else set()
    if others and has_layers(graph):
        others.add("hybrid")
    own = [name for name in SEARCHES if name in kinds]
    return (*_QUICK, *own, *sorted(others - kinds))


def is_allowed(problem: Problem, plan: Plan) -> bool:
    """Whether a plan keeps to what the problem limits: a host less may leave other replicas."""
    counts = plan.schedule.microbatches if plan.schedule else 1
    used = {
        "microbatches": {counts},
        "pipeline": {num_slots(plan.parts)},
        "stages": {num_slots(plan.parts)},
        "replicas": {part.num_replicas for part in plan.parts},
        "data": {part.num_replicas for part in plan.parts},
        **{
            name: {getattr(part, name) for part in plan.parts}
            for name in ("tensor", "context", "expert", "zero", "recompute")
        },
    }
    limits = {name: getattr(problem.scope, name, ()) for name in used}
    if problem.microbatches:
        limits["microbatches"] = problem.microbatches
    return all(not limits[name] or values <= set(limits[name]) for name, values in used.items())


def own_starts(problem: Problem, method: str) -> list[Plan]:
    """The starts that a method goes on from."""
    return [
        plan for plan in problem.starts if kind_of(plan) == method and is_allowed(problem, plan)
    ]


def offer_starts(problem: Problem, attempt: Attempt) -> None:
    """Offer the starts that are among a method's plans; `hybrid` sees to its own."""
    for plan in problem.starts if attempt.method != "hybrid" else ():
        is_own = suits(ENTRIES[attempt.method].claim, plan) and suits(attempt.claim, plan)
        if is_own and is_allowed(problem, plan):
            try:
                attempt.offer(plan, problem.settle(plan))
            except InputError:  # what the start lacks is for whoever made it to say
                continue
