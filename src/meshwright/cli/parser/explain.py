"""The options of `meshwright explain`."""

from pathlib import Path
from typing import Any

from meshwright.cli.parser.option import add_command, add_json, whole


def add_explain(commands: Any) -> None:
    """Add the command `meshwright explain` with its options."""
    parser = add_command(
        commands,
        "explain",
        "say what limits a plan's step, what each decision is worth, and what memory binds",
    )
    parser.add_argument(
        "plan",
        type=Path,
        metavar="DIR",
        help="a folder as `meshwright plan -o` writes it, also one without a plan that fits: then "
        "the smallest changes that do",
    )
    parser.add_argument(
        "--simulations",
        type=whole,
        default=None,
        metavar="N",
        help="how many neighbouring plans are simulated (default: 48)",
    )
    add_json(parser)
