"""Packets, bursts and rates at a rate, by hand."""

import pytest

from meshwright.network.htb import burst_bytes, packet_bytes, shown_rate


def test_packets_last_200_us_and_bursts_half_of_that() -> None:
    # 522,790 kbit/s is 65,348.75 bytes a ms.
    assert (packet_bytes(522_790), burst_bytes(522_790)) == (13_070, 6_535)
    # A slow link's are two frames, a fast one's packets what IP allows.
    assert (packet_bytes(10_000), burst_bytes(10_000)) == (3_028, 3_028)
    assert packet_bytes(10_000_000) == 65_536


@pytest.mark.parametrize(
    ("kbit", "text"),
    [
        (1, "1Kbit"),
        (999, "999Kbit"),
        (1000, "1Mbit"),
        (123_456, "123456Kbit"),
        (600_000, "600Mbit"),
        (999_999, "999999Kbit"),
        (1_000_000, "1Gbit"),
        (1_234_567, "1234Mbit"),  # as tc of iproute2 6.1 shows it
        (40_000_000, "40Gbit"),
        (1_234_567_890, "1234Gbit"),
    ],
)
def test_rates_are_worded_as_tc_does(kbit: int, text: str) -> None:
    assert shown_rate(kbit) == text
