"""`meshwright simulate`: predict one step of a plan, from a file or by its degrees."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

from meshwright.api import load_graph, simulate
from meshwright.cli.console import make_console, print_json
from meshwright.cli.document import timeline_document
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.machine import load_cluster_here, remark_cpu
from meshwright.cli.parser.degrees import DEGREES
from meshwright.cli.progress import shown_progress
from meshwright.cli.summary.answer import show_simulation
from meshwright.cli.summary.device import Detail
from meshwright.errors import InputError
from meshwright.export.perfetto.trace import write_trace
from meshwright.graph.graph import Graph
from meshwright.message import remark, say
from meshwright.plan.plan import Plan
from meshwright.planned import GRAPH_FILE, beside_plan, read_cluster_beside, read_plan
from meshwright.report.hybrid_facts import hybrid_facts


def run_simulate(arguments: Namespace) -> int:
    """Simulate, write the trace when asked to, and show the prediction."""
    degrees = _given_degrees(arguments)
    source, name = arguments.graph, arguments.cluster
    if degrees and (source is None or name is None):
        raise InputError("simulate: a plan by its degrees needs a model and --cluster")
    if source is None:
        source = beside_plan(arguments.plan, GRAPH_FILE)
    graph = load_step(source, arguments)
    cluster = read_cluster_beside(arguments.plan) if name is None else load_cluster_here(name)
    if degrees:
        plan = Plan.from_degrees(graph, cluster, **degrees)
    else:
        plan = read_plan(arguments.plan, graph)
    if arguments.runtime is not None:
        plan = replace(plan, runtime=arguments.runtime)
    coarser = ""
    with shown_progress(f"simulating {graph.name}", arguments) as progress:
        timeline = simulate(
            graph,
            cluster,
            plan,
            sharing=arguments.sharing,
            granularity=arguments.granularity,
            with_links=arguments.trace is not None,
        )
        if arguments.trace is not None:
            coarser = write_trace(timeline, cluster, arguments.trace, progress)
    if coarser:
        remark(f"{arguments.trace} is coarser than the step: {coarser}")
    remark_cpu(cluster)
    facts = None if plan.schedule is None else hybrid_facts(graph, cluster, plan, timeline)
    places = arguments.plan, arguments.trace
    document = timeline_document(timeline, graph, cluster, facts, *places, plan.runtime)
    if arguments.json:
        print_json(document)
    else:
        shown = facts if degrees else None  # of a file: its devices
        detail = Detail.of(arguments)
        show_simulation(make_console(), graph, cluster, plan, timeline, shown, detail)
    if not document["fits"]:
        say("the plan does not fit into its devices' memory")
    return ExitCode.DONE


def load_step(source: str, arguments: Namespace) -> Graph:
    """The step that options ask for of a model or a graph file."""
    return load_graph(
        source,
        arguments.batch,
        precision=arguments.precision,
        compile=arguments.compile,
        foreach=arguments.foreach,
        say=remark,
    )


def _given_degrees(arguments: Namespace) -> dict[str, Any]:
    """The words of the command line that describe a plan; none: it is in a file."""
    words = {name: getattr(arguments, name) for name in DEGREES}
    given = {name: value for name, value in words.items() if value is not None}
    if arguments.plan is None and not given:
        raise InputError("simulate: needs --plan FILE, or degrees such as --data 4; got neither")
    if arguments.plan is not None and given:
        first = next(iter(given)).replace("_", "-")
        raise InputError(f"simulate: needs --plan FILE or degrees, got both --plan and --{first}")
    return given
