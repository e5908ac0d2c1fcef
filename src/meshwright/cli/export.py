"""`meshwright export`: a plan as files of other programs, or the weights of a checkpoint."""

from argparse import Namespace
from dataclasses import replace

from meshwright.cli.console import print_json, print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.folder import check_folder
from meshwright.cli.parser.export import WEIGHTS
from meshwright.errors import InputError
from meshwright.export.page import PAGE_FILE
from meshwright.export.write import NEEDS_TORCH, export_plan, write_files
from meshwright.message import remark, say
from meshwright.planned import read_planned
from meshwright.source import need_torch


def run_export(arguments: Namespace) -> int:
    """Write the files of the target, name them, and say what they could not express."""
    check_folder(arguments.output)
    if arguments.target == WEIGHTS:
        return _export_weights(arguments)
    if arguments.target in NEEDS_TORCH:
        need_torch(f"export --to {arguments.target}")
    planned = read_planned(arguments.source)
    if planned.plan is None:
        raise InputError(f"{arguments.source}: has no plan to export; none that fits was found")
    request = replace(planned.request, model=arguments.model)
    exported = export_plan(request, planned.plan, arguments.target)
    paths = write_files(exported, arguments.output)
    if arguments.json:
        print_json(
            {
                "target": arguments.target,
                "files": [str(each) for each in paths],
                "left_out": list(exported.left_out),
            }
        )
        return ExitCode.DONE
    for path in paths:
        print_line(str(path))
    for each in exported.left_out:
        remark(f"not expressible: {each}")
    if exported.left_out:
        remark(f"what that costs is in {arguments.output / PAGE_FILE}")
    return ExitCode.DONE


def _export_weights(arguments: Namespace) -> int:
    """Write the latest checkpoint's weights in the Hub's layout, and name the files."""
    need_torch("export")
    from meshwright.execute.export_weights import export_weights

    files = [str(each) for each in export_weights(arguments.source, arguments.output, say)]
    if arguments.json:
        print_json({"target": arguments.target, "files": files, "left_out": []})
    else:
        for file in files:
            print_line(file)
    return ExitCode.DONE
