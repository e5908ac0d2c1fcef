"""The options of `meshwright plan` and `meshwright simulate`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from meshwright.cli.parser.degrees import add_degrees, add_limits
from meshwright.cli.parser.option import (
    CLUSTER,
    GRAPH,
    PLAN_FOLDER,
    add_batch,
    add_command,
    add_compile,
    add_json,
    add_sharing,
    counts,
    positive,
    whole,
)
from meshwright.search.method import SEARCHES

GRANULARITIES = ("op", "part", "layer")
_METHOD_HELP = "\n".join(
    (
        "how to search (default: auto, the best of all)",
        *(f"{name}: {text}" for name, text in SEARCHES.items()),
    )
)


def add_plan(commands: Any) -> None:
    """Add `meshwright plan`."""
    parser = add_command(commands, "plan", "search for the fastest plan of a model on a cluster")
    parser.add_argument("graph", metavar="MODEL|GRAPH", help=GRAPH)
    parser.add_argument("--cluster", required=True, metavar="C", help=CLUSTER)
    parser.add_argument(
        "--method",
        default="auto",
        metavar="M",
        help=_METHOD_HELP,
    )
    parser.add_argument(
        "--budget",
        type=positive,
        default=30.0,
        metavar="S",
        help="seconds to search for (default: 30)",
    )
    parser.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="N",
        help="the same seed gives the same plan (default: 0)",
    )
    parser.add_argument(
        "--microbatches",
        type=counts,
        nargs="+",
        action="extend",
        default=[],
        metavar="M",
        help="numbers of microbatches that pipelines may use (default: whatever is best)",
    )
    parser.add_argument(
        "--allocate",
        action="store_true",
        help="share each host's network interfaces out to the destinations, too",
    )
    add_batch(parser)
    add_compile(parser)
    add_sharing(parser)
    _add_scope(parser)
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="DIR",
        help="write the plan, the answer, the trace and copies of graph and cluster there",
    )
    add_json(parser)


def _add_scope(parser: ArgumentParser) -> None:
    """What the method `hybrid` looks at, and where it computes."""
    group = parser.add_argument_group(
        "method hybrid", "Limits to what it looks at: lists with commas, by default all that fit."
    )
    add_limits(group)
    group.add_argument(
        "--engine",
        default="local",
        metavar="E",
        help="what evaluates candidates: local (default; all cores), one (this process alone), "
        "ray ($RAY_ADDRESS, or a Ray of this machine) or ray:ADDRESS; the plan is the same",
    )


def add_simulate(commands: Any) -> None:
    """Add `meshwright simulate`."""
    parser = add_command(commands, "simulate", "predict one step of a plan")
    own = "default: the one beside the plan"
    parser.add_argument("graph", nargs="?", metavar="MODEL|GRAPH", help=f"{GRAPH} ({own})")
    parser.add_argument("--cluster", metavar="C", help=f"{CLUSTER} ({own})")
    parser.add_argument("--plan", type=Path, metavar="PLAN", help=PLAN_FOLDER)
    add_batch(parser)
    add_compile(parser)
    add_sharing(parser)
    parser.add_argument(
        "--granularity",
        choices=GRANULARITIES,
        default=None,
        help="an instruction an op, one a stage's action, or one by what whole layers cost "
        "(default: op, unless the plan has too many of them)",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev there"
    )
    add_degrees(parser)
    add_json(parser)
