"""Changes are read from the words that people write; what no one can mean is refused in a line."""

import pytest

from meshwright.change.amount import Amount
from meshwright.change.kind import (
    Batch,
    Change,
    Counted,
    DeviceCount,
    DeviceFigure,
    Figure,
    LinkLatency,
    LinkRate,
    TypeSwap,
    Without,
)
from meshwright.change.read import OPTIONS, read_change, read_changes
from meshwright.cli.parser.whatif import CHANGES
from meshwright.errors import InputError

DOUBLE = Amount(factor=2.0)


def value(number: float) -> Amount:
    return Amount(value=number)


@pytest.mark.parametrize(
    ("option", "text", "change"),
    [
        ("link", "leaf0=2x", LinkRate(links="leaf0", amount=DOUBLE)),
        ("link", "leaf0 = x2", LinkRate(links="leaf0", amount=DOUBLE)),
        # 400 gigabits are 50 gigabytes.
        ("link", "host0-leaf0=400Gb/s", LinkRate(links="host0-leaf0", amount=value(50e9))),
        ("link", "a->b=50GB/s", LinkRate(links="a->b", amount=value(50e9))),
        ("nic", "800Gb/s", LinkRate(links="nic", amount=value(100e9))),
        ("nic", "0.5x", LinkRate(links="nic", amount=Amount(factor=0.5))),
        ("latency", "2us", LinkLatency(links="*", amount=value(2e-6))),
        ("latency", "nic=2x", LinkLatency(links="nic", amount=DOUBLE)),
        (
            "memory", "h100=141GB",
            DeviceFigure(types="h100", figure=Figure.MEMORY, amount=value(141e9)),
        ),
        ("memory", "2x", DeviceFigure(types="*", figure=Figure.MEMORY, amount=DOUBLE)),
        (
            "speed", "h100=2000TFLOP/s",
            DeviceFigure(types="h100", figure=Figure.FLOPS, amount=value(2e15)),
        ),
        (
            "memory_rate", "4.8TB/s",
            DeviceFigure(types="*", figure=Figure.MEMORY_RATE, amount=value(4.8e12)),
        ),
        ("type", "h100=h200", TypeSwap(old="h100", new="h200")),
        ("devices", "+8", DeviceCount(unit=Counted.DEVICES, add=8)),
        ("devices", "x2", DeviceCount(unit=Counted.DEVICES, amount=DOUBLE)),
        ("devices", "16", DeviceCount(unit=Counted.DEVICES, amount=value(16.0))),
        ("hosts", "-1", DeviceCount(unit=Counted.HOSTS, add=-1)),
        ("hosts", "host3=+2", DeviceCount(unit=Counted.HOSTS, add=2, like="host3")),
        ("without", "host3", Without(hosts="host3")),
        ("batch", "2x", Batch(amount=DOUBLE)),
        ("batch", "96", Batch(amount=value(96.0))),
    ],
)  # fmt: skip
def test_words_are_read(option: str, text: str, change: Change) -> None:
    assert read_change(option, text) == change


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("link", "leaf0", "link: must be such as 'leaf0=2x' or 'host0-leaf0=400Gb/s', got 'leaf0'"),
        ("link", "=2x", "link: must be such as"),
        ("link", "leaf0=400G", "may be bits or bytes: must be 'Gbit/s' or 'GB/s'"),
        ("link", "leaf0=0x", "link 'leaf0': must be a positive factor, got '0x'"),
        ("link", "leaf0=-1GB/s", "link 'leaf0': must be a rate"),
        ("nic", "0", "nic: must be positive, got '0'"),
        ("nic", "fast", "nic: must be a rate"),
        ("latency", "2m", "latency: unknown unit 'm'"),
        ("memory", "h100=141Gb", "'141Gb' must say how much it is: 'GB' or 'GiB'"),
        ("memory", "h100=141G", "'141G' must say how much it is: 'GB' or 'GiB'"),
        ("speed", "h100=2PB", "speed 'h100': unknown unit 'PB'"),
        ("type", "h200", "type: must be such as 'h100=h200', got 'h200'"),
        ("devices", "8.5", "devices '8.5': must be such as '+8', '-8', 'x2' or a number in all"),
        ("devices", "+0", "devices '+0': must be from 1 to 16,384 more or fewer"),
        ("devices", "+99999999", "must be from 1 to 16,384 more or fewer"),
        ("hosts", "host3=2", "hosts 'host3=2': must be a number to add, such as 'host3=+1'"),
        ("without", "", "without: must name a host, got ''"),
        ("batch", "0", "batch: must be positive, got '0'"),
        ("batch", "nan", "batch: must be a number of samples or such as '2x', got 'nan'"),
        ("batch", "many", "batch: must be a number of samples or such as '2x', got 'many'"),
        ("bandwidth", "2x", "unknown change 'bandwidth'; one of link, nic"),
        ("lnk", "2x", "unknown change 'lnk'; did you mean link?"),
    ],
)
def test_what_no_one_can_mean_is_refused(option: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as found:
        read_change(option, text)
    assert message in str(found.value)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"^batch: must be a text such as '2x', got 2$"):
        read_changes({"batch": 2})  # type: ignore[dict-item]


def test_several_texts_of_an_option_are_several_changes() -> None:
    found = read_changes({"link": ["leaf0=2x", "leaf1=3x"], "batch": "2x"})
    assert [str(each) for each in found] == ["leaf0 2x", "leaf1 3x", "batch 2x"]


def test_the_command_line_has_every_option() -> None:
    assert list(CHANGES) == list(OPTIONS)


@pytest.mark.parametrize("amounts", [{}, {"factor": 1.0, "value": 1.0}, {"factor": float("inf")}])
def test_an_amount_is_a_factor_or_a_value(amounts: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"^amount: must be"):
        Amount(**amounts)


def test_a_count_is_added_or_in_all() -> None:
    with pytest.raises(InputError, match="must be a number to add or a number in all"):
        DeviceCount(unit=Counted.HOSTS)
    with pytest.raises(InputError, match="a number to add must not be 0"):
        DeviceCount(unit=Counted.HOSTS, add=0)
