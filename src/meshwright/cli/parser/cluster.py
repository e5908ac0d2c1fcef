"""The options of `meshwright cluster`."""

from pathlib import Path
from typing import Any

from meshwright.cli.parser.option import CLUSTER, add_command, add_json


def add_cluster(commands: Any) -> None:
    """Add `meshwright cluster`."""
    parser = add_command(commands, "cluster", "list, show or save clusters")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_json(add_command(actions, "list", "the names that the catalogue knows"))
    show = add_command(actions, "show", "what a cluster is made of")
    show.add_argument("source", metavar="NAME|FILE", help=CLUSTER)
    add_json(show)
    save = add_command(actions, "save", "write a cluster to a file, e.g. to edit it")
    save.add_argument("source", metavar="NAME|FILE", help=CLUSTER)
    save.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON, by its suffix")
