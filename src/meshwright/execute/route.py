"""Which network interface of this machine leads to another one, as its routing table has it.

Asks the kernel and sends nothing. Knows nothing of ranks and of torch. Linux only.
"""

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_SIOCGIFCONF = 0x8912  # linux/sockios.h: all IPv4 addresses of all interfaces
_ENTRY_BYTES = 40  # linux/if.h, struct ifreq: a name of 16 bytes, then a socket's address
_MOST_ENTRIES = 1024
_ADDRESSES_6 = Path("/proc/net/if_inet6")
_ANY_PORT = 9


def find_source(address: str) -> str:
    """The address that this machine sends from to another one; empty: it knows no way there."""
    try:
        targets = socket.getaddrinfo(address, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    for family, kind, protocol, _, target in targets:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)  # of a datagram's socket: only looks up the route
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return ""


def is_local(address: str) -> bool:
    """Whether an address is one that no other machine reaches; so is none at all."""
    return not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def find_interface(address: str) -> str | None:
    """The name of this machine's interface that has an address."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for name, found in _addresses() if found == wanted), None)


def _addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    space = array.array("B", bytes(_MOST_ENTRIES * _ENTRY_BYTES))
    request = struct.pack("iP", len(space), space.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        (size, _) = struct.unpack("iP", fcntl.ioctl(probe, _SIOCGIFCONF, request))
    for start in range(0, size, _ENTRY_BYTES):
        entry = space[start : start + _ENTRY_BYTES].tobytes()
        name = entry[:16].split(b"\0")[0].decode().partition(":")[0]  # eth0:1 is an alias of eth0
        yield name, ipaddress.IPv4Address(entry[20:24])
    if _ADDRESSES_6.exists():
        for line in _ADDRESSES_6.read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            yield name, ipaddress.IPv6Address(int(digits, 16))
