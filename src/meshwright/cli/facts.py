"""`meshwright cluster import`: cluster files from what programs say of a cluster."""

from argparse import Namespace
from pathlib import Path

from meshwright.cli.console import print_json
from meshwright.cli.summary.cluster import count_parts, show_imported
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.fact.draw import Drawn
from meshwright.cluster.fact.import_files import import_files
from meshwright.message import remark, warn


def run_import(arguments: Namespace) -> None:
    """Read the files, and write and show the cluster that they describe."""
    drawn = import_files(
        arguments.files,
        devices=arguments.devices,
        nics=arguments.nics,
        name=arguments.name or "imported",
    )
    finish(drawn, arguments)


def finish(drawn: Drawn, arguments: Namespace) -> None:
    """Say what was assumed and what is doubtful, and write and show the cluster."""
    if arguments.json:
        for doubt in drawn.doubts:
            warn(doubt)
    for each in drawn.taken:
        remark(f"not stated: {each}")
    show_written(drawn.cluster, arguments.output)
    if arguments.json:
        print_json(
            count_parts(drawn.cluster)
            | {"taken": list(drawn.taken), "doubts": list(drawn.doubts)}
            | {"file": None if arguments.output is None else str(arguments.output)}
        )
    else:
        show_imported(drawn.cluster, drawn.doubts)


def show_written(cluster: Cluster, file: Path | None) -> None:
    """Write a cluster where somebody asked for a file, and say so."""
    if file is not None:
        cluster.save(file)
        remark(f"wrote {file}")
