"""What going over to a new plan takes and brings: steps before and after, bytes that move, and
whether moving pays before the next checkpoint."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.explain.explain import need_request
from meshwright.explain.record import RemedyRecord
from meshwright.explain.remedy import Remedy, find_remedies
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.planned import Planned
from meshwright.program.lower import choose_granularity
from meshwright.replan.difference import Difference, find_difference
from meshwright.replan.move import Moves, find_moves
from meshwright.replan.record import (
    FORMAT,
    VERSION,
    DifferenceRecord,
    MovesRecord,
    TransitionRecord,
)
from meshwright.replan.replan import BUDGET_PART, Replanned, need_plan, search_near
from meshwright.search.judge import try_plan
from meshwright.table import as_text
from meshwright.units import format_bytes, format_count, format_percent, format_seconds

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedStep:
    """The old plan on the new cluster, as much of it as is left."""

    description: str
    step_seconds: float
    """Infinity: it cannot run."""
    obstacle: str
    """Why it cannot run; empty: it can."""
    moves: Moves | None
    """What moves for it: with ZeRO, shards of the state are divided anew; None: it cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The plan for a changed cluster, and what going over to it takes and brings."""

    model: str
    cluster: Cluster
    """The changed cluster."""
    before_seconds: float
    """The old plan's step on the old cluster."""
    carried: CarriedStep
    answer: Answer
    """The new plan with its step and the bound; without a plan it says what is in the way."""
    difference: Difference | None
    """What changes; None: there is no new plan."""
    moves: Moves | None
    """What moves; None: there is no new plan."""
    steps_to_checkpoint: float | None
    """How many steps are left until the next checkpoint; None: not said."""
    remedies: tuple[Remedy, ...] = ()
    """Where nothing fits: the smallest changes that do."""

    @property
    def fits(self) -> bool:
        """Whether there is a new plan."""
        return self.answer.plan is not None

    @property
    def is_forced(self) -> bool:
        """Whether the old plan cannot run on what is left, so that moving is no choice."""
        return bool(self.carried.obstacle)

    @property
    def gained_seconds(self) -> float:
        """How much shorter a step is than with the old plan carried over."""
        return self.carried.step_seconds - self.answer.step_seconds

    @property
    def moving_seconds(self) -> float:
        """How much longer moving to the new plan takes than moving to what was carried over."""
        if self.moves is None:
            return math.inf
        spent = 0.0 if self.carried.moves is None else self.carried.moves.seconds
        return max(0.0, self.moves.seconds - spent)

    @property
    def break_even_steps(self) -> float:
        """After so many steps moving has paid; infinity: never; 0: it is forced or free."""
        if self.is_forced or self.moving_seconds == 0:
            return 0.0 if self.fits else math.inf
        return self.moving_seconds / self.gained_seconds if self.gained_seconds > 0 else math.inf

    @property
    def pays(self) -> bool | None:
        """Whether moving pays before the next checkpoint; None: nobody said when that is."""
        if not self.fits:
            return False
        if self.is_forced:
            return True
        if self.gained_seconds <= 0:
            return False
        if self.steps_to_checkpoint is None:
            return None
        return self.break_even_steps <= self.steps_to_checkpoint

    @property
    def verdict(self) -> str:
        """Whether to move, in a sentence."""
        return word_verdict(self)

    @property
    def facts(self) -> dict[str, str]:
        """The transition for people, a line each."""
        facts = {"before": f"{format_seconds(self.before_seconds)} a step"}
        facts["carried over"] = (
            self.carried.obstacle
            or f"{format_seconds(self.carried.step_seconds)} a step, {self.carried.description}"
        )
        if self.fits:
            facts["planned anew"] = (
                f"{format_seconds(self.answer.step_seconds)} a step, "
                f"{self.answer.plan.description if self.answer.plan else ''}"
            )
            facts["bound"] = format_seconds(self.answer.bound_seconds)
        if self.moves is not None:
            facts["moves"] = (
                f"{format_bytes(self.moves.total_bytes)} in {format_seconds(self.moves.seconds)}"
            )
        return {**facts, "verdict": self.verdict}

    def __str__(self) -> str:
        return as_text(self.facts)

    def to_dict(self, plan: str | None = None) -> dict[str, Any]:
        """The transition for programs; `meshwright schema replan` tells the fields. `plan` is the
        path of the new plan's file."""
        carried, answer, moves = self.carried, self.answer, self.moves
        return TransitionRecord(
            format=FORMAT,
            version=VERSION,
            model=self.model,
            cluster=self.cluster.name,
            num_devices=self.cluster.num_devices,
            method=answer.method,
            before_seconds=self.before_seconds,
            carried_seconds=carried.step_seconds,
            carried=carried.description,
            obstacle=carried.obstacle,
            step_seconds=answer.step_seconds,
            bound_seconds=answer.bound_seconds,
            search_seconds=answer.search_seconds,
            stop=str(answer.stop),
            binding=answer.binding,
            difference=None
            if self.difference is None
            else DifferenceRecord.of_difference(self.difference),
            moves=None if moves is None else MovesRecord.of_moves(moves),
            carried_moves=None if carried.moves is None else MovesRecord.of_moves(carried.moves),
            break_even_steps=self.break_even_steps,
            steps_to_checkpoint=self.steps_to_checkpoint,
            pays=self.pays,
            is_forced=self.is_forced,
            verdict=self.verdict,
            remedies=tuple(map(RemedyRecord.of, self.remedies)),
            plan=plan,
        ).to_dict()


def word_verdict(found: Transition) -> str:
    """Whether to move, in a sentence."""
    if not found.fits or found.moves is None:
        return f"No plan fits: {found.answer.binding}."
    takes = f"moving {format_bytes(found.moves.total_bytes)} takes"
    takes = f"{takes} {format_seconds(found.moves.seconds)}"
    if found.is_forced:
        why = f"the old plan cannot run ({found.carried.obstacle})"
        return f"Moving is forced, since {why}: {takes}."
    if found.gained_seconds <= 0:
        return "Stay with the plan as it is carried over: no plan that was found is faster."
    gain = (
        f"a step is {format_seconds(found.gained_seconds)} shorter "
        f"({format_percent(found.gained_seconds / found.carried.step_seconds)})"
    )
    if found.moving_seconds == 0:
        return f"Moving pays at once: {gain}, and nothing more has to move than in any case."
    even = f"pays after {format_count(math.ceil(found.break_even_steps), 'step')}"
    if found.pays is None:
        return f"Moving {even}: {takes}, and {gain}."
    left = f"{found.steps_to_checkpoint:,.0f} steps are left to the next checkpoint"
    if found.pays:
        return f"Moving {even}, and {left}: {takes}, and {gain}."
    return f"Moving does not pay before the next checkpoint: it {even}, and {left}."


def plan_transition(
    planned: Planned,
    cluster: Cluster,
    *,
    budget_seconds: float | None = None,
    steps_to_checkpoint: float | None = None,
    storage_bytes_per_second: float | None = None,
    progress: Report | None = None,
) -> Transition:
    """Plan anew on a changed cluster, and say what going over to the new plan takes and brings.

    `budget_seconds` is for the search; None: a seventh of the request's. `steps_to_checkpoint`:
    steps until the state is written anyway; `storage_bytes_per_second`: what its storage gives to
    all hosts together; None: not known.
    """
    if budget_seconds is None:
        budget_seconds = planned.request.budget_seconds * BUDGET_PART
    seed = planned.request.seed
    found = search_near(
        planned, cluster, budget_seconds=budget_seconds, seed=seed, progress=progress
    )
    report = progress or (lambda _: None)
    report("comparing the plans")
    return compare_plans(
        found,
        steps_to_checkpoint=steps_to_checkpoint,
        storage_bytes_per_second=storage_bytes_per_second,
        progress=progress,
    )


def compare_plans(
    found: Replanned,
    *,
    steps_to_checkpoint: float | None = None,
    storage_bytes_per_second: float | None = None,
    progress: Report | None = None,
) -> Transition:
    """What going over to a plan that was found takes and brings."""
    request, cluster, answer = found.planned.request, found.cluster, found.answer
    old = need_plan(found.planned)
    before = _judge(request, request.cluster, old)
    carried = _carry_step(found, storage_bytes_per_second)
    difference = moves = None
    remedies: tuple[Remedy, ...] = ()
    if answer.plan is None:
        asked = need_request(answer.request)  # with the time that this search had
        remedies = find_remedies(asked, progress=progress)
    else:
        difference = find_difference(request.graph, old, answer.plan)
        moves = find_moves(
            request.graph,
            (request.cluster, old),
            (cluster, answer.plan),
            sharing=request.sharing,
            storage_bytes_per_second=storage_bytes_per_second,
        )
    return Transition(
        model=request.graph.name,
        cluster=cluster,
        before_seconds=before[0],
        carried=carried,
        answer=answer,
        difference=difference,
        moves=moves,
        steps_to_checkpoint=steps_to_checkpoint,
        remedies=remedies,
    )


def _carry_step(found: Replanned, storage_bytes_per_second: float | None) -> CarriedStep:
    """The step of what is left of the old plan, or why it cannot run."""
    request, plan = found.planned.request, found.carried.plan
    old = need_plan(found.planned)
    if plan is None:
        return CarriedStep(
            description="",
            step_seconds=math.inf,
            obstacle=_word_homeless(old, found.carried.homeless),
            moves=None,
        )
    step, obstacle = _judge(request, found.cluster, plan)
    moves = None
    if not obstacle:
        moves = find_moves(
            request.graph,
            (request.cluster, old),
            (found.cluster, plan),
            sharing=request.sharing,
            storage_bytes_per_second=storage_bytes_per_second,
        )
    return CarriedStep(
        description=plan.description,
        step_seconds=math.inf if obstacle else step,
        obstacle=obstacle,
        moves=moves,
    )


def _word_homeless(plan: Plan, homeless: tuple[int, ...]) -> str:
    """Which parts have no replica left that is whole."""
    name = "part" if plan.schedule is None else "stage"
    first = homeless[0]
    more = f" and {len(homeless) - 1:,} more" if len(homeless) > 1 else ""
    verb = "have" if more else "has"
    return f"{name} {first} of {len(plan.parts):,}{more} {verb} no whole replica left"


def _judge(request: Request, cluster: Cluster, plan: Plan) -> tuple[float, str]:
    """The step of a plan on a cluster, and why it cannot run there; empty: it can."""
    try:
        verdict = try_plan(request.graph, cluster, plan, request.sharing, choose_granularity(plan))
    except InputError as error:
        return math.inf, str(error)
    return verdict.step_seconds, verdict.binding
