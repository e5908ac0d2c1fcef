"""`meshwright network`: from a plan's allocations to the configuration of hosts."""

import socket
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.cli.console import print_json, print_line
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.folder import check_folder
from meshwright.cli.sheet import print_table
from meshwright.errors import InputError
from meshwright.message import remark, say
from meshwright.network.local import Ran, check_machine, choose_host, run_script
from meshwright.network.script import interface_document, write_scripts
from meshwright.network.shape import HostNetwork, shape_network
from meshwright.plan.check import resolve
from meshwright.planned import read_plan_folder
from meshwright.units import format_percent


def run_network(arguments: Namespace) -> int:
    """Show, write or run the configuration of a plan."""
    _check_options(arguments)
    graph, cluster, plan = read_plan_folder(arguments.plan)
    resolve(graph, cluster, plan)  # a plan for another cluster is refused
    networks = shape_network(cluster, plan)
    if arguments.verb is not None:
        return _run_here(arguments, networks)
    if arguments.output is not None:
        write_scripts(networks, arguments.emit, arguments.output)
    if arguments.json:
        print_json(network_document(networks))
    elif arguments.output is None:
        _print_rates(networks)
    if arguments.output is not None:
        remark(f"wrote scripts for {len(networks):,} hosts to {arguments.output}")
    return ExitCode.DONE


def _check_options(arguments: Namespace) -> None:
    wanted = "-o" if arguments.output is not None else None
    wanted = f"--{arguments.verb}" if arguments.verb is not None else wanted
    if wanted is not None and arguments.emit is None:
        raise InputError(f"network: {wanted} needs --emit ovs or --emit tc")
    if arguments.emit is not None and wanted is None:
        raise InputError("network: --emit needs -o, --apply, --verify or --undo")
    if arguments.host is not None and arguments.verb is None:
        raise InputError("network: --host needs --apply, --verify or --undo")
    if arguments.output is not None:
        check_folder(arguments.output)


def _run_here(arguments: Namespace, networks: Sequence[HostNetwork]) -> int:
    check_machine(arguments.emit)
    network = choose_host(networks, arguments.host, socket.gethostname())
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        folder = arguments.output or Path(scratch)
        write_scripts(networks, arguments.emit, folder)
        ran = run_script(folder, network.host, arguments.verb, arguments.emit)
    _report(arguments, network, ran)
    if ran.differences:
        say(f"error: host {network.host} differs in {len(ran.differences)} points")
        return ExitCode.FAULT
    remark(ran.message or f"host {network.host}: {arguments.verb} done")
    return ExitCode.DONE


def _report(arguments: Namespace, network: HostNetwork, ran: Ran) -> None:
    if arguments.json:
        differences = {"differences": list(ran.differences)} if arguments.verb == "verify" else {}
        print_json({"host": network.host, "verb": arguments.verb, **differences})
    else:
        for line in ran.differences:
            print_line(line)


def network_document(networks: Sequence[HostNetwork]) -> dict[str, Any]:
    """Hosts, interfaces and queues for programs."""
    return {
        "hosts": [
            {
                "name": network.host,
                "interfaces": [interface_document(each) for each in network.interfaces],
            }
            for network in networks
        ]
    }


def _print_rates(networks: Sequence[HostNetwork]) -> None:
    """A line a destination and interface."""
    print_table(
        ("host", "interface", "destination", "address", "kbit/s", "of link"),
        [
            (
                network.host,
                interface.name,
                queue.target,
                queue.address,
                f"{queue.kbit_per_second:,}",
                format_percent(queue.kbit_per_second / interface.kbit_per_second),
            )
            for network in networks
            for interface in network.interfaces
            for queue in interface.queues
        ],
    )
