"""`meshwright report`: plans as one HTML file, and figures for papers."""

from argparse import Namespace
from pathlib import Path

from meshwright.cli.console import print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.progress import shown_progress
from meshwright.message import remark
from meshwright.page.figure import write_figures
from meshwright.page.load import read_entry
from meshwright.page.write import write_page
from meshwright.planned import PAGE_FILE
from meshwright.units import format_bytes, format_count
from meshwright.whatif.plot import need_plots


def run_report(arguments: Namespace) -> int:
    """Read the folders, and write the page and the figures."""
    if arguments.figures is not None:
        need_plots()  # before long work
    path: Path = arguments.output or arguments.plans[0] / PAGE_FILE
    written: list[Path] = []
    with shown_progress(f"drawing {path}", arguments) as progress:
        entries = [
            read_entry(folder, explains=arguments.explain, asks=arguments.whatif, progress=progress)
            for folder in arguments.plans
        ]
        write_page(entries, path, progress)
        if arguments.figures is not None:
            progress("drawing the figures")
            written = write_figures(entries, arguments.figures)
    size = path.stat().st_size
    if arguments.json:
        print_json({"report": str(path), "bytes": size, "figures": [str(each) for each in written]})
        return ExitCode.DONE
    more = f"; {format_count(len(written), 'figure file')} in {arguments.figures}"
    remark(f"wrote {path} ({format_bytes(size)}){more if written else ''}; open it in a browser")
    return ExitCode.DONE
