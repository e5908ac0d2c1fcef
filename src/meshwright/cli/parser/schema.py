"""The options of `meshwright schema`."""

from argparse import ArgumentParser
from typing import Any

from meshwright.cli.parser.option import add_command, add_flag

FORMS = ("answer", "simulation", "explanation", "audit", "cluster", "whatif", "sweep", "replan")


def add_schema(commands: Any) -> None:
    """Add the command `meshwright schema` with its options."""
    parser = add_command(
        commands, "schema", "print the JSON Schema of what programs read and write"
    )
    parser.add_argument(
        "form",
        choices=FORMS,
        help="answer: plan --json, answer.json and Answer.to_dict(); simulation: simulate --json; "
        "explanation, whatif, sweep, replan, audit: --json of `explain`, `whatif`, `sweep`, "
        "`replan` and `audit`; cluster: files of clusters",
    )
    add_text(parser)


def add_text(parser: ArgumentParser) -> None:
    """Whether people read what is printed."""
    add_flag(parser, "--text", "all fields for people, with their units and defaults")
