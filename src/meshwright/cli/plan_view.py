"""What people look at of a plan, beside it: its trace and its report."""

from argparse import Namespace
from pathlib import Path

from meshwright.cli.folder import write_folder
from meshwright.cli.progress import shown_progress
from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.trace import write_trace
from meshwright.graph.graph import Graph
from meshwright.message import remark
from meshwright.page.entry import make_entry
from meshwright.page.load import next_lines
from meshwright.page.write import write_page
from meshwright.plan.answer import Answer
from meshwright.planned import PAGE_FILE, TRACE_FILE
from meshwright.simulate.timeline import Timeline


def write_trace_beside(
    arguments: Namespace, folder: Path, timeline: Timeline, cluster: Cluster
) -> None:
    """Write the trace of a plan beside it, and say where it shows less than the step has."""
    path, coarser = folder / TRACE_FILE, list[str]()
    with shown_progress(f"writing {path}", arguments) as progress:
        write_folder(
            path.parent,
            {path.name: lambda p: coarser.append(write_trace(timeline, cluster, p, progress))},
        )
    if coarser[0]:
        remark(f"{path} is coarser than the step: {coarser[0]}")


def write_page_beside(
    arguments: Namespace,
    folder: Path,
    graph: Graph,
    cluster: Cluster,
    answer: Answer,
    timeline: Timeline | None,
) -> None:
    """Write the report of an answer beside it."""
    with shown_progress(f"writing {folder / PAGE_FILE}", arguments) as progress:
        entry = make_entry(
            graph,
            cluster,
            answer,
            timeline=timeline,
            commands=next_lines(graph, cluster, answer.plan, folder),
        )
        write_folder(folder, {PAGE_FILE: lambda path: write_page([entry], path, progress)})
