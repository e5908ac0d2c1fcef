"""Sends or receives over one TCP connection and counts, as a process of its own in a namespace.

Run by path, without the rest of the package, so that it starts in a few milliseconds. What it is to
do it reads from its arguments and, once all are connected, from its standard input.
"""

import json
import os
import socket
import sys
import time

CHUNK_BYTES = 1 << 18
CONNECT_SECONDS = 10.0
NICENESS = -10
"""It is the network that is measured, not how busy the machine is with other things."""


def receive(address: str) -> None:
    """Take one connection; print how many bytes came in each interval."""
    listening = socket.create_server((address, 0))
    print(listening.getsockname()[1], flush=True)
    start, stop, interval = (float(word) for word in input().split())
    connection, _ = listening.accept()
    counts = [0] * round((stop - start) / interval)
    buffer = bytearray(4 * CHUNK_BYTES)
    with connection:
        while (left := stop - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                count = connection.recv_into(buffer)
            except (TimeoutError, ConnectionError):
                break
            place = int((time.monotonic() - start) / interval)
            if not count or place >= len(counts):
                break
            counts[max(0, place)] += count
    print(json.dumps(counts))


def send(source: str, address: str, port: int) -> None:
    """Send from one address to another until the time, or what there is to send, is up."""
    with socket.create_connection((address, port), CONNECT_SECONDS, (source, 0)) as connection:
        print("connected", flush=True)
        start, stop, num_bytes = (float(word) for word in input().split())
        time.sleep(max(0.0, start - time.monotonic()))
        chunk = memoryview(bytes(CHUNK_BYTES))
        while num_bytes > 0 and (left := stop - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                num_bytes -= connection.send(chunk[: int(min(num_bytes, CHUNK_BYTES))])
            except (TimeoutError, ConnectionError):
                return
        connection.settimeout(max(0.01, stop - time.monotonic()))
        connection.shutdown(socket.SHUT_WR)
        try:
            connection.recv(1)  # nothing, when the other end has all of it or has had enough
        except OSError:
            return


if __name__ == "__main__":
    os.nice(NICENESS)
    if len(sys.argv) == 2:
        receive(sys.argv[1])
    else:
        send(sys.argv[1], sys.argv[2], int(sys.argv[3]))
