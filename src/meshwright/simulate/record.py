"""The form of what a simulation predicts, for programs: `meshwright simulate --json`."""

from typing import Annotated, Any

from meshwright.form import about, constant, form_schema
from meshwright.plan.record import (
    ErrorRecord,
    HybridRecord,
    MemoryRecord,
    StepRecord,
    TimesRecord,
    seconds,
    size,
)

FORMAT = "meshwright.simulation"
VERSION = 1


class SimulationRecord(StepRecord):
    """What a simulation of one step of a plan predicts."""

    format: Annotated[str, constant(FORMAT)]
    version: Annotated[int, constant(VERSION)]
    sharing: Annotated[str, about("Whether transfers share links: fair or none.")]
    step_seconds: Annotated[float | None, seconds("The time of one step.")]
    peak_bytes: Annotated[
        tuple[float | None, ...], size("The predicted peak of each device of the cluster.")
    ]
    memory: Annotated[MemoryRecord, about("What nvidia-smi would show, and what it is made of.")]
    times: Annotated[TimesRecord, about("Where the times of ops come from.")]
    expected_error: Annotated[ErrorRecord, about("How far off the step is expected to be.")]
    launch_bound: Annotated[bool, about("Whether devices wait for their hosts to launch kernels.")]
    fits: Annotated[bool, about("Whether the peaks are within what plans may use of each device.")]
    utilisation: Annotated[
        tuple[float | None, ...], about("The part of the step for which each device computes.")
    ]
    attribution: Annotated[
        dict[str, float | None], seconds("What the step waits for, along its critical path.")
    ]
    plan: Annotated[str | None, about("The path of the plan; null: it was given by its degrees.")]
    trace: Annotated[str | None, about("The path of the trace, if one was written; else null.")]
    hybrid: Annotated[
        HybridRecord | None, about("Degrees, stages and memory of a plan of whole layers.")
    ]


def simulation_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `simulate --json`."""
    return form_schema("Meshwright simulation", SimulationRecord)
