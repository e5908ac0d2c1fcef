"""What the command line accepts. Knows nothing of what the commands do.

argparse, because it is in the standard library: no dependency, and `--help` answers at once.
"""

import sys
from argparse import ArgumentParser
from typing import Any, NoReturn

from meshwright import __version__
from meshwright.cli.parser.cluster import add_cluster
from meshwright.cli.parser.completion import add_completion
from meshwright.cli.parser.explain import add_explain
from meshwright.cli.parser.export import add_audit, add_export
from meshwright.cli.parser.model import add_calibrate, add_capture, add_profile, add_zoo
from meshwright.cli.parser.network import add_network
from meshwright.cli.parser.plan import add_plan, add_simulate
from meshwright.cli.parser.replan import add_replan
from meshwright.cli.parser.report import add_report
from meshwright.cli.parser.run import add_compare, add_run, add_testbed
from meshwright.cli.parser.schema import add_doctor, add_schema
from meshwright.cli.parser.whatif import add_sweep, add_whatif
from meshwright.errors import InputError


class _Parser(ArgumentParser):
    """Raises errors instead of printing usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see `{self.prog} --help`)")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Called by argparse for --help and --version; its own would hide that a disk is full."""
        (file or sys.stdout).write(message)


def make_parser() -> ArgumentParser:
    """The parser of every command; `command` (and `action`) in its result say which one it was."""
    parser = _Parser(
        prog="meshwright",
        description="Plans distributed training: the fastest way to train a model on a cluster.",
        epilog="Exit codes: 0 done, 2 bad input, 3 no plan fits, 4 out of memory or disk space, "
        "130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"meshwright {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_plan(commands)
    add_simulate(commands)
    add_explain(commands)
    add_run(commands)
    add_compare(commands)
    add_whatif(commands)
    add_sweep(commands)
    add_report(commands)
    add_replan(commands)
    add_export(commands)
    add_audit(commands)
    add_network(commands)
    add_testbed(commands)
    add_capture(commands)
    add_calibrate(commands)
    add_profile(commands)
    add_cluster(commands)
    add_zoo(commands)
    add_schema(commands)
    add_doctor(commands)
    add_completion(commands)
    return parser
