"""Shapes interfaces by Open vSwitch: lines of shell. Knows no clusters or routes.

A QoS of the type linux-htb on the interface with a queue a destination, and flows on its bridge
that send each destination to its queue. The classes that Open vSwitch makes of it are those of
`meshwright.network.tc`, with queue 0 for everything else. Written for a datapath in the kernel;
`ovs.sh` beside this file says what the userspace datapath is given on top.

Acknowledgements of TCP go to the queue of their destination: OpenFlow cannot tell them from data.
"""

import shlex

from meshwright.errors import InputError, quoted
from meshwright.network.htb import ACKNOWLEDGEMENT, SHOWN_ACKNOWLEDGEMENT, burst_bytes
from meshwright.network.shape import ShapedInterface
from meshwright.network.step import ScriptSteps, assignment, command
from meshwright.network.tc import default_kbit, expected_lines

COOKIE = "0x6d65736877726967"
"""Of our flows: "meshwrig" in ASCII."""
FLOW_PRIORITY = 40_000
"""Before flows that are added without one (32768)."""
HANDLE = "1:"
"""Of the root qdisc that Open vSwitch makes."""
LEAST_KBIT_PER_SECOND = 12
"""Open vSwitch gives no queue less."""

CONSTANTS = tuple(
    assignment(name, value)
    for name, value in (
        ("cookie", COOKIE),
        ("flow_priority", FLOW_PRIORITY),
        ("acknowledgement", ACKNOWLEDGEMENT),
        ("shown_acknowledgement", SHOWN_ACKNOWLEDGEMENT),
        ("hint", " (Open vSwitch before 3.2 counts rates in 32 bits, up to 34 Gbit/s)"),
    )
)
"""What `ovs.sh` refers to."""


def find_datapath_line(interface: ShapedInterface, place: int) -> str:
    """Sets the variable that says in which datapath an interface's bridge is."""
    return f"{_variable(place)}=$({command('find_datapath', interface.bridge)})"


def ovs_steps(host: str, interface: ShapedInterface, place: int) -> ScriptSteps:
    """Shape an interface; nothing for one that only receives."""
    if not interface.bridge:
        raise InputError(
            f"host {quoted(host)}, interface {quoted(interface.name)}: must be a port of an Open "
            f"vSwitch bridge, and the cluster names none (bridge under interfaces); --emit tc "
            f"needs none"
        )
    if not interface.queues:
        return ScriptSteps()
    name, bridge, datapath = interface.name, interface.bridge, f'"${_variable(place)}"'
    numbers = command(*(each.number for each in interface.queues))
    pairs = [command(each.number, each.address) for each in interface.queues]
    return ScriptSteps(
        check=(
            f"{command('check_ovs', name, bridge)} {datapath} {len(interface.queues)}",
            command("check_shape", name),
        ),
        change=(
            *_database_lines(interface, datapath),
            *(f"{command('add_flow', bridge)} {datapath} {pair}" for pair in pairs),
            f"{command('add_marks', name)} {datapath} {numbers}",
        ),
        expected=(
            *_expected_database(interface, datapath),
            *expected_lines(interface, HANDLE, LEAST_KBIT_PER_SECOND),
            *(f"{command('expected_flow', bridge)} {datapath} {pair}" for pair in pairs),
            f"{command('expected_marks', name)} {datapath} {numbers}",
        ),
        found=(
            command("found_qos", name),
            command("found_shape", name),
            command("found_flows", bridge),
        ),
        restore=(command("restore_ovs", name, bridge),),
    )


def _variable(place: int) -> str:
    return f"datapath_{place}"


def _queues(interface: ShapedInterface) -> list[tuple[int, int, int]]:
    """Number, least and most kbit/s of every queue, that of everything else first."""
    return [
        (0, default_kbit(interface), interface.kbit_per_second),
        *((each.number, each.kbit_per_second, each.kbit_per_second) for each in interface.queues),
    ]


def _burst(kbit_per_second: int, datapath: str) -> str:
    return f'"$(queue_burst {datapath} {8 * burst_bytes(kbit_per_second)})"'


def _database_lines(interface: ShapedInterface, datapath: str) -> tuple[str, ...]:
    """One transaction: the port's QoS and all its queues."""
    owner = command(f'external-ids:meshwright="{interface.name}"')
    queues = _queues(interface)
    lines = [
        command("vsctl", "--", "set", "port", interface.name, "qos=@qos"),
        "    -- --id=@qos create qos type=linux-htb "
        f"other-config:max-rate={1000 * interface.kbit_per_second} {owner} "
        + " ".join(f"queues:{number}=@queue{number}" for number, _, _ in queues),
    ]
    lines += [
        f"    -- --id=@queue{number} create queue other-config:min-rate={1000 * least} "
        f"other-config:max-rate={1000 * most} other-config:burst={_burst(most, datapath)} {owner}"
        for number, least, most in queues
    ]
    return (*(f"{line} \\" for line in lines), "    >/dev/null")


def _expected_database(interface: ShapedInterface, datapath: str) -> tuple[str, ...]:
    name = interface.name
    return (
        command("fact", name, "bridge", "=", interface.bridge),
        command("fact", f"{name} qos = linux-htb max-rate={1000 * interface.kbit_per_second}"),
        *(
            f"fact {shlex.quote(name)} queue {number} = burst={_burst(most, datapath)} "
            f"max-rate={1000 * most} min-rate={1000 * least}"
            for number, least, most in _queues(interface)
        ),
    )
