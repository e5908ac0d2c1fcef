"""Where a search stands is told while it runs, and ends at what the answer says."""

import math

import pytest

from meshwright.plan.answer import Stop
from meshwright.plan.moment import Moment
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.portfolio import find_plan
from meshwright.search.standing import Lookout, Standing
from meshwright.search.warm import small_cluster, small_step

LONG = 600.0


def moment(method: str, step: float, bound: float, claim: Claim = Claim.UNDIVIDED) -> Moment:
    return Moment(
        seconds=1.0, method=method, step_seconds=step, bound_seconds=bound, claim=str(claim)
    )


def watched(*names: str) -> tuple[Lookout, list[Standing]]:
    told: list[Standing] = []
    return Lookout(names, Clock(LONG), told.append), told


def test_the_best_plan_and_who_found_it_are_told() -> None:
    lookout, told = watched("data", "heft")
    with lookout.searching("data"):
        lookout.note(moment("data", 8.0, 2.0))
        # A search in a process of its own is known by what it tells.
        lookout.note(moment("deploy", 9.0, 3.0))
    lookout.end("deploy")
    assert [each.methods for each in told] == [
        ("data",), ("data",), ("data", "deploy"), ("deploy",), (),
    ]  # fmt: skip
    last = told[-1]
    assert (last.found_by, last.step_seconds, last.bound_seconds) == ("data", 8.0, 3.0)
    assert last.gap == 8 / 3 - 1
    assert last.budget_seconds == LONG
    assert told[0].found_by == ""
    assert told[0].gap == math.inf


def test_a_bound_of_auto_waits_for_that_on_layers() -> None:
    lookout, told = watched("consecutive", "hybrid", "pipeline")
    with lookout.searching("consecutive"):
        lookout.note(moment("consecutive", 8.0, 3.0))
    assert told[-1].bound_seconds == 0.0
    with lookout.searching("hybrid"):
        lookout.note(moment("hybrid", 6.0, 2.0, Claim.LAYERED))
    assert told[-1].bound_seconds == 2.0, "plans of layers may be faster than 3"
    assert told[-1].found_by == "hybrid"


def test_where_layers_say_nothing_the_bound_is_that_on_the_others() -> None:
    lookout, told = watched("consecutive", "hybrid")
    lookout.note(moment("consecutive", 8.0, 3.0))
    with lookout.searching("hybrid"):
        pass
    assert told[-1].bound_seconds == 3.0


@pytest.mark.parametrize("method", ["heft", "auto"])
def test_a_search_tells_what_it_answers(method: str) -> None:
    told: list[Standing] = []
    answer = find_plan(small_step(), small_cluster(), method, budget_seconds=0.5, watch=told.append)
    steps = [each.step_seconds for each in told]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == math.inf
    last = told[-1]
    assert last.step_seconds == answer.step_seconds
    assert last.bound_seconds == answer.bound_seconds
    assert last.gap == answer.gap
    assert answer.method.removeprefix("auto:") == last.found_by
    assert last.methods == ()
    assert (method == "auto") == (len({each.methods for each in told}) > 2)


def test_a_search_ends_when_the_best_is_near_enough() -> None:
    clock = Clock(LONG)
    lookout = Lookout(("data", "hybrid"), clock, gap=0.5)
    lookout.note(moment("data", 3.0, 2.0))
    assert not clock.is_over, "plans of layers may be faster than 2"
    with lookout.searching("hybrid"):
        lookout.note(moment("hybrid", 3.0, 1.9, Claim.LAYERED))
    assert not clock.is_over
    lookout.note(moment("hybrid", 2.8, 1.9, Claim.LAYERED))
    assert clock.is_over
    assert clock.is_satisfied
    assert clock.rest(0.5).is_over
    assert clock.stop is Stop.GAP


def test_a_bound_of_another_network_ends_nothing() -> None:
    clock = Clock(LONG)
    Lookout(("heft",), clock, gap=None).note(moment("heft", 3.0, 3.0))
    assert not clock.is_over
