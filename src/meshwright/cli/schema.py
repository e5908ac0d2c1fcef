"""`meshwright schema`: the JSON Schemas of what programs read and write, or the same in words."""

import textwrap
from argparse import Namespace
from collections.abc import Mapping
from types import MappingProxyType

from meshwright.cli.console import WIDTH, print_json, print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.form import list_fields

TITLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "answer": {"AnswerRecord": "What `plan` says: plan --json, answer.json, Answer.to_dict()"},
        "simulation": {"SimulationRecord": "What `simulate --json` says"},
        "explanation": {
            "ExplanationRecord": "What `explain` says: explain --json, Explanation.to_dict()"
        },
        "whatif": {"WhatIfRecord": "What `whatif --json` says"},
        "sweep": {"SweepRecord": "What `sweep --json` says"},
        "replan": {"TransitionRecord": "What `replan --json` says"},
        "audit": {"AuditRecord": "What `audit --json` says"},
        "cluster": {
            "HostsDocument": "Short form: hosts, perhaps in racks",
            "LongDocument": "Long form: every device and link",
            "BuilderDocument": "A builder and its arguments",
        },
    }
)
"""By name: the classes of its forms, and what they are."""


def run_schema(arguments: Namespace) -> int:
    """Print the JSON Schema of a form."""
    show_schema(arguments.form, is_text=arguments.text)
    return ExitCode.DONE


def show_schema(name: str, *, is_text: bool) -> None:
    """Print the JSON Schema of what has this name, or the same fields for people."""
    from meshwright.api import schema  # and with it Numba, which lists of clusters go without

    found = schema(name)
    if not is_text:
        print_json(found)
        return
    for form, title in TITLES[name].items():
        print_line(title)
        for field in list_fields(found, form):
            facts = [f"in {field.unit}" if field.unit else "", field.default]
            print_line(f"  {field.name}{''.join(f', {each}' for each in facts if each)}")
            for line in textwrap.wrap(field.description, WIDTH - 6):
                print_line(f"      {line}")
        print_line()
