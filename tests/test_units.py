import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.units import (
    BYTES_PATTERN,
    FLOPS_PATTERN,
    GIB,
    KIB,
    MIB,
    RATE_PATTERN,
    SECONDS_PATTERN,
    format_bytes,
    format_count,
    format_flops,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_bytes_per_second,
    parse_flops_per_second,
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
        ("1.5 KiB", 1.5 * KIB),
        (" 2 MiB ", 2 * MIB),
        ("1e3 kB", 1e6),
        ("1 TiB", 2.0**40),
    ],
)
def test_sizes(text: float | str, size: float) -> None:
    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (5, 5.0),
        ("5", 5.0),
        ("12.5 GB/s", 12.5e9),
        ("12.5GB/s", 12.5e9),
        ("12.5 GBps", 12.5e9),
        ("12.5 GB/sec", 12.5e9),
        ("1 TB", 1e12),
        ("3.35 TB/s", 3.35e12),
        ("900 MB/s", 900e6),
        ("7 kB/s", 7e3),
        ("7 KB/s", 7e3),
        ("7 B/s", 7.0),
        ("50 GiB/s", 50 * GIB),
        ("2 KiB/s", 2 * KIB),
        ("1 EB/s", 1e18),
        ("400 Gb/s", 50e9),
        ("400Gb/s", 50e9),
        ("400 Gbps", 50e9),
        ("400 Gbit/s", 50e9),
        ("400 Gbits/s", 50e9),
        ("400 GBit/s", 50e9),
        ("400 gbit/s", 50e9),
        ("400 Gbit/sec", 50e9),
        ("4e2 Gb/s", 50e9),
        ("1.6 Tb/s", 200e9),
        ("1.6 Tbps", 200e9),
        ("100 Mb/s", 12.5e6),
        ("100 Mbit/s", 12.5e6),
        ("100mbit", 12.5e6),
        ("8 Kb/s", 1e3),
        ("8 kbit/s", 1e3),
        ("8 Gib/s", GIB),
        ("8 Gibit/s", GIB),
        ("8 bit/s", 1.0),
        ("8 bps", 1.0),
        ("8 b/s", 1.0),
        ("50 GB / s", 50e9),
        ("50 GB/S", 50e9),
        ("50 GB per second", 50e9),
        ("400 GbE", 50e9),
    ],
)
def test_rates(text: float | str, rate: float) -> None:
    assert parse_bytes_per_second(text, "link") == pytest.approx(rate, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("400G", "must be 'Gbit/s' or 'GB/s'"),
        ("400 G", "must be 'Gbit/s' or 'GB/s'"),
        ("400 G/s", "must be 'Gbit/s' or 'GB/s'"),
        ("400 Gps", "must be 'Gbit/s' or 'GB/s'"),
        ("400 gb/s", "must be 'Gbit/s' or 'GB/s'"),
        ("400 gbps", "must be 'Gbit/s' or 'GB/s'"),
        ("400 gB/s", "must be 'Gbit/s' or 'GB/s'"),
        ("400 mb/s", "must be 'Mbit/s' or 'MB/s'"),
        ("400 mB/s", "must be 'Mbit/s' or 'MB/s'"),
        ("400 kb/s", "must be 'Kbit/s' or 'KB/s'"),
        ("400 gib/s", "must be 'Gibit/s' or 'GiB/s'"),
        ("400 Gi/s", "must be 'Gibit/s' or 'GiB/s'"),
        ("400 t", "must be 'Tbit/s' or 'TB/s'"),
    ],
)
def test_what_may_be_bits_or_bytes_is_refused_with_both(text: str, offered: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes_per_second(text, "link")
    assert str(caught.value) == f"link: '{text}' may be bits or bytes: {offered}"


@pytest.mark.parametrize(
    "text",
    [
        "4 GT/s", "4 GHz", "4 G B/s", "4 GB/m", "4 GB/h", "GB/s", "-4 GB/s", "4,000 GB/s", "4 GBs",
        "4/s", "4 GFLOP/s", "x",
    ],
)  # fmt: skip
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be a rate such as '50 GB/s' or '100 Gbit/s'"):
        parse_bytes_per_second(text, "link")


def test_a_comma_may_be_a_decimal_point_and_is_refused_by_name() -> None:
    for text in ("4,000 GB/s", "4,5 GB/s"):
        with pytest.raises(InputError, match=f"got '{text}'; write it without commas"):
            parse_bytes_per_second(text, "link")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (312e12, 312e12),
        ("312e12", 312e12),
        ("67 TFLOP/s", 67e12),
        ("67TFLOP/s", 67e12),
        ("67 TFLOPS", 67e12),
        ("67 TFLOPs", 67e12),
        ("67 tflops", 67e12),
        ("67 TFlop/s", 67e12),
        ("67 TFLOP/sec", 67e12),
        ("1.979 PFLOPS", 1.979e15),
        ("1 EFLOP/s", 1e18),
        ("500 GFLOP/s", 500e9),
        ("3 MFLOPS", 3e6),
        ("5 FLOP/s", 5.0),
    ],
)
def test_operations_a_second(text: float | str, rate: float) -> None:
    assert parse_flops_per_second(text, "peak") == pytest.approx(rate, rel=1e-15)


@pytest.mark.parametrize("text", ["67 T", "67 TFLOP", "67 TB/s", "67 TOPS", "fast", "67 FLOPS/s/s"])
def test_what_is_no_number_of_operations_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"peak: .*must be a rate such as '67 TFLOP/s'"):
        parse_flops_per_second(text, "peak")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5 us", 5e-6),
        ("5 \u00b5s", 5e-6),
        ("5 \u03bcs", 5e-6),
        ("1.5 ms", 1.5e-3),
        ("20 ns", 2e-8),
        ("2 s", 2.0),
        (3, 3.0),
    ],
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
        ("80 GB/s", "memory: unknown unit 'GB/s'; must be a size such as '80 GiB'"),
        ("80 gb", "memory: '80 gb' must say how much it is: 'GB' or 'GiB'"),
        ("80G", "memory: '80G' must say how much it is: 'GB' or 'GiB'"),
        ("80 Gi", "memory: '80 Gi' must say how much it is: 'GB' or 'GiB'"),
        ("80 Gb", "memory: '80 Gb' must say how much it is: 'GB' or 'GiB'"),
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
    assert format_bytes(1023) == "1,023 B"
    assert format_bytes(1536) == "1.5 KiB"
    assert format_bytes(80 * GIB) == "80 GiB"
    assert format_bytes(2.0**53) == "8,192 TiB"
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
    # Four digits are printed, and a whole number of bytes below 1 KiB. From 1000 to 1023 of a unit
    # they have a comma, which is for people: readers refuse it, as to many it is a decimal point.
    printed = format_bytes(size).replace(",", "")
    assert parse_bytes(printed, "it") == pytest.approx(size, rel=1e-3, abs=0.5)


SIZES = [
    "B",
    "b",
    "bit",
    "Bits",
    "KBIT",
    "gb",
    "GB",
    "Gb",
    "GiB",
    "Gib",
    "G",
    "kB",
    "kb",
    "EB",
    "EiB",
]
TIMES = ["s", "ms", "us", "\u00b5s", "\u03bcs", "ns", "min"]
FLOPS = ["FLOPS", "TFLOP", "TFLOP/s", "tflops", "PFLOP/sec", "GFLOP/second", "TFLOPS/h", "x"]


@given(
    number=st.sampled_from(["4", "4.5", ".5", "5.", "1e3", "1.5E-3", "-1", "1.2.3", ".", "", "1e"]),
    unit=st.sampled_from(["", *SIZES, *TIMES, *FLOPS]),
    second=st.sampled_from(["", "/s", "/sec", "/second", "ps", "/min", "/S"]),
    space=st.sampled_from(["", " ", "  "]),
)
def test_patterns_match_what_is_read(number: str, unit: str, second: str, space: str) -> None:
    text = f"{space}{number}{space}{unit}{second}{space}"
    for parse, pattern in (
        (parse_bytes, BYTES_PATTERN),
        (parse_bytes_per_second, RATE_PATTERN),
        (parse_flops_per_second, FLOPS_PATTERN),
        (parse_seconds, SECONDS_PATTERN),
    ):
        try:
            parse(text, "")
            is_read = True
        except InputError:
            is_read = False
        assert (re.search(pattern, text) is not None) == is_read, (text, pattern)


@pytest.mark.parametrize(
    ("value", "text"),
    [(15789.6, "15,790"), (602.234, "602.2"), (999.96, "1,000"), (0, "0"), (2e9, "2,000,000,000"),
     (0.00123, "0.00123"), (-4321.0, "-4,321"), (math.inf, "inf")],
)  # fmt: skip
def test_numbers_have_four_digits_and_commas(value: float, text: str) -> None:
    assert format_number(value) == text


def test_flops_of_small_steps_have_no_exponents() -> None:
    shown = [format_flops(each) for each in (0.0, 512.0, 14340.0, 2.5e9, 2.919e12, 3.2e18)]
    wanted = ["0 FLOP", "512 FLOP", "14.34 kFLOP", "2.5 GFLOP", "2.919 TFLOP", "3,200,000 TFLOP"]
    assert shown == wanted


def test_counts_have_a_noun_and_shares_a_sign() -> None:
    assert [format_count(n, "op") for n in (0, 1, 1218)] == ["0 ops", "1 op", "1,218 ops"]
    assert format_count(2, "switch") == "2 switches"
    assert [format_percent(each) for each in (1.75, 0.0271, 0, math.inf, 123.4)] == [
        "175 %", "2.71 %", "0 %", "unknown", "12,300 %",
    ]  # fmt: skip
