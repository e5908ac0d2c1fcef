"""Prices are read with their unit, and a cluster costs what its devices and hosts do."""

import math

import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError
from meshwright.whatif.price import Price, check_prices, price_per_hour, read_price

TESTBED = find_cluster("tag-testbed")  # 4 V100, 8 GTX 1080 Ti on 4 hosts, 4 P100 on 2 hosts


@pytest.mark.parametrize(
    ("text", "name", "per_hour"),
    [
        ("h100=2.10/h", "h100", 2.10),
        ("h100=2.10", "h100", 2.10),
        ("h100 = $2 / hour", "h100", 2.0),
        ("host*=480/day", "host*", 20.0),
        ("h100=0.001/s", "h100", 3.6),
        ("h100=0.1/min", "h100", 6.0),
        ("h100=730/month", "h100", 1.0),
        ("h100=0", "h100", 0.0),
    ],
)
def test_prices_are_an_hour(text: str, name: str, per_hour: float) -> None:
    price = read_price(text)
    assert price.name == name
    assert price.per_hour == pytest.approx(per_hour)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100", "price: must be such as 'h100=2.10/h', got 'h100'"),
        ("=2", "price: must be such as"),
        ("h100=two", "price: must be such as"),
        ("h100=-2", "price: must be such as"),
        ("h100=2/week", "price 'h100': must be per s, min, h, hour, day, month, got 'week'"),
        ("h100=9" + "9" * 20, "price 'h100': must be from 0 to 1e+12 an hour"),
    ],
)
def test_what_is_no_price_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as found:
        read_price(text)
    assert message in str(found.value)


def price(**prices: float) -> float:
    given = [Price(name=name.replace("_", "-"), per_hour=each) for name, each in prices.items()]
    return price_per_hour(TESTBED, given)


def test_a_cluster_costs_what_its_devices_cost() -> None:
    assert price(v100_32=3.0, **{"1080ti": 0.5}, p100=1.0) == 4 * 3.0 + 8 * 0.5 + 4 * 1.0


def test_a_host_with_a_price_costs_that() -> None:
    # The V100 are in one host.
    assert price(v100_host0=10.0, **{"1080ti": 0.5}, p100=1.0) == 10.0 + 8 * 0.5 + 4 * 1.0
    hosts = [Price(name="1080ti-host*", per_hour=2.0), Price(name="*", per_hour=7.0)]
    # The last price of a host counts.
    assert price_per_hour(TESTBED, hosts) == 7 * 7.0


def test_without_a_price_for_all_nothing_is_known() -> None:
    assert math.isnan(price(v100_32=3.0))
    assert math.isnan(price())


def test_a_price_of_nothing_is_refused() -> None:
    check_prices([Price(name="h200", per_hour=1.0)], TESTBED)  # which a change may bring
    check_prices([Price(name="p100-host*", per_hour=1.0)], TESTBED)
    with pytest.raises(InputError, match="no type of device and no host 'h20'; did you mean h200"):
        check_prices([Price(name="h20", per_hour=1.0)], TESTBED)
