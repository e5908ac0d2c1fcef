"""Plans that a search starts from: which method goes on from which, and what is offered of them.

A search with starts looks at what is near them and at what needs no search, and at nothing else:
that is what makes it quick where a plan is there already. Knows nothing of where starts come from.
"""

from collections.abc import Sequence

from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import has_layers
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
    return (*_QUICK, *own, *(name for name in SEARCHES if name in others - kinds))


def own_starts(problem: Problem, method: str) -> list[Plan]:
    """The starts that a method goes on from."""
    return [plan for plan in problem.starts if kind_of(plan) == method]


def offer_starts(problem: Problem, attempt: Attempt) -> None:
    """Offer the starts that are among a method's plans; `hybrid` sees to its own."""
    for plan in problem.starts if attempt.method != "hybrid" else ():
        if suits(ENTRIES[attempt.method].claim, plan) and suits(attempt.claim, plan):
            try:
                attempt.offer(plan, problem.settle(plan))
            except InputError:  # what the start lacks is for whoever made it to say
                continue
