"""The options of `meshwright network`."""

from typing import Any

from meshwright.cli.parser.option import PLAN_FOLDER, add_command, add_json, add_output, add_path


def add_network(commands: Any) -> None:
    """Add the command `meshwright network` with its options."""
    parser = add_command(
        commands, "network", "configure hosts so that a plan's transfers have their bandwidth"
    )
    add_path(parser, "plan", PLAN_FOLDER, "PLAN")
    parser.add_argument(
        "--emit",
        choices=("ovs", "tc"),
        help="configure Open vSwitch, or plain Linux by tc (default: only show the rates)",
    )
    add_output(parser, "write scripts and an Ansible inventory and playbooks there")
    verbs = parser.add_mutually_exclusive_group()
    for verb, text in (
        ("apply", "configure this host (root); what is there of others is refused, not replaced"),
        ("verify", "say how this host differs from what it should be (root); exit code 1 if so"),
        ("undo", "put this host back as it was (root)"),
    ):
        verbs.add_argument(f"--{verb}", dest="verb", action="store_const", const=verb, help=text)
    parser.add_argument(
        "--host", metavar="H", help="which of the cluster's hosts this one is (default: by name)"
    )
    add_json(parser)
