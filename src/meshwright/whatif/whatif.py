"""Answers what a plan's step would be after changes, beside what it is now."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.change.kind import Change
from meshwright.errors import InputError
from meshwright.interpreter import num_cores
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.table import as_frame, as_text
from meshwright.units import format_percent, format_seconds
from meshwright.whatif.ask import Inquiry, Report, ask_all, possible, share_plans, within_budget
from meshwright.whatif.outcome import Outcome, Question
from meshwright.whatif.price import Price, check_prices
from meshwright.whatif.record import FORMAT, VERSION, OutcomeRecord, WhatIfRecord
from meshwright.whatif.table import list_questions

NOW = "as it is"
"""The name of the question that changes nothing."""
TABLE_BUDGETS = 4
"""How many budgets of the request the table of all questions takes, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What changes come to, the greatest gain first."""

    model: str
    method: str
    now: Outcome
    """The request as it is: its plan simulated, and searched anew with a budget as the others."""
    outcomes: tuple[Outcome, ...]
    budget_seconds: float
    """How long each search could take."""
    notes: tuple[str, ...] = ()
    """Which questions have no answer, and why, a line each."""
    was_interrupted: bool = False
    """Whether Ctrl-C has left out questions."""

    def gain_of(self, outcome: Outcome) -> float:
        """How much more samples a second the best plan of a question does than the best now: 0.1
        are 10 % more; NaN where neither has a plan that fits."""
        return _gain(self.now, outcome)

    @property
    def facts(self) -> dict[str, str]:
        """The answers for people, a line each."""
        facts = {NOW: format_seconds(self.now.best.seconds)}
        for each in self.outcomes:
            gain = format_percent(self.gain_of(each))
            facts[each.name] = f"{format_seconds(each.best.seconds)}, gain {gain}"
        return facts

    def __str__(self) -> str:
        return as_text(self.facts)

    def to_dict(self) -> dict[str, Any]:
        """The answers for programs; `meshwright schema whatif` tells the fields."""
        return WhatIfRecord.of(
            self,
            format=FORMAT,
            version=VERSION,
            now=OutcomeRecord.of_outcome(self.now, 0.0),
            outcomes=tuple(
                OutcomeRecord.of_outcome(each, self.gain_of(each)) for each in self.outcomes
            ),
        ).to_dict()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each question."""
        rows = (self.now, *self.outcomes)
        return as_frame(
            {
                "question": [each.name for each in rows],
                "num_devices": [each.num_devices for each in rows],
                "batch": [each.batch for each in rows],
                "kept_seconds": [each.kept.seconds if each.kept else math.inf for each in rows],
                "planned_seconds": [each.best.seconds for each in rows],
                "bound_seconds": [each.bound_seconds for each in rows],
                "samples_per_second": [each.samples_per_second for each in rows],
                "cost_per_sample": [each.cost_per_sample for each in rows],
            }
        )


def answer_whatif(
    request: Request,
    plan: Plan | None,
    changes: Sequence[Change] = (),
    *,
    prices: Sequence[Price] = (),
    budget_seconds: float | None = None,
    workers: int | None = None,
    each: bool = False,
    progress: Report | None = None,
) -> WhatIf:
    """What changes come to, made together; without changes, all questions of the table.

    `budget_seconds` is for all searches; None gives each the request's own, and the table some
    times that. `each`: also every change by itself.
    """
    check_prices(prices, request.cluster)
    questions, notes = _list_questions(request, changes, each=each)
    asked = [Question(name=NOW), *questions]
    at_once = num_cores() if workers is None else workers
    if budget_seconds is None:
        turns = TABLE_BUDGETS if not changes else math.ceil(len(asked) / at_once)
        budget_seconds = request.budget_seconds * turns
    limited = within_budget(request, len(asked), budget_seconds, at_once)
    inquiry = Inquiry(request=limited, plan=plan, prices=tuple(prices))
    found = ask_all(inquiry, asked, workers=workers, progress=progress)
    if not found:
        raise KeyboardInterrupt
    was_interrupted = len(found) < len(asked)
    if not was_interrupted:
        found = share_plans(inquiry, asked, found, workers=workers, progress=progress)
    now = found[0]
    return WhatIf(
        model=request.graph.name,
        method=request.method,
        now=now,
        outcomes=tuple(sorted(found[1:], key=lambda outcome: _rank(_gain(now, outcome)))),
        budget_seconds=limited.budget_seconds,
        notes=notes,
        was_interrupted=was_interrupted,
    )


def _gain(now: Outcome, outcome: Outcome) -> float:
    before, after = now.samples_per_second, outcome.samples_per_second
    if before == 0:
        return math.inf if after > 0 else math.nan
    return after / before - 1


def _rank(gain: float) -> float:
    """The greatest gain first, what is not known last."""
    return math.inf if math.isnan(gain) else -gain


def _list_questions(
    request: Request, changes: Sequence[Change], *, each: bool
) -> tuple[list[Question], tuple[str, ...]]:
    """The questions, and why others of the table have no answer."""
    if not changes:
        return possible(request, list_questions(request))
    together = Question(name=", ".join(map(str, changes)), changes=tuple(changes))
    alone = [Question(name=str(change), changes=(change,)) for change in changes]
    questions = [together, *(alone if each and len(changes) > 1 else ())]
    kept, refused = possible(request, questions)
    if len(kept) < len(questions):
        raise InputError(refused[0].removeprefix(f"{questions[0].name}: "))
    return kept, ()
