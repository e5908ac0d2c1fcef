"""The forms of what is answered, for programs: `meshwright whatif --json` and `sweep --json`."""

from typing import Annotated, Any, Self

from meshwright.form import about, constant, form_schema
from meshwright.plan.record import Record, seconds
from meshwright.whatif.outcome import Outcome, Step

FORMAT, SWEEP_FORMAT = "meshwright.whatif", "meshwright.sweep"
VERSION = 1


class PlanStepRecord(Record):
    """One step of one plan."""

    step_seconds: Annotated[float | None, seconds("The simulated step; null: there is none.")]
    fits: Annotated[bool, about("Whether the plan fits into the memory of its devices.")]
    headroom: Annotated[
        float | None,
        about("The part of the usable memory that is left on the fullest device; null: no step."),
    ]
    description: Annotated[str, about("The plan in words.")]
    obstacle: Annotated[str, about("Why there is no step; empty: there is one.")]

    @classmethod
    def of_step(cls, step: Step) -> Self:
        """A step for programs."""
        return cls.of(step, step_seconds=step.seconds)


class OutcomeRecord(Record):
    """What one question comes to."""

    question: Annotated[str, about("What was changed, in words.")]
    cluster: Annotated[str, about("The name of the changed cluster.")]
    num_devices: Annotated[int, about("How many devices it has.")]
    batch: Annotated[float, about("Samples in a step.")]
    kept: Annotated[
        PlanStepRecord | None,
        about("The plan that was there before, simulated again; null: it was not asked for."),
    ]
    planned: Annotated[PlanStepRecord, about("The plan of a search with the same request.")]
    shared: Annotated[
        PlanStepRecord | None,
        about("The fastest plan that was found for any question, simulated; null: not tried."),
    ]
    bound_seconds: Annotated[float | None, seconds("No plan of the kind searched is faster.")]
    stop: Annotated[
        str | None, about("Why the search stopped, as an answer has it; null: it did not begin.")
    ]
    samples_per_second: Annotated[
        float | None, about("Throughput of the fastest plan; 0: none fits.", "1 / second")
    ]
    gain: Annotated[
        float | None,
        about("Throughput over that of the first row, less 1; null: neither is known."),
    ]
    price_per_hour: Annotated[
        float | None, about("What the cluster costs an hour; null: not all prices are known.")
    ]
    cost_per_step: Annotated[float | None, about("What a step costs; null: it is not known.")]
    cost_per_sample: Annotated[float | None, about("What a sample costs; null: it is not known.")]

    @classmethod
    def of_outcome(cls, outcome: Outcome, gain: float) -> Self:
        """An outcome for programs."""
        return cls.of(
            outcome,
            question=outcome.name,
            kept=None if outcome.kept is None else PlanStepRecord.of_step(outcome.kept),
            planned=PlanStepRecord.of_step(outcome.planned),
            shared=None if outcome.shared is None else PlanStepRecord.of_step(outcome.shared),
            stop=None if outcome.stop is None else outcome.stop.value,
            gain=gain,
        )


class WhatIfRecord(Record):
    """What `whatif` says."""

    format: Annotated[str, constant(FORMAT)]
    version: Annotated[int, constant(VERSION)]
    model: Annotated[str, about("The name of the graph.")]
    method: Annotated[str, about("The method that plans are searched by.")]
    budget_seconds: Annotated[float, seconds("How long each search could take.")]
    now: Annotated[OutcomeRecord, about("The request as it is.")]
    outcomes: Annotated[
        tuple[OutcomeRecord, ...], about("What the changes come to, the greatest gain first.")
    ]
    notes: Annotated[tuple[str, ...], about("Which questions have no answer, and why.")]
    was_interrupted: Annotated[bool, about("Whether Ctrl-C has left out questions.")]


class PointRecord(OutcomeRecord):
    """One point of a sweep; `gain` is over the first point."""

    values: Annotated[dict[str, str], about("By axis: the value of this point.")]
    efficiency: Annotated[
        float | None,
        about("Throughput a device over that of the fewest devices of its curve; null: none."),
    ]


class SweepRecord(Record):
    """What `sweep` says."""

    format: Annotated[str, constant(SWEEP_FORMAT)]
    version: Annotated[int, constant(VERSION)]
    model: Annotated[str, about("The name of the graph.")]
    method: Annotated[str, about("The method that plans are searched by.")]
    budget_seconds: Annotated[float, seconds("How long each search could take.")]
    objective: Annotated[str, about("What the best point is best by: time, cost or memory.")]
    deadline_seconds: Annotated[
        float | None, seconds("The longest step that the best point may have; null: any.")
    ]
    points: Annotated[tuple[PointRecord, ...], about("All points, in the order of the axes.")]
    best: Annotated[int | None, about("Which of `points` is the best; null: none will do.")]
    notes: Annotated[tuple[str, ...], about("Which points have no answer, and why.")]
    was_interrupted: Annotated[bool, about("Whether Ctrl-C has left out points.")]


def whatif_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `whatif --json`."""
    return form_schema("Meshwright what-if", WhatIfRecord)


def sweep_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `sweep --json`."""
    return form_schema("Meshwright sweep", SweepRecord)
