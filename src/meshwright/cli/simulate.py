"""`meshwright simulate`: predict one step of a plan that is already there."""

from argparse import Namespace

from meshwright.api import load_graph, simulate
from meshwright.cli.console import make_console, print_json
from meshwright.cli.document import timeline_document
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.progress import shown_progress
from meshwright.cli.summary import show_simulation
from meshwright.cluster.catalogue import load_cluster
from meshwright.export.perfetto import write_trace
from meshwright.message import say
from meshwright.plan.plan import Plan


def run_simulate(arguments: Namespace) -> int:
    """Simulate, write the trace when asked to, and show the prediction."""
    graph = load_graph(arguments.graph, arguments.batch, say=say)
    cluster = load_cluster(arguments.cluster)
    plan = Plan.load(arguments.plan)
    with shown_progress(f"simulating {graph.name}", is_quiet=arguments.json):
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
        print_json({**document, "plan": arguments.plan, "trace": trace})
    else:
        show_simulation(make_console(), graph, cluster, plan, timeline)
    if not document["fits"]:
        say("the plan does not fit into its devices' memory")
    return ExitCode.DONE
