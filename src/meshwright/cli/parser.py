"""What the command line accepts. Knows nothing of what the commands do.

argparse, because it is in the standard library: no dependency, and `--help` answers at once.
"""

import math
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any, NoReturn

from meshwright import __version__
from meshwright.errors import InputError, quoted

SHARINGS = ("none", "fair")
GRANULARITIES = ("op", "part")
DEVICES = ("cpu", "cuda")

_GRAPH = (
    "a model of the zoo (`meshwright zoo`), a graph file of any known format, or "
    "package.module:factory, which is imported, called and captured"
)
_MODEL = (
    "a PyTorch model of the zoo, or package.module:factory, a function that returns "
    "(model, args) and is imported and called"
)
_CLUSTER = "a catalogue name (`meshwright cluster list`) or a cluster file"


class _Parser(ArgumentParser):
    """Raises errors instead of printing usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see `{self.prog} --help`)")


def make_parser() -> ArgumentParser:
    """The parser of every command; `command` (and `action`) in its result say which one it was."""
    parser = _Parser(
        prog="meshwright",
        description="Plans distributed training: the fastest way to train a model on a cluster.",
        epilog="Exit codes: 0 done, 2 bad input, 3 no plan fits, 130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"meshwright {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_plan(commands)
    _add_simulate(commands)
    _add_run(commands)
    _add_compare(commands)
    _add_testbed(commands)
    _add_capture(commands)
    _add_profile(commands)
    _add_cluster(commands)
    _add_zoo(commands)
    return parser


def _add_plan(commands: Any) -> None:
    parser = _add_command(commands, "plan", "search for the fastest plan of a model on a cluster")
    parser.add_argument("graph", metavar="MODEL|GRAPH", help=_GRAPH)
    parser.add_argument("--cluster", required=True, metavar="C", help=_CLUSTER)
    parser.add_argument(
        "--method",
        default="auto",
        metavar="M",
        help="how to search (default: auto, the best of all)",
    )
    parser.add_argument(
        "--budget",
        type=_positive,
        default=30.0,
        metavar="S",
        help="seconds to search for (default: 30)",
    )
    parser.add_argument(
        "--seed",
        type=_whole,
        default=0,
        metavar="N",
        help="the same seed gives the same plan (default: 0)",
    )
    parser.add_argument(
        "--microbatches",
        type=_count,
        nargs="+",
        default=(),
        metavar="M",
        help="numbers of microbatches that pipelines may use (default: whatever is best)",
    )
    _add_batch(parser)
    _add_sharing(parser)
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="DIR",
        help="write the plan, the answer, the trace and copies of graph and cluster there",
    )
    _add_json(parser)


def _add_simulate(commands: Any) -> None:
    parser = _add_command(commands, "simulate", "predict one step of a plan")
    parser.add_argument("graph", metavar="MODEL|GRAPH", help=_GRAPH)
    parser.add_argument("--cluster", required=True, metavar="C", help=_CLUSTER)
    parser.add_argument("--plan", required=True, metavar="FILE", help="a plan file")
    _add_batch(parser)
    _add_sharing(parser)
    parser.add_argument(
        "--granularity",
        choices=GRANULARITIES,
        default="op",
        help="an instruction an op, or one a stage's action (default: op)",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev there"
    )
    _add_json(parser)


def _add_run(commands: Any) -> None:
    parser = _add_command(commands, "run", "train a model by a plan, on torch.distributed")
    parser.add_argument(
        "plan",
        type=Path,
        metavar="PLAN",
        help="a folder as `meshwright plan -o` writes it, or the plan file in it",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="MODEL", help=_MODEL)
    source.add_argument(
        "--emulate",
        action="store_true",
        help="wait for the planned time of every op instead of computing; communication is real",
    )
    parser.add_argument(
        "--steps", type=_count, default=10, metavar="N", help="steps to train (default: 10)"
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="where ranks compute (default: cuda where there is one)"
    )
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"), help="of torch.distributed (default: by device)"
    )
    _add_step(parser)
    _add_autocast(parser)
    parser.add_argument(
        "--learning-rate", type=_positive, default=1e-3, metavar="R", help="default: 0.001"
    )
    parser.add_argument(
        "--loss",
        choices=("mean", "sum"),
        default="mean",
        help="whether the loss is a mean over the samples of a batch or a sum (default: mean)",
    )
    parser.add_argument(
        "--local-statistics",
        action="store_true",
        help="let batch normalisation see only the samples of its own device and microbatch",
    )
    parser.add_argument(
        "--seed", type=_whole, default=0, metavar="N", help="of weights and inputs (default: 0)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="keep checkpoints there, and resume from it"
    )
    parser.add_argument(
        "--every", type=_count, default=100, metavar="N", help="steps between them (default: 100)"
    )
    parser.add_argument(
        "--restarts",
        type=_whole,
        default=0,
        metavar="N",
        help="how often ranks are started again after one failed (default: 0)",
    )
    parser.add_argument(
        "--stall",
        type=_positive,
        default=120.0,
        metavar="S",
        help="seconds of waiting after which a rank is taken for hung (default: 120)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="also train in one process in the plain way, and compare the losses",
    )
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="DIR", help="write the run and its traces there"
    )
    _add_json(parser)


def _add_compare(commands: Any) -> None:
    parser = _add_command(commands, "compare", "hold a plan's prediction against a run of it")
    parser.add_argument(
        "plan",
        type=Path,
        metavar="PLAN",
        help="a folder as `meshwright plan -o` writes it, or the plan file in it",
    )
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="a run file, or a folder that holds run.json.gz"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace of both for ui.perfetto.dev there",
    )
    for name, text in (
        ("graph", "the graph with the ops' measured times"),
        ("cluster", "the cluster with the links' measured rates and latencies"),
        ("profile", "the measured times of kernel calls; what the file has already is kept"),
    ):
        parser.add_argument(f"--write-{name}", type=Path, metavar="FILE", help=f"write {text}")
    _add_json(parser)


def _add_testbed(commands: Any) -> None:
    parser = _add_command(commands, "testbed", "emulate a cluster's network on this machine (root)")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = _add_command(actions, "up", "build hosts as network namespaces with shaped links")
    up.add_argument("cluster", metavar="CLUSTER", help=_CLUSTER)
    _add_testbed_name(up)
    _add_json(up)
    run = _add_command(actions, "run", "build it, run a command, take it down")
    run.add_argument("cluster", metavar="CLUSTER", help=_CLUSTER)
    _add_testbed_name(run)
    run.add_argument("program", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    _add_testbed_name(_add_command(actions, "down", "take it down, or what is left of it"))


def _add_testbed_name(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--name", default="mw", metavar="N", help="to have several at once (default: mw)"
    )


def _add_capture(commands: Any) -> None:
    parser = _add_command(commands, "capture", "write a PyTorch training step as a graph file")
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="FILE",
        help="JSON, gzip when it ends in .gz",
    )  # fmt: skip
    _add_batch(parser)
    _add_step(parser)
    _add_autocast(parser)
    parser.add_argument(
        "--profile",
        dest="profiles",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="times of kernels, as `meshwright profile` measures them; of several the last counts",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="as torch.compile runs the step: element-wise ops are merged",
    )
    parser.add_argument(
        "--untie",
        action="store_true",
        help="weights that modules share are copies, which stages of a pipeline may hold apart",
    )
    parser.add_argument(
        "--no-cache",
        dest="use_cache",
        action="store_false",
        help="capture a model of the zoo again, and keep nothing",
    )
    _add_json(parser)


def _add_profile(commands: Any) -> None:
    parser = _add_command(commands, "profile", "time the kernels of a training step on a device")
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.add_argument(
        "--device", required=True, choices=DEVICES, help="where kernels run: one of this machine"
    )
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="FILE",
        help="JSON, gzip when it ends in .gz; what the file has already is kept",
    )  # fmt: skip
    parser.add_argument(
        "--type",
        dest="device_type",
        metavar="T",
        help="the device's type in clusters (default: by the name that it gives itself)",
    )
    parser.add_argument(
        "--again", action="store_true", help="also time calls that the file has already"
    )
    _add_batch(parser)
    _add_step(parser)
    _add_autocast(parser)
    _add_json(parser)


def _add_cluster(commands: Any) -> None:
    parser = _add_command(commands, "cluster", "list, show or save clusters")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_json(_add_command(actions, "list", "the names that the catalogue knows"))
    show = _add_command(actions, "show", "what a cluster is made of")
    show.add_argument("source", metavar="NAME|FILE", help=_CLUSTER)
    _add_json(show)
    save = _add_command(actions, "save", "write a cluster to a file, e.g. to edit it")
    save.add_argument("source", metavar="NAME|FILE", help=_CLUSTER)
    save.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON, by its suffix")


def _add_zoo(commands: Any) -> None:
    parser = _add_command(commands, "zoo", "list the models that need no file, or save one")
    _add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="[save]")
    save = _add_command(actions, "save", "write a model's graph to a file")
    save.add_argument("name", metavar="NAME", help="a model of the zoo")
    save.add_argument("file", type=Path, metavar="FILE", help="JSON, gzip when it ends in .gz")
    _add_batch(save)
    _add_step(save)


def _add_command(commands: Any, name: str, text: str) -> ArgumentParser:
    parser: ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show where an internal error arose"
    )
    return parser


def _add_json(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of text for people"
    )


def _add_batch(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--batch", type=_count, metavar="B", help="samples a step (default: the graph's own)"
    )


def _add_step(parser: ArgumentParser) -> None:
    """What one may choose about the step of a model of the zoo, besides its batch."""
    parser.add_argument(
        "--sequence", type=_count, metavar="N", help="tokens a sample (default: the model's own)"
    )
    parser.add_argument(
        "--precision", metavar="P", help="of weights: fp32 or bf16 (default: the model's own)"
    )
    parser.add_argument(
        "--optimizer", default="adamw", metavar="O", help="sgd, momentum, adam or adamw (default)"
    )


def _add_autocast(parser: ArgumentParser) -> None:
    parser.add_argument("--autocast", metavar="P", help="bf16 or fp16 (default: none)")


def _add_sharing(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--sharing",
        choices=SHARINGS,
        default="fair",
        help="whether transfers share links or each runs as if alone (default: fair)",
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"must be a positive number, got {quoted(text)}")
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:20]) < 2**63):
        raise ArgumentTypeError(f"must be a whole number from 0, got {quoted(text)}")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 2**53):
        raise ArgumentTypeError(f"must be a whole number from 1, got {quoted(text)}")
    return int(text)
