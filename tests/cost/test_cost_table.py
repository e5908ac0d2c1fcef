"""Tables by hand."""

import pytest

from meshwright.cluster.cluster import CollectiveTable
from meshwright.cost.collective import table_seconds


def table(sizes: tuple[float, ...], seconds: tuple[float, ...]) -> CollectiveTable:
    return CollectiveTable(
        collective="all_reduce",
        device_type="chip",
        num_devices=2,
        sizes_bytes=sizes,
        seconds=seconds,
    )


def test_between_sizes_logarithms_are_linear() -> None:
    measured = table((1.0, 100.0, 10000.0), (1.0, 4.0, 400.0))
    assert table_seconds(measured, 10) == pytest.approx(2)
    assert table_seconds(measured, 1000) == pytest.approx(40)
    assert table_seconds(measured, 100) == pytest.approx(4)


def test_below_the_smallest_size_time_stays() -> None:
    measured = table((10.0, 100.0), (3.0, 4.0))
    assert table_seconds(measured, 1) == table_seconds(measured, 0) == 3.0


def test_above_the_largest_size_the_last_bandwidth_holds() -> None:
    # The last segment moves 90 bytes in 1.8 s: 50 bytes a second.
    assert table_seconds(table((10.0, 100.0), (3.0, 4.8)), 200) == pytest.approx(4.8 + 2)


def test_a_last_segment_that_falls_extends_in_proportion() -> None:
    assert table_seconds(table((10.0, 100.0), (5.0, 4.0)), 200) == pytest.approx(8)
