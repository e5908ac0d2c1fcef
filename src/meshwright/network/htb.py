"""What shaping by HTB, the kernel's hierarchical token bucket, needs at a rate. Writes no commands.

Rates are those of frames on the wire, in whole kbit/s, as HTB counts them.
"""

PAYLOAD_BYTES, FRAME_BYTES = 1448, 1514
"""Of a full Ethernet frame: what TCP carries, with time stamps, and what HTB counts."""
MAX_PACKET_BYTES = 65_536
PACKET_SECONDS = 200e-6
"""The time of a packet of several frames, which TCP hands over as one. Such packets save the
cores, but each comes through whole when it is its turn: a message arrives early by up to this."""
BURST_SECONDS = 100e-6
"""A timer may be this late without loss of bandwidth; more would let short messages through."""
ACKNOWLEDGEMENT = (
    "match ip protocol 6 0xff match u8 0x05 0x0f at 0 "
    "match u16 0x0000 0xffc0 at 2 match u8 0x10 0xff at 33"
)
"""For u32: TCP over IPv4 without options, shorter than 64 bytes, no flag but ACK. These should pass
unshaped: behind the data of the other direction they came late and in heaps, and transfers both
ways at once took up to 1.6 times as long as one alone."""
SHOWN_ACKNOWLEDGEMENT = (
    "match 00060000/00ff0000 at 8 match 05000000/0f00ffc0 at 0 match 00100000/00ff0000 at 32"
)
"""The same as `tc filter show` words it."""


def packet_bytes(kbit_per_second: float, seconds: float = PACKET_SECONDS) -> int:
    """The largest packet, several frames in one, that goes at this rate in so many seconds."""
    wanted = kbit_per_second * 1000 / 8 * seconds
    return round(min(max(2 * FRAME_BYTES, wanted), MAX_PACKET_BYTES))


def burst_bytes(kbit_per_second: float) -> int:
    """What may leave at once after a pause: two frames, or a late timer's worth if that is more."""
    wanted = kbit_per_second * 1000 / 8 * BURST_SECONDS
    return round(max(2 * FRAME_BYTES, wanted))


def shown_rate(kbit_per_second: int) -> str:
    """A rate as `tc class show` words it: digits are cut off when there are too many."""
    rate, unit = 1000 * kbit_per_second, 0
    while unit < 4 and rate >= 1000 and (rate % 1000 == 0 or rate >= 1_000_000):
        rate, unit = rate // 1000, unit + 1
    return f"{rate}{('', 'K', 'M', 'G', 'T')[unit]}bit"
