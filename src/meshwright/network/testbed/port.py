"""Shapes what leaves a network interface: rates as lines for `tc -batch`. Knows no clusters.

HTB: a leaf class a flow, each capped by its `ceil`, under one class for each capacity that several
flows share. Shares are fair whatever TCP does, because HTB serves its leaves in turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwright.network import htb
from meshwright.network.htb import FRAME_BYTES, PAYLOAD_BYTES

PACKETS_IN_FLIGHT = 3
"""Of a connection, queues included (TCP small queues). Two keep a link busy. With the kernel's own
4 MB the older of two connections between two hosts had 80% of the link; with this, half."""
HOST_SECONDS = 50e-6
"""A packet takes the cores about this long, from host to host, with all who wake up for it (2
ARM cores, 2026-11): with more hosts packets must be larger, or the cores are the network."""
LEAST_KBIT_PER_SECOND = 12
"""A guarantee that comes to nothing: guarantees add up past the capacity that leaves share."""


@dataclass(frozen=True, slots=True)
class ShapedFlow:
    """What goes from one address to another; None stands for any."""

    bytes_per_second: float
    source: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLane:
    """A capacity and the flows that share it."""

    bytes_per_second: float
    flows: tuple[ShapedFlow, ...]

    @property
    def is_short(self) -> bool:
        """Whether all flows together want more than the capacity."""
        wanted = sum(flow.bytes_per_second for flow in self.flows)
        return wanted > self.bytes_per_second * (1 + 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An interface in a namespace, and the lanes of what leaves it."""

    namespace: str
    interface: str
    lanes: tuple[FlowLane, ...]


def first_lanes(lanes: Iterable[FlowLane]) -> tuple[FlowLane, ...]:
    """For where flows begin: every flow gets its cap, and short lanes theirs on top."""
    found: list[FlowLane] = []
    for lane in lanes:
        if lane.is_short:
            found.append(lane)
        else:
            found.extend(
                FlowLane(bytes_per_second=flow.bytes_per_second, flows=(flow,))
                for flow in lane.flows
            )
    return tuple(found)


def later_lanes(lanes: Iterable[FlowLane]) -> tuple[FlowLane, ...]:
    """For further on, where flows have met their caps already: only what can be short."""
    return tuple(
        replace(
            lane,
            flows=tuple(
                replace(flow, bytes_per_second=lane.bytes_per_second) for flow in lane.flows
            ),
        )
        for lane in lanes
        if lane.is_short
    )


def wire_kbit_per_second(bytes_per_second: float) -> int:
    """The rate of frames, in whole kbit/s, at which TCP carries that many bytes of payload."""
    return max(1, round(bytes_per_second * 8 * FRAME_BYTES / PAYLOAD_BYTES / 1000))


def packet_bytes(bytes_per_second: float, num_hosts: int = 1) -> int:
    """The largest packet, several frames in one, that goes at this rate of payload."""
    seconds = max(htb.PACKET_SECONDS, num_hosts * HOST_SECONDS)
    return htb.packet_bytes(wire_kbit_per_second(bytes_per_second), seconds)


def burst_bytes(bytes_per_second: float) -> int:
    """What may leave at once after a pause, at this rate of payload."""
    return htb.burst_bytes(wire_kbit_per_second(bytes_per_second))


def shape_lines(port: Port, *, num_hosts: int = 1, least_packet_bytes: int = 0) -> tuple[str, ...]:
    """Lines for `tc -batch`; none where nothing is to be shaped.

    What no filter names (ARP) passes unshaped: HTB without a default class sends it at once.
    Packets that are larger than their rates ask for must be known, or shares become unequal.
    """
    if not port.lanes:
        return ()
    lines = [
        f"qdisc add dev {port.interface} root handle 1: htb",
        f"filter add dev {port.interface} parent 1: protocol ip prio 1 u32 "
        f"{htb.ACKNOWLEDGEMENT} flowid 1:",  # bare ones of TCP pass unshaped
    ]
    number = 1
    for lane in port.lanes:
        # The same for all leaves of a lane: turns of different size would be unequal shares.
        quantum = max(packet_bytes(lane.bytes_per_second, num_hosts), least_packet_bytes)
        added = _lane_lines(port.interface, lane, number, quantum)
        number += len(lane.flows) + (len(lane.flows) > 1)
        lines += added
    return tuple(lines)


def _lane_lines(interface: str, lane: FlowLane, number: int, quantum: int) -> list[str]:
    """Classes from `number` on, and their filters: a flow alone needs no class above its own."""
    lines, parent = [], 0
    if len(lane.flows) > 1:
        lines.append(_class_line(interface, (0, number), lane.bytes_per_second, quantum))
        parent = number
    for leaf, flow in enumerate(lane.flows, start=number + bool(parent)):
        rate = min(flow.bytes_per_second, lane.bytes_per_second)
        lines.append(_class_line(interface, (parent, leaf), rate, quantum))
        lines.append(_filter_line(interface, flow, leaf))
    return lines


def _class_line(
    interface: str, numbers: tuple[int, int], bytes_per_second: float, quantum: int
) -> str:
    """A class by the numbers of its parent (0: none) and its own; a child borrows all it sends."""
    parent, own = numbers
    ceiling, cburst = wire_kbit_per_second(bytes_per_second), burst_bytes(bytes_per_second)
    rate, burst = ceiling, cburst
    if parent:
        rate, burst = min(ceiling, LEAST_KBIT_PER_SECOND), FRAME_BYTES
    above = f"1:{parent:x}" if parent else "1:"
    return (
        f"class add dev {interface} parent {above} classid 1:{own:x} htb rate {rate}kbit "
        f"ceil {ceiling}kbit burst {burst}b cburst {cburst}b quantum {quantum}"
    )


def _filter_line(interface: str, flow: ShapedFlow, number: int) -> str:
    ends: Sequence[tuple[str, str | None]] = (("src", flow.source), ("dst", flow.target))
    matches = "".join(f" match ip {end} {address}/32" for end, address in ends if address)
    return (
        f"filter add dev {interface} parent 1: protocol ip prio 1 u32{matches} flowid 1:{number:x}"
    )
