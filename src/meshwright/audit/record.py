"""The form of an audit, for programs: `meshwright audit --json`."""

import math
from typing import Annotated, Any

from meshwright.audit.audit import Audit, Costed
from meshwright.form import about, constant, form_schema
from meshwright.plan.record import Record, seconds, size

FORMAT = "meshwright.audit"
VERSION = 1


class CostRecord(Record):
    """What a set-up takes."""

    plan: Annotated[str, about("The degrees for people.")]
    step_seconds: Annotated[float | None, seconds("The time of one step.")]
    samples_per_second: Annotated[float | None, about("Samples that are trained on a second.")]
    mfu: Annotated[
        float | None, about("Model FLOPs over what the devices would do in the step at their peak.")
    ]
    peak_bytes: Annotated[
        float | None, size("The peak of the device that has the least room left.")
    ]
    usable_bytes: Annotated[float | None, size("What a plan may use of that device.")]
    fits: Annotated[bool, about("Whether every device has the memory.")]
    limit: Annotated[str, about("What a faster step would need less of.")]

    @classmethod
    def of_cost(cls, costed: Costed, batch: float) -> "CostRecord":
        """The record of one plan."""
        step, facts = costed.step_seconds, costed.facts
        return cls(
            plan=costed.plan.description,
            step_seconds=step,
            samples_per_second=batch / step if step else math.inf,
            mfu=None if facts is None else facts.mfu,
            peak_bytes=costed.fullest_bytes,
            usable_bytes=costed.usable_bytes,
            fits=costed.fits,
            limit="" if facts is None else facts.binding,
        )


class ChangeRecord(Record):
    """A setting that the best plan has otherwise."""

    key: Annotated[str, about("Its name, as the program has it.")]
    now: Annotated[str, about("Its present value; empty: it is not set.")]
    then: Annotated[str, about("Its value in the best plan; empty: it is not set.")]


class AuditRecord(Record):
    """What a present set-up takes, and the best that the same program can be told."""

    format: Annotated[str, constant(FORMAT)]
    version: Annotated[int, constant(VERSION)]
    model: Annotated[str, about("The name of the graph.")]
    cluster: Annotated[str, about("The name of the cluster.")]
    batch: Annotated[float | None, about("Samples of a step.")]
    runtime: Annotated[str, about("Whose execution is predicted.")]
    present: Annotated[CostRecord, about("The set-up as it is.")]
    best: Annotated[CostRecord | None, about("The best plan found; null: none that fits.")]
    speedup: Annotated[float | None, about("The step of the set-up over that of the best plan.")]
    bound_seconds: Annotated[
        float | None, seconds("No plan of the kinds that were searched is faster than this.")
    ]
    stop: Annotated[str, about("Why the search stopped.")]
    changes: Annotated[tuple[ChangeRecord, ...], about("What to set otherwise.")]
    left_out: Annotated[
        tuple[str, ...], about("What of the plan that was found the program cannot be told.")
    ]
    remarks: Annotated[
        tuple[str, ...], about("Settings that are not known, or not predicted as they are.")
    ]


def audit_record(audit: Audit) -> AuditRecord:
    """An audit for programs."""
    batch = audit.graph.batch
    return AuditRecord(
        format=FORMAT,
        version=VERSION,
        model=audit.graph.name,
        cluster=audit.cluster.name,
        batch=batch,
        runtime=audit.setup.runtime,
        present=CostRecord.of_cost(audit.present, batch),
        best=None if audit.best is None else CostRecord.of_cost(audit.best, batch),
        speedup=audit.speedup,
        bound_seconds=audit.answer.bound_seconds,
        stop=str(audit.answer.stop),
        changes=tuple(ChangeRecord.of(each) for each in audit.changes),
        left_out=audit.left_out,
        remarks=audit.setup.remarks,
    )


def audit_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `audit --json`."""
    return form_schema("Meshwright audit", AuditRecord)
