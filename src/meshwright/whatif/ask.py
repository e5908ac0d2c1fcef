"""Answers many questions of one request, on all cores; Ctrl-C keeps those that are answered."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from meshwright.change.apply import change_request
from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.search.clock import Clock
from meshwright.search.pool.process import Processes
from meshwright.units import format_seconds
from meshwright.whatif.outcome import Outcome, Question, Step, find_fastest, find_outcome
from meshwright.whatif.price import Price

Report = Callable[[str], None]
MAX_SHARED = 16
"""Plans that were found for some question and are tried for all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inquiry:
    """What all questions have in common."""

    request: Request
    plan: Plan | None
    prices: tuple[Price, ...] = ()
    keeps: bool = True
    """Whether the plan that is there is simulated, too."""
    widens: bool = False
    """Whether plans with the most memory left are wanted, not the fastest."""


def ask_all(
    inquiry: Inquiry,
    questions: Sequence[Question],
    *,
    workers: int | None = None,
    progress: Report | None = None,
) -> tuple[Outcome, ...]:
    """The outcome of each question, in their order; fewer after Ctrl-C, but none half-way.

    The first is answered in this process, the others on all cores, each by a search on one core:
    a search that uses several cores gains less than so many searches do. `workers` counts the
    processes; None: one a core.
    """
    report, found = progress or (lambda _: None), list[Outcome]()
    # A search in this process may hear Ctrl-C and end, while another process has the row in hand.
    clock = Clock()
    with Processes(workers, idle_seconds=0.0) as pool, clock.listening(), clock.heard():
        for number in range(len(questions)):
            report(f"{number + 1} of {len(questions)}: {questions[number].name}")
            outcome = pool.take(_answer, inquiry, questions[number:], lambda: clock.is_interrupted)
            if outcome is None or outcome.stop is Stop.INTERRUPTED:
                break
            found.append(outcome)
            report(f"{outcome.name}: {format_seconds(outcome.best.seconds)}")
            pool.start()
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plans:
    """Plans that are tried for questions of one request."""

    request: Request
    plans: tuple[Plan, ...]


def share_plans(
    inquiry: Inquiry,
    questions: Sequence[Question],
    outcomes: Sequence[Outcome],
    *,
    workers: int | None = None,
    progress: Report | None = None,
) -> tuple[Outcome, ...]:
    """The outcomes, each with the fastest of the plans that were found for the others.

    Searches that their budget cuts short find plans by luck, too: without this, a slower network
    may seem to gain where one search found what another missed. After Ctrl-C the rest stay as they
    are.
    """
    plans: list[Plan] = []
    for outcome in outcomes:
        found = outcome.planned.plan
        if outcome.planned.fits and found is not None and found not in plans:
            plans.append(found)
    if len(plans) < 2:
        return tuple(outcomes)
    report = progress or (lambda _: None)
    context = _Plans(request=inquiry.request, plans=tuple(plans[:MAX_SHARED]))
    shared: list[Outcome] = []
    with Processes(workers) as pool, suppress(KeyboardInterrupt):
        for number, outcome in enumerate(outcomes):
            report(f"trying {len(context.plans)} plans: {outcome.name}")
            step = pool.take(_try_plans, context, questions[number:], lambda: False)
            shared.append(replace(outcome, shared=step))
            pool.start()
    return (*shared, *outcomes[len(shared) :])


def _try_plans(context: _Plans, question: Question) -> Step | None:
    return find_fastest(context.request, context.plans, question)


def _answer(inquiry: Inquiry, question: Question) -> Outcome:
    with Processes(1) as engine:
        return find_outcome(
            inquiry.request,
            inquiry.plan,
            question,
            prices=inquiry.prices,
            engine=engine,
            keeps=inquiry.keeps,
            widens=inquiry.widens,
        )


def within_budget(
    request: Request, num_questions: int, budget_seconds: float, workers: int
) -> Request:
    """The request with an equal share of a budget for each of several questions."""
    at_once = min(workers, num_questions)
    return replace(request, budget_seconds=budget_seconds * at_once / num_questions)


def possible(
    request: Request, questions: Sequence[Question]
) -> tuple[list[Question], tuple[str, ...]]:
    """The questions whose changes can be made, and of the others why not, a line each."""
    kept, notes = [], []
    for question in questions:
        try:
            change_request(request, question.changes)
        except InputError as error:
            notes.append(f"{question.name}: {error}")
        else:
            kept.append(question)
    return kept, tuple(notes)
