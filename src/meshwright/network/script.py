"""Writes a folder that configures the network of hosts: a script a host and verb, and playbooks.

    <host>/{apply,verify,undo}.sh   for a shell as root on that host; each is whole by itself
    inventory.yml                   Ansible's: the hosts, and what is configured on each
    {apply,verify,undo}.yml         Ansible's: run the scripts

Knows how scripts are put together; `meshwright.network.tc`, `ovs` and `policy` know what they do,
and `host.sh` beside this file is what they have in common. Runs nothing.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from meshwright.errors import InputError, os_errors, quoted
from meshwright.files import write_bytes
from meshwright.network.ovs import CONSTANTS, find_datapath_line, ovs_steps
from meshwright.network.policy import find_device_line, policy_steps
from meshwright.network.shape import HostNetwork, ShapedInterface, check_host
from meshwright.network.step import assignment, command, join_steps
from meshwright.network.tc import tc_steps

Kind = Literal["tc", "ovs"]
Verb = Literal["apply", "verify", "undo"]
KINDS: tuple[Kind, ...] = get_args(Kind)
VERBS: tuple[Verb, ...] = get_args(Verb)
SETTINGS = "/proc/sys/net/ipv4/conf"
"""Where the kernel keeps a device's settings."""
PROGRAMS = (("ip", "iproute2"), ("tc", "iproute2"), ("awk", "mawk"), ("flock", "util-linux"))
OVS_PROGRAMS = (("ovs-vsctl", "openvswitch-switch"), ("ovs-ofctl", "openvswitch-common"))
"""What the scripts need, with Debian's package for each."""
INVENTORY, README = "inventory.yml", "README.md"
_README = """\
Network configuration ({kind}) for {num_hosts} hosts, written by `meshwright network`.
On a host, as root: `sh HOST/apply.sh`, `verify.sh` (a line a difference, exit code 1), `undo.sh`.
With Ansible: `ansible-playbook -i inventory.yml apply.yml` (or `verify.yml`, `undo.yml`).
$MESHWRIGHT_STATE (default /run/meshwright/network) keeps what was there before until `undo`.
Only named interfaces are touched; one that others have configured is refused (exit code 2).
"""


def write_scripts(networks: Sequence[HostNetwork], kind: Kind, folder: Path) -> None:
    """Write the folder; files of the same names are replaced, others stay."""
    texts: dict[str, str] = {}
    for network in networks:
        check_host(network.host)  # it becomes a folder
        for verb in VERBS:
            texts[f"{network.host}/{verb}.sh"] = script_text(network, kind, verb)
    texts[INVENTORY] = _dump(inventory(networks, kind))
    for verb in VERBS:
        texts[f"{verb}.yml"] = _dump(playbook(verb))
    texts[README] = _README.format(kind=kind, num_hosts=len(networks))
    for host in (each.host for each in networks):
        if host.lower() in {name.lower() for name in texts if "/" not in name}:
            raise InputError(f"host {quoted(host)}: must not have the name of a file beside it")
    for name, text in texts.items():
        path = folder / name
        with os_errors(f"{path.parent}: cannot be made"):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
        if path.suffix == ".sh":
            path.chmod(path.stat().st_mode | (path.stat().st_mode & 0o444) >> 2)


def script_text(
    network: HostNetwork,
    kind: Kind,
    verb: Verb,
    route_options: str = "",
) -> str:
    """The script of one host. It can do all three; `verb` is what it does when told nothing.

    `route_options` are added to every route, as `ip route add` takes them.
    """
    steps = join_steps(
        part
        for place, interface in enumerate(network.interfaces)
        for part in (
            tc_steps(interface) if kind == "tc" else ovs_steps(network.host, interface, place),
            policy_steps(interface, place, route_options),
        )
    )
    body = "\n".join(
        (
            _function("programs", [command("need", *each) for each in programs_of(kind)]),
            _function(
                "find_devices",
                [
                    line
                    for place, each in enumerate(network.interfaces)
                    for line in (
                        find_device_line(each, place),
                        *([find_datapath_line(each, place)] if kind == "ovs" else []),
                    )
                ],
            ),
            _function("check_host", steps.check_host),
            _function("check", steps.check),
            _function("change", steps.change),
            _function("expected", steps.expected),
            _function("found", steps.found),
            _function("restore", steps.restore),
            *((*CONSTANTS, "", _shell_file("ovs.sh")) if kind == "ovs" else ()),
            _shell_file("host.sh"),
        )
    )
    assert network.host.isprintable(), network.host  # it stands in a comment
    return (
        "#!/bin/sh\n"
        f"# The network of host {network.host} by {kind}, written by `meshwright network`.\n"
        f"# Usage, as root: sh {verb}.sh [apply|verify|undo]\n"
        "# Exit codes: 0 done, 1 differs (verify), 2 refused, 3 failed (apply: undone).\n"
        "set -eu\n"
        f"{assignment('host', network.host)}\n"
        f"{assignment('settings', SETTINGS)}\n"
        f"configuration={hashlib.sha256((kind + body).encode()).hexdigest()}\n\n"
        f'{body}\nmain "${{1:-{verb}}}"\n'
    )


def programs_of(kind: Kind) -> tuple[tuple[str, str], ...]:
    """The programs that a script needs, with Debian's package for each."""
    return PROGRAMS if kind == "tc" else (*PROGRAMS, *OVS_PROGRAMS)


def _shell_file(name: str) -> str:
    return files("meshwright.network").joinpath(name).read_text(encoding="utf-8")


def _function(name: str, lines: Sequence[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines or (":",))
    return f"{name}() {{\n{body}}}\n"


def inventory(networks: Sequence[HostNetwork], kind: Kind) -> dict[str, Any]:
    """The hosts, under the names that the cluster has for them, with what each gets."""
    hosts = {
        network.host: {
            "meshwright_kind": kind,
            "meshwright_interfaces": [interface_document(each) for each in network.interfaces],
        }
        for network in networks
    }
    return {"all": {"children": {"meshwright": {"hosts": hosts}}}}


def interface_document(interface: ShapedInterface) -> dict[str, Any]:
    """An interface for programs."""
    return {
        "name": interface.name,
        "address": interface.address,
        "bridge": interface.bridge,
        "kbit_per_second": interface.kbit_per_second,
        "table": interface.table,
        "peers": list(interface.peers),
        "queues": [asdict(queue) for queue in interface.queues],
    }


def playbook(verb: Verb) -> list[dict[str, Any]]:
    """Runs one script on every host."""
    task: dict[str, Any] = {
        "name": f"Run the host's {verb}.sh",
        "ansible.builtin.script": {"cmd": f"{{{{ inventory_hostname }}}}/{verb}.sh"},
    }
    if verb == "verify":
        task["changed_when"] = False
    return [
        {
            "name": f"Network of the plan: {verb}",
            "hosts": "meshwright",
            "become": True,
            "gather_facts": False,
            "tasks": [task],
        }
    ]


def _dump(document: object) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=100)
