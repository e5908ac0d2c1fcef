import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.units import (
    GIB,
    KIB,
    MIB,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_bytes_per_second,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (7, 7.0),
        (8.5e9, 8.5e9),
        ("12", 12.0),
        ("12 B", 12.0),
        ("80 GB", 80e9),
        ("80GiB", 80 * GIB),
        ("1.5 kib", 1.5 * KIB),
        (" 2 MiB ", 2 * MIB),
        ("1e3 kB", 1e6),
        ("1 TiB", 2.0**40),
    ],
)
def test_sizes(text: float | str, size: float) -> None:
    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [("12.5 GB/s", 12.5e9), ("100 Gbit/s", 12.5e9), ("8 bit/s", 1.0), ("1 TB", 1e12), (5, 5.0)],
)
def test_rates(text: float | str, rate: float) -> None:
    assert parse_bytes_per_second(text, "link") == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5 us", 5e-6), ("5 µs", 5e-6), ("1.5 ms", 1.5e-3), ("20 ns", 2e-8), ("2 s", 2.0), (3, 3.0)],
)
def test_times(text: float | str, seconds: float) -> None:
    assert parse_seconds(text, "latency") == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("much", "memory: must be a size such as '80 GiB', got 'much'"),
        ("-1 GB", "memory: must be a size such as '80 GiB', got '-1 GB'"),
        ("1.2.3 GB", "memory: must be a size such as '80 GiB', got '1.2.3 GB'"),
        ("", "memory: must be a size such as '80 GiB', got ''"),
        ("5 parsec", "memory: unknown unit 'parsec'; must be a size such as '80 GiB'"),
        ("1e999 GB", "memory: must be finite, got 1e999 GB"),
        (math.nan, "memory: must be finite, got nan"),
        (math.inf, "memory: must be finite, got inf"),
    ],
)
def test_a_bad_size_is_refused(text: float | str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes(text, "memory")
    assert str(caught.value) == message


def test_a_size_is_no_rate_and_bits_are_no_size() -> None:
    with pytest.raises(InputError, match="unknown unit 'Gbit'"):
        parse_bytes("1 Gbit", "memory")
    with pytest.raises(InputError, match="unknown unit 'MS'"):
        parse_seconds("1 MS", "latency")  # a megasiemens is no millisecond


def test_a_long_text_is_no_quantity() -> None:
    for text in (f"1{' ' * 1_000_000}!", "9" * 1_000_000):
        with pytest.raises(InputError, match="memory: must be a size such as '80 GiB', got"):
            parse_bytes(text, "memory")


def test_sizes_are_printed() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(1536) == "1.5 KiB"
    assert format_bytes(80 * GIB) == "80 GiB"
    assert format_bytes(2.0**53) == "8192 TiB"
    assert format_bytes(math.inf) == "inf"


def test_times_are_printed() -> None:
    assert format_seconds(0) == "0 s"
    assert format_seconds(12.5) == "12.5 s"
    assert format_seconds(0.0123) == "12.3 ms"
    assert format_seconds(4.5e-6) == "4.5 us"
    assert format_seconds(2e-9) == "2 ns"
    assert format_seconds(math.inf) == "inf"


def test_rates_are_printed() -> None:
    assert format_rate(5e10) == "50 GB/s"
    assert format_rate(2.5e12) == "2.5 TB/s"
    assert format_rate(1.5e6) == "1.5 MB/s"
    assert format_rate(2000) == "2 kB/s"
    assert format_rate(3) == "3 B/s"


@given(st.floats(min_value=1, max_value=1e15))
def test_a_printed_size_reads_back(size: float) -> None:
    # four digits are printed, and a whole number of bytes below 1 KiB
    assert parse_bytes(format_bytes(size), "it") == pytest.approx(size, rel=1e-3, abs=0.5)
