"""Policy routing: traffic leaves by the interface whose address it bears. Lines of shell.

Without it the kernel sends everything for one network by one interface, whatever the source. Knows
nothing of rates.

A rule and a table an address, both marked with a routing protocol of our own, so that they are told
from other people's. The device is the one that holds the address: the interface, or the bridge
that it is a port of; which, scripts find out when they run.
"""

from meshwright.network.shape import ShapedInterface
from meshwright.network.step import ScriptSteps, command

PROTOCOL = 119
"""Of rules and routes; no routing daemon uses it (/etc/iproute2/rt_protos)."""
SETTINGS = (("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 2))
"""An interface answers for its own address only, asks with it only, and takes packets that the main
table would expect on another."""


def device_variable(place: int) -> str:
    """The shell variable for the device that holds the address of a host's interface."""
    return f"device_{place}"


def find_device_line(interface: ShapedInterface, place: int) -> str:
    """Sets the variable; empty where none of the devices holds the address."""
    names = (interface.name, interface.bridge) if interface.bridge else (interface.name,)
    found = command("find_device", interface.own_address, *names)
    return f"{device_variable(place)}=$({found})"


def policy_steps(interface: ShapedInterface, place: int, route_options: str = "") -> ScriptSteps:
    """The rule, the routes and the settings of one address; `route_options` end each route."""
    address, table = interface.own_address, interface.table
    device = f'"${device_variable(place)}"'
    options = tuple(route_options.split())
    return ScriptSteps(
        check_host=(f"{command('check_device', address, interface.name)} {device}",),
        check=(command("check_table", table),),
        change=(
            *(f"set_sysctl {device} {name} {value}" for name, value in SETTINGS),
            *(
                f"{command('ip', '-4', 'route', 'add', f'{peer}/32', 'dev')} {device} "
                + command("src", address, "table", table, "proto", PROTOCOL, "scope", "link",
                          *options)
                for peer in interface.peers
            ),
            # Last: until then traffic goes by the main table.
            command("ip", "-4", "rule", "add", "from", f"{address}/32", "lookup", table,
                    "priority", table, "protocol", PROTOCOL),
        ),
        expected=(
            *(f"fact {device} {name} = {value}" for name, value in SETTINGS),
            *(
                f"{command('fact', 'table', table, 'route', peer, '=', 'dev')} {device} "
                + command("proto", PROTOCOL, "src", address)
                for peer in interface.peers
            ),
            command("fact", f"rule {table} = from {address} lookup {table} proto {PROTOCOL}"),
        ),
        found=(f"found_sysctls {device}", command("found_table", table)),
        restore=(command("restore_table", table, address, PROTOCOL),),
    )  # fmt: skip
