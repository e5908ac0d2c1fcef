"""The network interfaces of hosts: their names and addresses. Knows nothing of what they carry.

An interface is one link from a host to a switch, with its reverse. A cluster may say what its own
are called; where it does not, they have the names and addresses that a testbed gives them.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from meshwright.errors import InputError, quoted

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
"""What Linux allows (15 characters), less what a shell or a path could take for something else."""
_RESERVED = ("all", "default", "lo")
"""In the kernel's settings the first two stand for other things than an interface; no cable ends at
the third."""
MOST_HOSTS, MOST_INTERFACES = 254, 256
"""What the default addresses have room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface of a host."""

    host: str
    switch: str
    """The node that its cable goes to."""
    name: str
    address: str
    """IPv4 with the length of its network's prefix, such as 10.0.0.1/24."""
    bridge: str = ""
    """The Open vSwitch bridge that it is a port of; empty: none."""

    def __post_init__(self) -> None:
        where = f"interface of host {quoted(self.host)} to {quoted(self.switch)}"
        check_interface_name(self.name, f"{where}: name")
        if self.bridge:
            check_interface_name(self.bridge, f"{where}: bridge")
        if self.bridge == self.name:
            raise InputError(f"{where}: bridge must not be the interface itself, got {self.name}")
        try:
            found = ipaddress.IPv4Interface(self.address)
        except ValueError:
            found = None
        if found is None or str(found) != self.address or self.address.endswith("/32"):
            raise InputError(
                f"{where}: address must be IPv4 with a prefix, such as 10.0.0.1/24, "
                f"got {quoted(self.address)}"
            )
        if not _is_own(found):
            raise InputError(
                f"{where}: address must be that of a host (no loopback, multicast or reserved one, "
                f"neither the first nor the last of its network), got {self.address}"
            )


def _is_own(address: ipaddress.IPv4Interface) -> bool:
    """Whether it can be the address of one interface in its network."""
    own, network = address.ip, address.network
    is_end = network.prefixlen < 31 and own in (
        network.network_address,
        network.broadcast_address,
    )
    is_other = own.is_loopback or own.is_multicast or own.is_reserved or own.is_unspecified
    return not (is_end or is_other)


def check_interface_name(name: str, what: str) -> None:
    """Refuse what is no interface's name, or could be taken for something else."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise InputError(
            f"{what} must be 1 to 15 letters, digits, '_', '.' or '-', begin with a letter, digit "
            f"or '_', and be none of {', '.join(_RESERVED)}, got {quoted(name)}"
        )


def default_interfaces(
    hosts: Sequence[str], ends: Sequence[tuple[str, str]]
) -> tuple[Interface, ...]:
    """One for each link from a host to a switch (`ends`), numbered as they come on each host."""
    if len(hosts) > MOST_HOSTS or len(ends) > MOST_INTERFACES * len(hosts):
        raise InputError(
            f"interfaces: must be named in the cluster's file for more than {MOST_HOSTS:,} hosts, "
            f"got {len(hosts):,} hosts"
        )
    place = {host: number for number, host in enumerate(hosts, start=1)}
    numbers = {host: count() for host in hosts}
    return tuple(
        Interface(
            host=host,
            switch=switch,
            name=f"eth{number}",
            address=f"10.77.{number}.{place[host]}/24",
        )
        for host, switch in ends
        for number in (next(numbers[host]),)
    )
