"""Open vSwitch inside a host of a testbed: the commands that start it there.

Each host has its own daemons, with their database and sockets in a folder of the testbed's; they
run in its namespace and end with it. The datapath is the one in user space: the kernel's need not
be there, and namespaces would share it. Knows nothing of rates.

Measured with Debian's Open vSwitch 3.1 in November 2026 (three destinations at 100, 250 and 500
Mbit/s at once: 99.6, 249.8 and 497.0 arrive).
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.network.testbed.command import Command, inside
from meshwright.network.testbed.wiring import EmulatedHost, EmulatedInterface

PROGRAMS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl")
BUFFER_BYTES = 16 << 20
"""Of the sockets by which packets leave and enter the daemon. With the kernel's 208 kB a class that
has to wait took the room of all others, and a daemon that had to wait for a core lost what came:
rates fell to a tenth for moments. With this, 0 to 2 of 400,000 segments were sent again."""
PACKET_BYTES = 32_768
"""At least, of a packet of several frames. In smaller ones, of 3 kB, two busy cores passed a third
of 850 Mbit/s from one host; 1 MiB at 125 Mbit/s comes 1% early with these."""
NICENESS = -10
"""Of the daemon that passes packets on, as Open vSwitch's own start script has it."""
WAIT_SECONDS = 20
"""No command of Open vSwitch takes a second; without its daemon it would wait forever."""
FIRST_FRAME = "ff" * 6 + "020000000001" + "88b5" + "00" * 46
"""Of the type that is free for experiments, to all, from an address that nobody has."""


def environment(folder: Path) -> tuple[str, ...]:
    """What tells Open vSwitch's programs that their files are in a folder."""
    return ("env", f"OVS_RUNDIR={folder}", f"OVS_LOGDIR={folder}", f"OVS_DBDIR={folder}")


def start_commands(host: EmulatedHost, folder: Path) -> Iterator[Command]:
    """Start the daemons of a host and make a bridge for each of its cables."""
    quiet = ("--detach", "--no-chdir", "-vconsole:err", "-vsyslog:off")
    database, process = f"{folder}/conf.db", f"{folder}/ovs-vswitchd.pid"

    def run(*argv: str) -> Command:
        return inside(host.namespace, *environment(folder), *argv)

    yield Command(argv=("mkdir", "-p", str(folder)))
    yield run("ovsdb-tool", "create", database)
    yield run(
        "ovsdb-server", database, f"--remote=punix:{folder}/db.sock", *quiet,
        f"--pidfile={folder}/ovsdb-server.pid", f"--log-file={folder}/ovsdb-server.log",
    )  # fmt: skip
    # Without it TCP's large packets do not pass, and it hangs or crawls. It is read at the start.
    yield run("ovs-vsctl", f"--timeout={WAIT_SECONDS}", "--no-wait", "--", "init", "--",
              "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")  # fmt: skip
    yield run(
        "nice", "-n", str(NICENESS), "ovs-vswitchd", f"unix:{folder}/db.sock", *quiet,
        f"--pidfile={process}", f"--log-file={folder}/ovs-vswitchd.log",
    )  # fmt: skip
    yield run("ovs-vsctl", f"--timeout={WAIT_SECONDS}", *_bridge_words(host.interfaces))
    # The socket by which packets are sent is made for the first one.
    first = host.interfaces[0]
    frame = f"in_port=local packet={FIRST_FRAME} actions=output:{first.cable}"
    yield run("ovs-ofctl", "packet-out", first.name, frame)
    script = str(Path(__file__).with_name("widen.py"))
    yield Command(argv=(sys.executable, "-IS", script, process, str(BUFFER_BYTES)))


def _bridge_words(interfaces: Sequence[EmulatedInterface]) -> Iterator[str]:
    for each in interfaces:
        yield from ("--", "add-br", each.name)
        yield from ("--", "set", "bridge", each.name, "datapath_type=netdev")
        yield from ("--", "add-port", each.name, each.cable)


def hold_command(host: EmulatedHost, cables: Sequence[str], folder: Path) -> Command:
    """Have Open vSwitch leave the queues of some cables alone: others shape them."""
    words = [
        word
        for place, cable in enumerate(cables)
        for word in ("--", "set", "port", cable, f"qos=@qos{place}",
                     "--", f"--id=@qos{place}", "create", "qos", "type=linux-noop")
    ]  # fmt: skip
    return inside(
        host.namespace, *environment(folder), "ovs-vsctl", f"--timeout={WAIT_SECONDS}", *words
    )
