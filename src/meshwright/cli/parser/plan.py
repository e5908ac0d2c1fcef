"""The options of `meshwright plan` and `meshwright simulate`."""

from pathlib import Path
from typing import Any

from meshwright.cli.parser.option import (
    CLUSTER,
    GRAPH,
    add_batch,
    add_command,
    add_json,
    add_sharing,
    count,
    positive,
    whole,
)

GRANULARITIES = ("op", "part")


def add_plan(commands: Any) -> None:
    """Add `meshwright plan`."""
    parser = add_command(commands, "plan", "search for the fastest plan of a model on a cluster")
    parser.add_argument("graph", metavar="MODEL|GRAPH", help=GRAPH)
    parser.add_argument("--cluster", required=True, metavar="C", help=CLUSTER)
    parser.add_argument(
        "--method",
        default="auto",
        metavar="M",
        help="how to search (default: auto, the best of all)",
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
        type=count,
        nargs="+",
        default=(),
        metavar="M",
        help="numbers of microbatches that pipelines may use (default: whatever is best)",
    )
    add_batch(parser)
    add_sharing(parser)
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="DIR",
        help="write the plan, the answer, the trace and copies of graph and cluster there",
    )
    add_json(parser)


def add_simulate(commands: Any) -> None:
    """Add `meshwright simulate`."""
    parser = add_command(commands, "simulate", "predict one step of a plan")
    parser.add_argument("graph", metavar="MODEL|GRAPH", help=GRAPH)
    parser.add_argument("--cluster", required=True, metavar="C", help=CLUSTER)
    parser.add_argument("--plan", required=True, metavar="FILE", help="a plan file")
    add_batch(parser)
    add_sharing(parser)
    parser.add_argument(
        "--granularity",
        choices=GRANULARITIES,
        default="op",
        help="an instruction an op, or one a stage's action (default: op)",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev there"
    )
    add_json(parser)
