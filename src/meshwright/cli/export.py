"""`meshwright export`: the weights of a checkpoint as files that other tools read."""

from argparse import Namespace

from meshwright.cli.console import print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.message import say
from meshwright.source import need_torch


def run_export(arguments: Namespace) -> int:
    """Write the latest checkpoint's weights in the Hub's layout, and name the files."""
    need_torch("export")
    from meshwright.execute.export_weights import export_weights

    for file in export_weights(arguments.checkpoint, arguments.folder, say):
        print_line(str(file))
    return ExitCode.DONE
