"""The best plan and the best bounds so far, who found them and when, and each method's record.

A method offers plans and bounds to its `Attempt` as it finds them, so that whatever ends it, the
best so far is known. Knows neither how plans are found nor how an answer is worded.
"""

import math
from collections.abc import Callable, Mapping

from meshwright.plan.answer import ROUNDING, RunnerUp, Stop, is_below
from meshwright.plan.moment import Moment
from meshwright.plan.plan import Plan
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.judge import Verdict


def is_proved(step_seconds: float, bound_seconds: float) -> bool:
    """Whether a step is as fast as a bound, but for rounding."""
    return step_seconds <= bound_seconds * (1 + ROUNDING)


class Attempt:
    """What one method has found, and what it has to say of that."""

    def __init__(self, incumbent: "Incumbent", method: str, claim: Claim, clock: Clock) -> None:
        self.incumbent, self.method, self.clock = incumbent, method, clock
        self.claim = claim
        """What its bound is a bound on; all its plans are among these."""
        self.plan: Plan | None = None
        """The best plan, which may lack memory."""
        self.verdict: Verdict | None = None
        """What the simulator says of that plan."""
        self.bound_seconds = 0.0
        self.refusal = ""
        """Why there is no plan at all."""
        self.search_seconds = 0.0
        self.statistics: dict[str, float] = {}
        """Counts of the search, for people only."""
        self.notes: tuple[str, ...] = ()
        self.runner_ups: tuple[RunnerUp, ...] = ()
        self.uniform_seconds: float | None = None
        """What the best plan takes without an allocation; None: nothing was allocated."""
        self.allocation_gap: float | None = None
        """How far the plan's allocation may be from the best one for it."""

    @property
    def fits(self) -> bool:
        """Whether there is a plan for which every device has room."""
        return self.verdict is not None and self.verdict.fits

    @property
    def step_seconds(self) -> float:
        """What the best plan that fits takes; infinity where none does."""
        return self.verdict.step_seconds if self.verdict and self.verdict.fits else math.inf

    @property
    def missing_bytes(self) -> float:
        """What the best plan lacks; infinity where there is none."""
        return math.inf if self.verdict is None else self.verdict.missing_bytes

    @property
    def binding(self) -> str:
        """Why no plan fits; empty where one does."""
        return self.refusal if self.verdict is None else self.verdict.binding

    @property
    def has_any(self) -> bool:
        """Whether there is anything to report."""
        return self.verdict is not None or bool(self.refusal)

    @property
    def is_proved(self) -> bool:
        """Whether no plan of the claim is faster than the best that fits."""
        return self.fits and is_proved(self.step_seconds, self.bound_seconds)

    @property
    def stop(self) -> Stop:
        """Why the method stopped."""
        if self.clock.is_interrupted:
            return Stop.INTERRUPTED
        if not self.fits:
            return Stop.INFEASIBLE
        return Stop.PROVED if self.is_proved else self.clock.stop

    def offer(self, plan: Plan, verdict: Verdict, *, wins_ties: bool = False) -> bool:
        """Keep a plan if it is better than those before; whether it is.

        Of equals the first stays, unless the new one `wins_ties`; sums in another order are equal.
        """
        known = self.verdict
        if known is not None and not verdict.rank < known.rank:
            is_tied = is_below(verdict.missing_bytes, known.missing_bytes) and is_below(
                verdict.step_seconds, known.step_seconds
            )
            if not (wins_ties and is_tied):
                return False
        self.plan, self.verdict = plan, verdict
        self.incumbent.note(self)
        return True

    def raise_bound(self, seconds: float) -> None:
        """Keep a bound on all plans of the claim if it is above those before."""
        if seconds > self.bound_seconds:
            self.bound_seconds = seconds
            self.incumbent.note(self)

    def refuse(self, reason: str, statistics: Mapping[str, float] | None = None) -> None:
        """Say why there is no plan at all."""
        self.refusal = reason or "no plan was found"
        self.statistics |= statistics or {}


class Incumbent:
    """What all methods have found so far for one problem."""

    def __init__(self, clock: Clock, tell: Callable[[Moment], None] | None = None) -> None:
        self._clock = clock
        self.tell = tell
        """Is told each moment of the history as it comes; None: nobody is."""
        self.attempts: dict[str, Attempt] = {}
        """By method, in the order in which they began."""
        self.history: list[Moment] = []
        self._heard = math.inf
        self._steps: dict[Claim, float] = {}
        self._bounds: dict[Claim, float] = {}

    def begin(self, method: str, claim: Claim, clock: Clock | None = None) -> Attempt:
        """A method's record, which it fills; `clock` is the method's own time."""
        self.attempts[method] = attempt = Attempt(self, method, claim, clock or self._clock)
        return attempt

    def adopt(self, attempt: Attempt) -> None:
        """Take over a record that was begun elsewhere."""
        self.attempts[attempt.method] = attempt
        attempt.incumbent = self
        self.note(attempt)

    def drop(self, method: str) -> None:
        """Forget a method that was interrupted before it had anything."""
        del self.attempts[method]

    @property
    def best(self) -> Attempt | None:
        """The record of the fastest plan that fits, of equals the earliest; None: none fits."""
        fitting = [each for each in self.attempts.values() if each.fits]
        return min(fitting, key=lambda each: each.step_seconds, default=None)

    @property
    def step_seconds(self) -> float:
        """What the best plan that fits takes; infinity where none does."""
        return min((each.step_seconds for each in self.attempts.values()), default=math.inf)

    @property
    def known_seconds(self) -> float:
        """What the fastest plan takes that fits, those included that are only heard of yet."""
        return min(self.step_seconds, self._heard)

    def hear(self, moment: Moment) -> None:
        """Note a plan that a method has found elsewhere, whose record will be adopted when it
        ends."""
        self._heard = min(self._heard, moment.step_seconds)

    def bound_on(self, claim: Claim) -> float:
        """The best bound so far on the plans of a claim."""
        return max(self._bounds.get(each, 0.0) for each in claim.wider)

    def note(self, attempt: Attempt) -> None:
        """Take over what a method has found, if it is better than all before.

        No assert, which -O leaves out: a false proof must never reach anybody.
        """
        claim, before = attempt.claim, self._bounds.get(attempt.claim, 0.0)
        self._bounds[claim] = max(before, attempt.bound_seconds)
        fastest = min((each.step_seconds for each in self.history[-1:]), default=math.inf)
        for each in claim.wider:
            self._steps[each] = min(self._steps.get(each, math.inf), attempt.step_seconds)
        for each, step in self._steps.items():
            if not is_below(self._bounds.get(each, 0.0), step):
                raise AssertionError(
                    f"{attempt.method}: a plan of {step!r} s is faster than what was proven to be "
                    f"impossible, {self._bounds[each]!r} s"
                )
        if attempt.step_seconds < fastest or self._bounds[claim] > before:
            moment = Moment(
                seconds=self._clock.elapsed,
                method=attempt.method,
                step_seconds=min(fastest, attempt.step_seconds),
                bound_seconds=self.bound_on(claim),
                claim=str(claim),
            )
            self.history.append(moment)
            if self.tell is not None:
                self.tell(moment)
