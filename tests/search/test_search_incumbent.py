"""The best so far: plans in any order, bounds of every claim, and who found them when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import counted_clock
from meshwright.plan.answer import Stop
from meshwright.plan.plan import Plan, place_ops
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.judge import Verdict

NAMES = ("single", "data", "heft")


def verdict(seconds: float, missing: float = 0.0) -> Verdict:
    """What the simulator might say of a plan."""
    lacks = f"{missing:g} bytes are missing" if missing else ""
    return Verdict(
        step_seconds=seconds, peak_bytes=(1.0,), binding=lacks, missing_bytes=missing,
        over_bytes=(missing,),
    )  # fmt: skip


def plan(number: int) -> Plan:
    """Plans that differ by their device."""
    return place_ops(("op",), [number], [f"d{each}" for each in range(number + 1)])


def begin(claim: Claim = Claim.PLACEMENT) -> Attempt:
    return Incumbent(Clock()).begin("heft", claim)


def test_what_fits_comes_first_and_then_what_is_faster() -> None:
    attempt = begin()
    assert attempt.offer(plan(0), verdict(1.0, missing=8.0))
    assert attempt.step_seconds == math.inf
    assert attempt.binding == "8 bytes are missing"
    assert attempt.stop is Stop.INFEASIBLE
    assert attempt.offer(plan(1), verdict(9.0, missing=4.0)), "it lacks less"
    assert attempt.offer(plan(2), verdict(20.0)), "it fits"
    assert not attempt.offer(plan(3), verdict(5.0, missing=1.0))
    assert not attempt.offer(plan(3), verdict(20.0)), "of equals the first stays"
    assert attempt.plan == plan(2)
    assert attempt.offer(plan(3), verdict(20.0), wins_ties=True)
    assert not attempt.offer(plan(0), verdict(20.1), wins_ties=True)
    assert attempt.plan == plan(3)
    assert attempt.step_seconds == 20.0
    assert attempt.binding == ""


def test_a_bound_above_a_plan_is_never_kept() -> None:
    attempt = begin()
    attempt.raise_bound(2.0)
    attempt.raise_bound(1.0)
    assert attempt.bound_seconds == 2.0
    with pytest.raises(AssertionError, match=r"heft: a plan of 1\.5 s is faster than .* 2\.0 s"):
        attempt.offer(plan(0), verdict(1.5))
    attempt = begin()
    attempt.offer(plan(0), verdict(1.5))
    with pytest.raises(AssertionError, match="was proven to be impossible"):
        attempt.raise_bound(2.0)


def test_a_bound_holds_for_the_plans_of_its_claim_and_for_no_others() -> None:
    incumbent = Incumbent(Clock())
    incumbent.begin("placement", Claim.PLACEMENT).raise_bound(8.0)
    incumbent.begin("data", Claim.UNDIVIDED).offer(plan(0), verdict(5.0))  # no placement
    incumbent.begin("hybrid", Claim.LAYERED).offer(plan(0), verdict(1.0))
    assert incumbent.bound_on(Claim.PLACEMENT) == 8.0
    assert incumbent.bound_on(Claim.UNDIVIDED) == 0.0
    incumbent.begin("deploy", Claim.UNDIVIDED).raise_bound(4.0)
    assert incumbent.bound_on(Claim.ALLOCATED) == 4.0, "what no plan undercuts no placement does"
    assert incumbent.bound_on(Claim.LAYERED) == 0.0
    with pytest.raises(AssertionError):  # of another method, but a placement
        incumbent.begin("heft", Claim.PLACEMENT).offer(plan(1), verdict(7.0))


def test_history_has_every_improvement_with_its_time() -> None:
    with counted_clock(1.0):
        incumbent = Incumbent(Clock())  # at 1
        first = incumbent.begin("single", Claim.PLACEMENT)
        first.raise_bound(2.0)  # at 2, a second after the start
        first.offer(plan(0), verdict(9.0))
        second = incumbent.begin("data", Claim.UNDIVIDED)
        second.offer(plan(1), verdict(9.5))  # not better: no moment
        second.offer(plan(1), verdict(4.0))
    found = [
        (each.seconds, each.method, each.step_seconds, each.bound_seconds)
        for each in incumbent.history
    ]
    assert found == [
        (1.0, "single", math.inf, 2.0),
        (2.0, "single", 9.0, 2.0),
        (3.0, "data", 4.0, 0.0),
    ]
    assert incumbent.best is second


def test_a_method_that_was_dropped_is_no_more() -> None:
    incumbent = Incumbent(Clock())
    assert incumbent.best is None
    attempt = incumbent.begin("heft", Claim.PLACEMENT)
    assert not attempt.has_any
    incumbent.drop("heft")
    assert incumbent.attempts == {}
    refused = incumbent.begin("heft", Claim.PLACEMENT)
    refused.refuse("no device", {"tries": 1.0})
    assert refused.has_any
    assert (refused.binding, refused.statistics) == ("no device", {"tries": 1.0})
    assert refused.missing_bytes == math.inf


offers = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(1, 6).map(float),
        st.sampled_from((0.0, 0.0, 1.0, 2.0)),
    ),
    max_size=12,
)


def run(given_offers: list[tuple[str, float, float]]) -> Incumbent:
    incumbent = Incumbent(Clock())
    for name in NAMES:
        incumbent.begin(name, Claim.UNDIVIDED)
    for name, seconds, missing in given_offers:
        before = incumbent.step_seconds
        incumbent.attempts[name].offer(plan(0), verdict(seconds, missing))
        assert incumbent.step_seconds <= before, "the best is never worse than it was"
    return incumbent


@given(offers, st.randoms(use_true_random=False))
def test_any_order_of_offers_gives_the_same_best(
    made: list[tuple[str, float, float]], random: object
) -> None:
    shuffled = list(made)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = run(made), run(shuffled)
    fitting = [seconds for _, seconds, missing in made if missing == 0]
    assert one.step_seconds == other.step_seconds == min(fitting, default=math.inf)
    for name in NAMES:
        ranks = [(missing, seconds) for owner, seconds, missing in made if owner == name]
        for each in (one, other):
            found = each.attempts[name].verdict
            assert (found.rank if found else None) == min(ranks, default=None)
    steps = [each.step_seconds for each in one.history]
    assert steps == sorted(steps, reverse=True)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Claim)), st.booleans(), st.integers(1, 9).map(float)),
        max_size=12,
    )
)
def test_no_bound_is_ever_above_the_best_plan_that_it_holds_for(
    events: list[tuple[Claim, bool, float]],
) -> None:
    incumbent = Incumbent(Clock())
    attempts = {claim: incumbent.begin(claim.name, claim) for claim in Claim}
    try:
        for claim, is_plan, seconds in events:
            if is_plan:
                attempts[claim].offer(plan(0), verdict(seconds))
            else:
                attempts[claim].raise_bound(seconds)
    except AssertionError:
        plans = [(claim, seconds) for claim, is_plan, seconds in events if is_plan]
        bounds = [(claim, seconds) for claim, is_plan, seconds in events if not is_plan]
        assert any(
            wide in claim.wider and bound > step for claim, step in plans for wide, bound in bounds
        ), "it was refused for a reason"
        return
    for claim, attempt in attempts.items():
        assert incumbent.bound_on(claim) <= attempt.step_seconds
