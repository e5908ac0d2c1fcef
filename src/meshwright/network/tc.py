"""Shapes interfaces by `tc`, the kernel's own: lines of shell. Knows no clusters or routes.

HTB with the classes that Open vSwitch makes: one for the interface at the link's rate, and below it
one a destination and one for everything else.

    HANDLE fffe       rate = ceil = link
      HANDLE 1        rate = what is left, at least 1% of the link; ceil = link
      HANDLE N + 1    rate = ceil = queue N

A destination's rate is both its guarantee and its cap. Everything else has what the queues leave
and borrows what they do not use. Where they leave nothing it still has 1%: without it a host whose
links are allocated to the last bit could not even be reached. All together may then ask for 1% more
than the link has, which the link itself refuses; TCP's bare acknowledgements pass unshaped.
"""

import ipaddress

from meshwright.network.htb import (
    ACKNOWLEDGEMENT,
    SHOWN_ACKNOWLEDGEMENT,
    burst_bytes,
    packet_bytes,
    shown_rate,
)
from meshwright.network.shape import Queue, ShapedInterface
from meshwright.network.step import ScriptSteps, command

HANDLE = "4d57:"
"""Of the root qdisc; "MW" in ASCII, by which it is known as ours."""
DEFAULT_PART = 0.01
"""Of the link, at least, for what has no queue."""


def default_kbit(interface: ShapedInterface) -> int:
    """What everything else is guaranteed, in kbit/s."""
    left = interface.kbit_per_second - sum(each.kbit_per_second for each in interface.queues)
    return max(left, round(DEFAULT_PART * interface.kbit_per_second), 1)


def class_of(queue: Queue, handle: str) -> str:
    """The class of a queue: Open vSwitch counts them the same way."""
    return f"{handle}{queue.number + 1:x}"


def tc_steps(interface: ShapedInterface) -> ScriptSteps:
    """Shape an interface; nothing for one that only receives."""
    if not interface.queues:
        return ScriptSteps()
    name = interface.name
    return ScriptSteps(
        check=(command("check_shape", name),),
        change=(
            command("tc", "qdisc", "add", "dev", name, "root", "handle", HANDLE, "htb",
                    "default", "1"),
            *_class_lines(interface),
            *_filter_lines(interface),
        ),
        expected=expected_lines(interface, HANDLE)
        + tuple(
            command("fact", f"{name} filter {match} = flowid {flow}")
            for flow, match in (
                (HANDLE, SHOWN_ACKNOWLEDGEMENT),
                *((class_of(each, HANDLE), shown_target(each)) for each in interface.queues),
            )
        ),
        found=(command("found_shape", name),),
        restore=(command("restore_shape", name, HANDLE),),
    )  # fmt: skip


def shown_target(queue: Queue) -> str:
    """A match of its destination as `tc filter show` words it."""
    return f"match {int(ipaddress.IPv4Address(queue.address)):08x}/ffffffff at 16"


def expected_lines(interface: ShapedInterface, handle: str, least_kbit: int = 1) -> tuple[str, ...]:
    """Print the qdisc and the classes that should be there."""
    link, rest = interface.kbit_per_second, default_kbit(interface)
    classes = [
        (f"{handle}fffe", "", link, link),
        (f"{handle}1", f" parent {handle}fffe", rest, link),
        *(
            (class_of(each, handle), f" parent {handle}fffe", each.kbit_per_second, None)
            for each in interface.queues
        ),
    ]
    facts = [f"qdisc root = htb {handle} default 1"]
    for own, parent, rate, ceiling in classes:
        rates = (max(least_kbit, rate), max(least_kbit, ceiling or rate))
        shown = [shown_rate(each) for each in rates]
        facts.append(f"class {own} ={parent} rate {shown[0]} ceil {shown[1]}")
    return tuple(command("fact", f"{interface.name} {fact}") for fact in facts)


def _class_lines(interface: ShapedInterface) -> list[str]:
    link, name, parent = interface.kbit_per_second, interface.name, f"{HANDLE}fffe"
    return [
        _class_line(name, (HANDLE, parent), link, link),
        _class_line(name, (parent, f"{HANDLE}1"), default_kbit(interface), link),
        *(
            _class_line(name, (parent, class_of(each, HANDLE)), each.kbit_per_second)
            for each in interface.queues
        ),
    ]


def _class_line(
    interface: str, classes: tuple[str, str], rate: int, ceiling: int | None = None
) -> str:
    """A class by its parent and its own name."""
    most = ceiling or rate
    return command(
        "tc", "class", "add", "dev", interface, "parent", classes[0], "classid", classes[1],
        "htb", "rate", f"{rate}kbit", "ceil", f"{most}kbit", "burst", f"{burst_bytes(rate)}b",
        "cburst", f"{burst_bytes(most)}b", "quantum", packet_bytes(most),
    )  # fmt: skip


def _filter_lines(interface: ShapedInterface) -> list[str]:
    head = ("tc", "filter", "add", "dev", interface.name, "parent", HANDLE, "protocol", "ip",
            "prio", 1, "u32")  # fmt: skip
    return [
        command(*head, *ACKNOWLEDGEMENT.split(), "flowid", HANDLE),
        *(
            command(*head, "match", "ip", "dst", f"{each.address}/32", "flowid",
                    class_of(each, HANDLE))
            for each in interface.queues
        ),
    ]  # fmt: skip
