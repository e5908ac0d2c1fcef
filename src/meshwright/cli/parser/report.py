"""The options of `meshwright report`."""

from pathlib import Path
from typing import Any

from meshwright.cli.parser.option import add_command, add_flag, add_json, add_output, add_path


def add_report(commands: Any) -> None:
    """Add the command `meshwright report` with its options."""
    parser = add_command(
        commands, "report", "draw plans as one HTML file, which opens without a network"
    )
    parser.add_argument(
        "plans",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folders as `meshwright plan -o` or `meshwright run -o` writes them; several are held "
        "side by side",
    )
    add_output(parser, "where the report goes (default: plan.html in the first folder)", "FILE")
    add_path(parser, "--figures", "also write each figure as SVG and PNG there", "DIR")
    add_flag(parser, "--explain", "also simulate neighbouring plans, as `meshwright explain` does")
    add_flag(
        parser,
        "--whatif",
        "also search for what each resource doubled and halved brings, as `meshwright whatif` "
        "does; what a folder keeps as whatif.json is shown in any case",
    )
    add_json(parser)
