"""Reads a plan and a run of it, with the prediction and the measurement as timelines.

Knows the names of the files, nothing of what is done with them.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.errors import errors_in
from meshwright.graph.fuse import may_be_fused
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.planned import GRAPH_FILE, PLAN_FILE, read_plan_folder
from meshwright.simulate.measured import Run, measured_timeline
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

RUN_FILE = "run.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan with all that it was made for, a run of it, and both timelines."""

    graph: Graph
    cluster: Cluster
    plan: Plan
    run: Run
    predicted: Timeline
    measured: Timeline


def read_run(path: Path) -> Run:
    """The run in a file, or in a folder that `meshwright run -o` has written."""
    return Run.load(path / RUN_FILE if os.path.isdir(path) else path)


def read_case(plan_path: Path, run_path: Path, *, with_links: bool) -> Case:
    """A plan's folder or file, and the folder or file of a run of it."""
    run = read_run(run_path)
    graph, cluster, plan = read_plan_folder(plan_path)
    own = run_path / PLAN_FILE
    if own.is_file():
        ran = Plan.load(own)
        steps = run_path / GRAPH_FILE
        if may_be_fused(graph) and steps.is_file() and _stands_for(plan, ran):
            graph, plan = Graph.load(steps), ran
        else:  # a run may have batch norm's statistics otherwise than planned
            plan = replace(plan, batch_statistics=ran.batch_statistics)
    predicted = simulate(graph, cluster, plan, granularity="op", with_links=with_links)
    with errors_in(run_path):
        measured = measured_timeline(predicted.program, run)
    return Case(
        graph=graph, cluster=cluster, plan=plan, run=run, predicted=predicted, measured=measured
    )


def _stands_for(plan: Plan, ran: Plan) -> bool:
    """Whether a plan of merged ops is another in the ops of the step, as it was run."""
    return len(plan.parts) == len(ran.parts) and all(
        part.devices == other.devices and set(part.ops) <= set(other.ops)
        for part, other in zip(plan.parts, ran.parts, strict=True)
    )
