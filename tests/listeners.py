"""Where the processes of a test listen, from what the system says of them."""

import os
import re
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTENING = "0A"


Listener = tuple[IPv4Address | IPv6Address, int]


def find_listeners(processes: Iterable[int]) -> set[Listener]:
    """The addresses and ports on which any of these processes listens."""
    sockets = {each for process in processes for each in _find_sockets(process)}
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in sockets:
                address, port = fields[1].split(":")
                text = bytes.fromhex(address)
                # Words of four bytes, in the order of this machine.
                words = struct.unpack(f"={len(text) // 4}I", text)
                found.add((ip_address(struct.pack(f">{len(words)}I", *words)), int(port, 16)))
    return found


def find_descendants(process: int) -> set[int]:
    """A process and all that it has started, directly or not, and that still run."""
    parent_of = {}
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit():  # the name, which may have spaces, ends with a bracket
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                parent_of[int(path.name)] = int(fields[1])
        except OSError:  # it has ended
            continue
    found = {process}
    while more := {each for each, parent in parent_of.items() if parent in found} - found:
        found |= more
    return found


def _find_sockets(process: int) -> set[str]:
    """The numbers of a process's sockets."""
    found = set()
    try:
        for handle in Path(f"/proc/{process}/fd").iterdir():
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(handle))
            found |= {match[1]} if match else set()
    except OSError:  # it has ended, or closed the file
        pass
    return found
