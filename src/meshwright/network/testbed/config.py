"""Shapes the hosts of a testbed by the configuration that is generated for a plan. Runs nothing.

The same scripts as for a real network, with the rates of the wire for which the testbed's links
carry the cluster's payload, and with the testbed's options on routes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.interface import Interface
from meshwright.errors import InputError, quoted
from meshwright.network.htb import FRAME_BYTES, PAYLOAD_BYTES
from meshwright.network.script import Kind, script_text
from meshwright.network.shape import HostNetwork, shape_network
from meshwright.network.testbed.command import ROUTE_OPTIONS, Command, inside
from meshwright.network.testbed.ovs import environment
from meshwright.network.testbed.wiring import EmulatedHost
from meshwright.plan.plan import Plan

WIRE_FACTOR = FRAME_BYTES / PAYLOAD_BYTES


def find_networks(
    cluster: Cluster, interfaces: Sequence[Sequence[Interface]], plan: Plan | None
) -> Mapping[str, HostNetwork]:
    """By host what the plan's allocations make of its interfaces; empty without allocations."""
    if plan is None or not plan.allocations:
        return {}
    if not all(each.switch for own in interfaces for each in own):
        raise InputError(
            f"cluster {quoted(cluster.name)}: allocations cannot be had in a testbed, because its "
            f"hosts have no link of their own to a switch, or several that are no rails"
        )
    named = cluster
    if cluster.interfaces or any(each.bridge for own in interfaces for each in own):
        named = replace(cluster, interfaces=tuple(each for own in interfaces for each in own))
    return {each.host: each for each in shape_network(named, plan, WIRE_FACTOR)}


def queue_rates(network: HostNetwork) -> list[float]:
    """Payload of each queue, in bytes a second."""
    return [
        queue.kbit_per_second * 125 / WIRE_FACTOR
        for interface in network.interfaces
        for queue in interface.queues
    ]


def script_path(folder: Path) -> Path:
    """Where a host's script is, in its folder."""
    return folder / "network.sh"


def script_command(host: EmulatedHost, folder: Path, verb: str) -> Command:
    """Run a host's script; `verb` is apply, verify or undo."""
    words = (*environment(folder), f"MESHWRIGHT_STATE={folder}/state")
    return inside(host.namespace, *words, "sh", str(script_path(folder)), verb)


def configure_commands(
    host: EmulatedHost, network: HostNetwork, kind: Kind, folder: Path
) -> Iterator[Command]:
    """Write a host's script and apply it."""
    text = script_text(network, kind, "apply", route_options=ROUTE_OPTIONS)
    yield Command(argv=("mkdir", "-p", str(folder)))
    yield Command(argv=("tee", str(script_path(folder))), lines=tuple(text.splitlines()))
    yield script_command(host, folder, "apply")
