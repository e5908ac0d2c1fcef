"""Widens the packet sockets of a process, from outside. Run by path, as root.

For Open vSwitch's daemon, which cannot be told: its sockets get the machine's default, and changing
that would change it for everything else on the machine, too.
"""

import ctypes
import os
import socket
import sys
import time

PIDFD_GETFD = 438
"""The system call, of the same number on every kind of processor (Linux 5.6)."""
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
"""Without regard to the machine's limit. The kernel doubles the value."""
WAIT_SECONDS = 10.0


def widen(process: int, num_bytes: int) -> int:
    """Give all packet sockets buffers of that size; how many are not bound to an interface.

    Packets are sent by one that is not.
    """
    system = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(process)
    num_unbound = 0
    try:
        for name in os.listdir(f"/proc/{process}/fd"):
            if not _is_socket(f"/proc/{process}/fd/{name}"):
                continue
            found = system.syscall(PIDFD_GETFD, handle, int(name), 0)
            if found < 0:
                code = ctypes.get_errno()
                raise OSError(code, f"{os.strerror(code)} (pidfd_getfd, needs CAP_SYS_PTRACE)")
            with socket.socket(fileno=found) as each:
                if each.family == socket.AF_PACKET:
                    each.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, num_bytes)
                    each.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, num_bytes)
                    num_unbound += not each.getsockname()[0]
    finally:
        os.close(handle)
    return num_unbound


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:  # closed meanwhile
        return False


def main(path: str, num_bytes: int) -> None:
    """Of the process whose number is in a file; wait until it has what it sends by."""
    with open(path, encoding="ascii") as file:
        process = int(file.read())
    deadline = time.monotonic() + WAIT_SECONDS
    while not widen(process, num_bytes):
        if time.monotonic() > deadline:
            sys.exit("Open vSwitch has made no socket to send by")
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
