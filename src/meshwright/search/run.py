"""Runs one method of a problem. Knows nothing of when, and of what else is run."""

from typing import Any

from meshwright.search.claim import Claim
from meshwright.search.incumbent import Incumbent
from meshwright.search.method.name import ENTRIES
from meshwright.search.method.table import ALLOCATING, METHODS
from meshwright.search.problem import Problem
from meshwright.search.start import offer_starts


def run_method(name: str, problem: Problem, incumbent: Incumbent, **options: Any) -> None:
    """Run a method, and keep its record unless Ctrl-C has ended it before it had anything."""
    claim, method = ENTRIES[name].claim, METHODS[name]
    if problem.allocate and name in ALLOCATING:
        claim, method = Claim.ALLOCATED, ALLOCATING[name]
    attempt = incumbent.begin(name, claim, problem.clock)
    with problem.clock.heard():
        offer_starts(problem, attempt)
        method(problem, attempt, **options)
    if attempt.has_any:
        attempt.search_seconds = problem.clock.elapsed
    else:
        assert problem.clock.is_interrupted, f"{name} says nothing"
        incumbent.drop(name)
