"""The options of `meshwright replan`."""

from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from meshwright.cli.parser.option import (
    CLUSTER,
    PLAN_FOLDER,
    add_command,
    add_json,
    add_output,
    add_path,
    add_value,
    positive,
    whole,
)
from meshwright.cli.parser.whatif import CHANGES, option_of
from meshwright.errors import InputError
from meshwright.units import parse_bytes_per_second

DEVICE_CHANGES = tuple(name for name in CHANGES if name != "batch")
"""The changes of `whatif` that a run can go on with."""


def add_replan(commands: Any) -> None:
    """Add the command `meshwright replan` with its options."""
    parser = add_command(
        commands,
        "replan",
        "plan anew after hosts or links have changed, and say what moving to the new plan takes",
    )
    parser.epilog = (
        "The search starts from the plan that is there. What moves is what each device needs of "
        "parameters and optimiser state and does not hold already."
    )
    parser.add_argument("plan", type=Path, metavar="DIR", help=PLAN_FOLDER)
    parser.add_argument("--cluster", metavar="C", help=f"{CLUSTER}, in place of the old one")
    add_path(
        parser,
        "--bandwidth",
        'a JSON object of measured rates by the names of links, such as {"leaf0": "40 GB/s"}',
    )
    for name in DEVICE_CHANGES:
        metavar, text = CHANGES[name]
        parser.add_argument(
            option_of(name), action="append", default=[], metavar=metavar, help=text
        )
    add_value(
        parser,
        "--checkpoint-every",
        whole,
        "STEPS",
        "how many steps are left to the next checkpoint, at the most: whether moving pays by then",
    )
    parser.add_argument(
        "--storage",
        type=_rate,
        metavar="RATE",
        help="what the storage of checkpoints gives to all hosts together, such as 5GB/s "
        "(default: as much as hosts' links take)",
    )
    add_value(
        parser,
        "--budget",
        positive,
        "S",
        "seconds for the search (default: a sixth of the plan's)",
    )
    add_output(parser, "write the new plan there, as `meshwright plan -o` does")
    add_json(parser)


def _rate(text: str) -> float:
    """A rate above 0, in bytes a second."""
    try:
        value = parse_bytes_per_second(text, "storage")
    except InputError as error:
        raise ArgumentTypeError(str(error)) from None
    if not value > 0:
        raise ArgumentTypeError(f"must be positive, got {text}")
    return value
