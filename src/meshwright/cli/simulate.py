"""`meshwright simulate`: predict one step of a plan that is already there."""

from argparse import Namespace

from meshwright.api import load_graph, simulate
from meshwright.cli.console import make_console, print_json
from meshwright.cli.device_summary import Detail
from meshwright.cli.document import timeline_document
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.plan_folder import GRAPH_FILE, beside_plan, read_cluster_beside, read_plan
from meshwright.cli.progress import shown_progress
from meshwright.cli.summary import show_simulation
from meshwright.cluster.catalogue import load_cluster
from meshwright.export.perfetto import write_trace
from meshwright.message import remark, say


def run_simulate(arguments: Namespace) -> int:
    """Simulate, write the trace when asked to, and show the prediction."""
    plan = read_plan(arguments.plan)
    source = arguments.graph or beside_plan(arguments.plan, GRAPH_FILE)
    graph = load_graph(source, arguments.batch, say=remark)
    name = arguments.cluster
    cluster = read_cluster_beside(arguments.plan) if name is None else load_cluster(name)
    with shown_progress(f"simulating {graph.name}", arguments):
        timeline = simulate(
            graph,
            cluster,
            plan,
            sharing=arguments.sharing,
            granularity=arguments.granularity,
            with_links=arguments.trace is not None,
        )
        if arguments.trace is not None:
            write_trace(timeline, cluster, arguments.trace)
    document = timeline_document(timeline, graph, cluster)
    if arguments.json:
        trace = None if arguments.trace is None else str(arguments.trace)
        print_json({**document, "plan": str(arguments.plan), "trace": trace})
    else:
        detail = Detail.of(arguments)
        show_simulation(make_console(), graph, cluster, plan, timeline, detail)
    if not document["fits"]:
        say("the plan does not fit into its devices' memory")
    return ExitCode.DONE
