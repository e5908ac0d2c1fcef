"""The options of `meshwright export` and `meshwright audit`."""

from pathlib import Path
from typing import Any

from meshwright.cli.parser.option import (
    CLUSTER,
    GRAPH,
    PLAN_FOLDER,
    add_batch,
    add_command,
    add_json,
    add_precision,
    count,
    positive,
)
from meshwright.export.name import TARGETS

WEIGHTS = "weights"
"""The one target that takes a checkpoint in place of a plan."""


def add_export(commands: Any) -> None:
    """Add the command `meshwright export` with its options."""
    parser = add_command(
        commands, "export", "write a plan, or a checkpoint's weights, as files of other programs"
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="PLAN|CHECKPOINT",
        help=f"{PLAN_FOLDER}; with --to {WEIGHTS} a folder of `run --checkpoint`",
    )
    about = "\n".join(f"{name}: {text}" for name, text in TARGETS.items())
    parser.add_argument(
        "--to",
        dest="target",
        required=True,
        choices=(*TARGETS, WEIGHTS),
        metavar="TARGET",
        help=f"what to write\n{about}\n{WEIGHTS}: the weights of the latest checkpoint as "
        f"safetensors files, in the Hub's layout",
    )
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="OUT", help="where to write"
    )
    parser.add_argument(
        "--model",
        default="",
        metavar="MODEL",
        help="what the plan is of, for --to pytorch: package.module:factory, or a model of the zoo "
        "that transformers has (default: by the name of the plan's graph)",
    )
    add_json(parser)


def add_audit(commands: Any) -> None:
    """Add the command `meshwright audit` with its options."""
    parser = add_command(
        commands, "audit", "say what a present set-up takes, and how much faster it could be"
    )
    parser.add_argument(
        "config",
        type=Path,
        metavar="CONFIG",
        help="Megatron-LM's arguments (a shell script, a list or YAML), a DeepSpeed JSON, a "
        "torchtitan TOML or Python module, or an accelerate YAML, recognised by its content; "
        "nothing in it is executed",
    )
    parser.add_argument("--model", metavar="MODEL|GRAPH", help=f"{GRAPH}; default: the file's own")
    parser.add_argument("--cluster", required=True, metavar="C", help=CLUSTER)
    parser.add_argument(
        "--budget", type=positive, default=30.0, metavar="S", help="seconds of search (default: 30)"
    )
    add_batch(parser)
    parser.add_argument(
        "--microbatches",
        type=count,
        metavar="N",
        help="parts of each replica's samples, where the file does not say it, as accelerate's",
    )
    add_precision(parser)
    add_json(parser)
