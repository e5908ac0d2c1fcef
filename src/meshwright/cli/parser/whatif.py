"""The options of `meshwright whatif` and `meshwright sweep`."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.cli.parser.option import (
    CLUSTER,
    GRAPH,
    PLAN_FOLDER,
    add_command,
    add_json,
    add_precision,
    count,
    positive,
    whole,
)
from meshwright.errors import InputError
from meshwright.search.method.name import METHODS
from meshwright.units import parse_seconds

CHANGES: Mapping[str, tuple[str, str]] = {
    "link": (
        "LINKS=X",
        "bandwidth of links, by a factor (leaf0=2x) or to a rate (host0-leaf0=400Gb/s). LINKS: a "
        "switch; a host (what joins it to the network); two nodes A-B, or A->B one way; nvlink, "
        "pcie or network; inside, nic, level3, ...; a pattern with * and ?",
    ),
    "nic": ("X", "bandwidth of all links that join hosts to the network: 2x or 800Gb/s"),
    "latency": ("[LINKS=]X", "latency of links, or of all: 0.5x or nic=2us"),
    "memory": ("[TYPE=]X", "memory of devices of a type, or of all: h100=141GB or 2x"),
    "speed": (
        "[TYPE=]X",
        "peak FLOP/s: 2x, or at its fastest precision of 16 bits or more h100=2000TFLOP/s",
    ),
    "memory_rate": ("[TYPE=]X", "bandwidth of devices' memory: 2x or h100=4.8TB/s"),
    "type": (
        "OLD=NEW",
        "devices of another type, with the links inside hosts that it is sold with",
    ),
    "devices": ("N", "more devices (+8), fewer (-8), a factor (x2) or a number, by whole hosts"),
    "hosts": ("N", "likewise hosts; HOST=+1 adds copies of a host where they differ"),
    "without": ("HOST", "without a host, or hosts that a pattern matches"),
    "batch": ("X", "samples of a step: 2x or a number"),
}
"""By option: how its text looks, and what it changes."""


def add_whatif(commands: Any) -> None:
    """Add the command `meshwright whatif` with its options."""
    parser = add_command(
        commands, "whatif", "predict a plan's step on other devices, network or batch"
    )
    parser.epilog = (
        "Changes are made together. Without any, a table answers for each resource doubled and "
        "halved, a host more and fewer, the next devices, and the batch."
    )
    parser.add_argument("plan", type=Path, metavar="DIR", help=PLAN_FOLDER)
    for name, (metavar, text) in CHANGES.items():
        parser.add_argument(
            option_of(name), action="append", default=[], metavar=metavar, help=text
        )
    parser.add_argument(
        "--each", action="store_true", help="also answer for every change by itself"
    )
    _add_asking(parser, "four budgets of the plan's in all for the table, else one for each")


def add_sweep(commands: Any) -> None:
    """Add the command `meshwright sweep` with its options."""
    parser = add_command(
        commands, "sweep", "plan a model for many numbers of devices, batches or bandwidths"
    )
    parser.epilog = (
        "Values have commas between them, such as --devices 8,16,32 or --link leaf0=1x,2x,4x; of "
        "several options every combination is planned, the first is that of the curve."
    )
    parser.add_argument(
        "graph", metavar="MODEL|DIR", help=f"{PLAN_FOLDER}; or with --cluster {GRAPH}"
    )
    parser.add_argument("--cluster", metavar="C", help=CLUSTER)
    for name, (metavar, text) in CHANGES.items():
        parser.add_argument(
            option_of(name), action="append", default=[], metavar=metavar, help=text
        )
    parser.add_argument(
        "--weak", action="store_true", help="the batch grows with the number of devices"
    )
    parser.add_argument(
        "--objective",
        choices=("time", "cost", "memory"),
        default="time",
        help="what the best point has: the most samples a second, the lowest cost of one (with "
        "--price), or the most memory left (default: time)",
    )
    parser.add_argument(
        "--deadline",
        type=_deadline,
        metavar="T",
        help="the longest step that will do, such as 10ms; with --price the cheapest point is best",
    )
    parser.add_argument(
        "--method", metavar="M", choices=METHODS, help="of MODEL: how to search (default: auto)"
    )
    parser.add_argument("--seed", type=whole, metavar="N", help="of MODEL (default: 0)")
    add_precision(parser)
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FILE",
        help="write a plot (.svg or .png, which needs matplotlib) or a table (.csv, .json) there",
    )
    _add_asking(parser, "one budget of the plan's, or 30 s, for each")


def option_of(name: str) -> str:
    """How a change is spelt on the command line."""
    return f"--{name.replace('_', '-')}"


def _add_asking(parser: ArgumentParser, default: str) -> None:
    """Prices, and how long is searched."""
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="NAME=P",
        help="what a device of a type costs, or a host: h100=2.10/h or 'host*=20/h'",
    )
    parser.add_argument(
        "--budget",
        type=positive,
        metavar="S",
        help=f"seconds for all searches together (default: {default})",
    )
    parser.add_argument(
        "--workers",
        type=count,
        metavar="N",
        help="processes that search, a question at a time each (default: one a core)",
    )
    add_json(parser)


def _deadline(text: str) -> float:
    """A time above 0."""
    try:
        value = parse_seconds(text, "deadline")
    except InputError as error:
        raise ArgumentTypeError(str(error)) from None
    if not value > 0:
        raise ArgumentTypeError(f"must be a positive time, got {text}")
    return value
