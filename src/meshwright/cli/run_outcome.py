"""What `meshwright run` leaves: the measured run as files, its losses and times for people."""

from argparse import Namespace
from math import isfinite
from typing import TYPE_CHECKING, Any

from meshwright.api import simulate
from meshwright.cli.console import print_json, print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.folder import write_folder
from meshwright.cluster.cluster import Cluster
from meshwright.compared import RUN_FILE
from meshwright.export.perfetto.compare import write_comparison
from meshwright.files import finite
from meshwright.graph.graph import Graph
from meshwright.message import remark, say
from meshwright.plan.plan import Plan
from meshwright.planned import CLUSTER_FILE, GRAPH_FILE, PLAN_FILE
from meshwright.program.program import Program
from meshwright.report.evidence import wall_seconds
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_seconds

if TYPE_CHECKING:
    from meshwright.execute.session import RankOutcome

TRACE_FILE = "trace.json"
CHECK_TOLERANCE = {"bf16": 2.0**-7, "fp16": 2.0**-10, "fp32": 1e-4}
"""Of losses, relative where they are above one, by the coarsest precision of a step's ops: sums in
another order differ in the last bits."""


def check_losses(outcome: "RankOutcome", graph: Graph) -> int:
    """Say how far the losses are from those of one process."""
    known = [limit for name, limit in CHECK_TOLERANCE.items() if name in graph.precision]
    worst, limit = 0.0, max(known, default=CHECK_TOLERANCE["fp32"])
    for step, (loss, plain) in enumerate(
        zip(outcome.losses, outcome.plain_losses, strict=True), start=1
    ):
        if not (isfinite(loss) and isfinite(plain)):
            say(f"error: losses must be finite, at step {step} got {loss}, in one process {plain}")
            return ExitCode.FAULT
        worst = max(worst, abs(loss - plain) / max(1.0, abs(plain)))
    if worst > limit:
        say(f"error: losses must be those of one process to {limit:g}, are off by {worst:.2g}")
        return ExitCode.FAULT
    remark(f"losses are those of one process, to {worst:.1e}")
    return ExitCode.DONE


def present_outcome(
    arguments: Namespace, graph: Graph, cluster: Cluster, plan: Plan, outcome: "RankOutcome"
) -> None:
    """Write what was measured where that is asked for, and print the run; of one that was stopped
    the files alone."""
    predicted, run = simulate(graph, cluster, plan, granularity="op"), outcome.run
    if arguments.output is not None and run.step_seconds:
        _write(arguments, graph, cluster, plan, predicted, outcome)
    if outcome.was_stopped:
        return
    document = run_document(outcome, predicted.program, predicted.step_seconds)
    if not run.step_seconds:
        say(f"nothing to train: {arguments.checkpoint} is at step {outcome.first_step} already")
    if arguments.json:
        print_json(document)
        return
    first = outcome.first_step
    for number, loss in enumerate(outcome.losses[first:], start=first + 1):
        print_line(f"step {number}: loss {loss:.6f}")
    if run.step_seconds:
        print_line(
            f"{len(run.step_seconds)} steps, median {format_seconds(document['step_seconds'])} "
            f"(predicted {format_seconds(predicted.step_seconds)})"
        )


def _write(
    arguments: Namespace,
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    predicted: Timeline,
    outcome: "RankOutcome",
) -> None:
    """Write the folder of a run."""
    folder, coarser = arguments.output, list[str]()
    measured = measured_timeline(predicted.program, outcome.run)
    write_folder(
        folder,
        {
            RUN_FILE: outcome.run.save,
            TRACE_FILE: lambda path: coarser.append(
                write_comparison(predicted, measured, cluster, path)
            ),
            PLAN_FILE: plan.save,
            CLUSTER_FILE: cluster.save,
            GRAPH_FILE: graph.save,
        },
    )
    if not arguments.json:
        remark(f"wrote {folder}; `meshwright compare {arguments.plan} {folder}`")
    if coarser[0]:
        remark(f"{folder / TRACE_FILE} is coarser than the steps: {coarser[0]}")


def run_document(
    outcome: "RankOutcome", program: Program, predicted_seconds: float
) -> dict[str, Any]:
    """A run in numbers; its losses are those of all steps, its times those since `first_step`."""
    run = outcome.run
    return {
        "ranks": len(set(program.instructions["device"].tolist())),
        "steps": len(run.step_seconds),
        "first_step": outcome.first_step,
        "losses": list(outcome.losses),
        "step_seconds": finite(wall_seconds(run)),
        "predicted_seconds": predicted_seconds,
        "is_emulated": run.is_emulated,
    }
