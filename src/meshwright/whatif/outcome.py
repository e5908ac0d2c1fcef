"""What a changed request comes to: the step of the plan that is there, and of one searched anew."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.change.apply import change_request
from meshwright.change.kind import Change
from meshwright.errors import InputError
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.search.pool.engine import Engine
from meshwright.search.portfolio import answer_request
from meshwright.simulate.footprint import footprint
from meshwright.simulate.simulate import simulate
from meshwright.whatif.price import SECONDS_PER_HOUR, Price, price_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one plan, simulated."""

    seconds: float = math.inf
    """Infinity: there is no such plan, or it cannot be used there; see `obstacle`."""
    headroom: float = -math.inf
    """The part of the memory that plans may use which is left on the fullest device; negative where
    the plan does not fit."""
    description: str = ""
    """The plan in words."""
    obstacle: str = ""
    """Why there is no step."""
    plan: Plan | None = field(default=None, repr=False)

    @property
    def fits(self) -> bool:
        """Whether there is a step and its plan fits into memory."""
        return self.headroom >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one question comes to."""

    name: str
    """The question in words."""
    cluster: str
    num_devices: int
    batch: float
    """Samples in a step."""
    kept: Step | None
    """The plan that was there before, re-simulated; None: it was not asked for."""
    planned: Step
    """The plan of a search with the same request."""
    bound_seconds: float
    """No plan of the kind that was searched can be faster; zero where nothing is proven."""
    stop: Stop | None
    """Why the search stopped; None: it could not begin."""
    price_per_hour: float
    """What the cluster costs an hour; NaN: it is not known."""
    shared: Step | None = None
    """The fastest of the plans that were found for other questions; None: they were not tried."""

    @property
    def best(self) -> Step:
        """The fastest plan of all that fit: of what was found for this question, for others, and
        the same plan; where none fits, what was found for this question."""
        return _faster(_faster(self.planned, self.shared), self.kept)

    @property
    def samples_per_second(self) -> float:
        """The throughput of the best plan; zero where none fits."""
        return self.batch / self.best.seconds

    @property
    def cost_per_step(self) -> float:
        """What a step of the best plan costs; NaN where prices are not known."""
        return self.price_per_hour / SECONDS_PER_HOUR * self.best.seconds

    @property
    def cost_per_sample(self) -> float:
        """What a sample costs."""
        return self.cost_per_step / self.batch


def _faster(step: Step, other: Step | None) -> Step:
    """The other step where it is of use and faster."""
    return other if other is not None and other.fits and other.seconds < step.seconds else step


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Changes that are to be made together, and what they are called."""

    name: str
    changes: tuple[Change, ...] = ()


def find_outcome(
    request: Request,
    plan: Plan | None,
    question: Question,
    *,
    prices: Sequence[Price] = (),
    engine: Engine | None = None,
    keeps: bool = True,
    widens: bool = False,
) -> Outcome:
    """Change the request, re-simulate the plan and search for a new one.

    `keeps`: whether the plan is simulated again. `widens`: whether of the plans that the search
    names that with the most memory left is taken, in place of the fastest.
    """
    changed = change_request(request, question.changes)
    try:
        answer: Answer | None = answer_request(changed, engine=engine)
    except InputError as error:
        answer, planned = None, Step(obstacle=str(error))
    if answer is not None:
        planned = _widest(changed, answer) if widens else _planned_step(changed, answer)
    return Outcome(
        name=question.name,
        cluster=changed.cluster.name,
        num_devices=changed.cluster.num_devices,
        batch=changed.graph.batch,
        kept=simulate_again(changed, plan) if keeps else None,
        planned=planned,
        bound_seconds=0.0 if answer is None else answer.bound_seconds,
        stop=None if answer is None else answer.stop,
        price_per_hour=price_per_hour(changed.cluster, prices),
    )


def simulate_again(request: Request, plan: Plan | None) -> Step:
    """One step of a plan as a request has it; a plan that is not legal there has none."""
    if plan is None:
        return Step(obstacle="there was no plan")
    try:
        timeline = simulate(request.graph, request.cluster, plan, sharing=request.sharing)
    except InputError as error:
        return Step(description=plan.description, obstacle=str(error), plan=plan)
    memory = footprint(request.graph, request.cluster, timeline)
    used = memory.peak_bytes / np.maximum(memory.usable_bytes, 1.0)
    left = np.where(memory.peak_bytes > 0, 1 - used, 1.0)
    return Step(
        seconds=timeline.step_seconds,
        headroom=float(left.min()),
        description=plan.description,
        plan=plan,
    )


def find_fastest(request: Request, plans: Sequence[Plan], question: Question) -> Step | None:
    """The fastest of some plans for the changed request; None: none of them is of use there."""
    changed = change_request(request, question.changes)
    steps = [step for plan in plans if (step := simulate_again(changed, plan)).fits]
    return min(steps, key=lambda step: step.seconds, default=None)


def _planned_step(request: Request, answer: Answer) -> Step:
    if answer.plan is None:
        return Step(obstacle=answer.binding or "no plan fits")
    step = simulate_again(request, answer.plan)
    return replace(step, seconds=answer.step_seconds)


def _widest(request: Request, answer: Answer) -> Step:
    """Of the plan and its runners-up that with the most memory left."""
    if answer.plan is None:
        return _planned_step(request, answer)
    others = [simulate_again(request, each.plan) for each in answer.runner_ups]
    steps = [_planned_step(request, answer), *(each for each in others if each.fits)]
    return max(steps, key=lambda step: step.headroom)
