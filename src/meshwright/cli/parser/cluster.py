"""The options of `meshwright cluster`."""

from typing import Any

from meshwright.cli.parser.option import (
    CLUSTER,
    add_command,
    add_flag,
    add_json,
    add_output,
    add_path,
    add_value,
    positive,
    whole,
)
from meshwright.cli.parser.schema import add_text


def add_cluster(commands: Any) -> None:
    """Add the command `meshwright cluster` with its actions and options."""
    parser = add_command(commands, "cluster", "list, show, check or save clusters")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = add_command(actions, "list", "the names that the catalogue knows")
    add_flag(listing, "--devices", "types of devices instead, with their data sheets")
    add_json(listing)
    show = add_command(actions, "show", "what a cluster is made of")
    show.add_argument("source", metavar="NAME|FILE", help=CLUSTER)
    add_json(show)
    save = add_command(actions, "save", "write a cluster to a file, e.g. to edit it")
    save.add_argument("source", metavar="NAME|FILE", help=CLUSTER)
    add_path(save, "file", "YAML or JSON, by its suffix")
    check = add_command(
        actions, "check", "say what a cluster file means: hosts, who reaches whom, doubts"
    )
    check.add_argument("source", metavar="NAME|FILE", help=CLUSTER)
    add_json(check)
    schema = add_command(
        actions, "schema", "print the JSON Schema of cluster files, which editors can use"
    )
    add_text(schema)
    _add_import(actions)
    _add_detect(actions)
    _add_probe(actions)


def _add_import(actions: Any) -> None:
    text = "make a cluster file of what programs print: nvidia-smi, NCCL, Slurm, InfiniBand, ..."
    parser = add_command(actions, "import", text)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="[HOST=]FILE",
        help="outputs of programs and files of services, of any number of hosts, recognised by "
        "their content (see the manual's page on clusters)",
    )
    _add_told(parser)
    _add_written(parser)


def _add_detect(actions: Any) -> None:
    text = (
        "make a cluster file of this host by the programs that are there, or under torchrun or "
        "srun of all hosts"
    )
    parser = add_command(actions, "detect", text)
    _add_told(parser)
    _add_written(parser)


def _add_probe(actions: Any) -> None:
    text = (
        "make a cluster file by measuring, under torchrun or srun: rates and latencies of pairs, "
        "links that hosts share, and collectives by size"
    )
    parser = add_command(actions, "probe", text)
    parser.add_argument("--name", metavar="NAME", help="what plans and reports call the cluster")
    parser.add_argument(
        "--backend",
        choices=("gloo", "nccl"),
        help="what sends messages (default: nccl where every rank has a GPU of its own, else gloo)",
    )
    text = "how long the flows of a round go on, in seconds"
    add_value(parser, "--seconds", positive, "S", text, 0.4)
    text = "the largest message of collectives, in bytes; 0 for no collectives"
    add_value(parser, "--most-bytes", whole, "B", text, 1 << 26)
    _add_written(parser)


def _add_told(parser: Any) -> None:
    """What users say of that which files and programs do not."""
    text = "a host's devices, where nothing else says which, e.g. '8 x h100'"
    parser.add_argument("--devices", metavar="D", help=text)
    text = "a host's network cards, where nothing else says how fast, e.g. '8 x 400 Gb/s'"
    parser.add_argument("--nics", metavar="N", help=text)
    parser.add_argument("--name", metavar="NAME", help="what plans and reports call the cluster")


def _add_written(parser: Any) -> None:
    add_output(parser, "the cluster file to write: YAML or JSON, by its suffix", "FILE")
    add_json(parser)
