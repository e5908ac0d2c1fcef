"""Fits of tables and links by hand, and against the published measurements."""

import csv
from pathlib import Path

import numpy as np
import pytest

from meshwright.cost.collective import table_seconds
from meshwright.errors import InputError
from table_fit import fit_link, fit_table


def test_a_fit_finds_the_corner_of_a_broken_line() -> None:
    sizes = 2.0 ** np.arange(21)
    seconds = np.where(sizes < 1024, 1.0, sizes / 1024)
    fitted = fit_table("all_reduce", "chip", 2, sizes, seconds, max_knots=3)
    assert fitted.sizes_bytes == pytest.approx((1.0, 1024.0, 2.0**20))
    assert fitted.seconds == pytest.approx((1.0, 1.0, 1024.0), rel=1e-6)


def test_a_fit_uses_no_more_knots_than_it_needs() -> None:
    sizes = 2.0 ** np.arange(11)
    fitted = fit_table("all_reduce", "chip", 2, sizes, np.sqrt(sizes))
    assert len(fitted.sizes_bytes) <= 4  # rounding may look like a gain, a curve does not


def test_an_outlier_among_repeats_does_not_move_the_fit() -> None:
    sizes = np.repeat(2.0 ** np.arange(11), 3)
    seconds = sizes.copy()
    seconds[::3] *= 50
    fitted = fit_table("all_reduce", "chip", 2, sizes[::-1], seconds[::-1])
    assert table_seconds(fitted, 64) == pytest.approx(64, rel=1e-6)


def test_a_thousand_noisy_points_fit_within_their_noise() -> None:
    random = np.random.default_rng(0)
    sizes = np.arange(1, 1501) * 2.0**20
    truth = 50e-6 + sizes / 200e9
    fitted = fit_table("all_reduce", "chip", 2, sizes, truth * random.lognormal(0, 0.05, 1500))
    predicted = np.array([table_seconds(fitted, size) for size in sizes])
    assert len(fitted.sizes_bytes) <= 24
    assert np.mean(np.abs(predicted / truth - 1)) < 0.02


def test_a_link_is_recovered_from_its_own_times() -> None:
    sizes = np.array([1e3, 1e5, 1e7])
    latency, rate = fit_link(sizes, 5e-6 + sizes / 25e9)
    assert latency == pytest.approx(5e-6)
    assert rate == pytest.approx(25e9)


def test_a_link_has_no_negative_latency() -> None:
    latency, rate = fit_link([1.0, 2.0], [1.0, 3.0])
    # With no latency: rate = sum of (n/t)^2 over sum of n/t = (1 + 4/9) / (1 + 2/3).
    assert latency == 0.0
    assert rate == pytest.approx((13 / 9) / (5 / 3))


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ([1.0], [1.0], "two or more distinct sizes"),
        ([1.0, 1.0], [1.0, 2.0], "two or more distinct sizes"),
        ([1.0, 2.0], [1.0], "equal length"),
        ([0.0, 2.0], [1.0, 1.0], "sizes must be positive"),
        ([1.0, 2.0], [1.0, float("nan")], "seconds must be positive"),
        ([1.0, 1000.0], [5.0, 1.0], "must rise with the size"),
    ],
)
def test_bad_measurements_of_a_link_are_named(
    sizes: list[float], seconds: list[float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fit_link(sizes, seconds)


def test_too_few_knots_are_refused() -> None:
    with pytest.raises(InputError, match="max_knots must be two or more, got 1"):
        fit_table("all_reduce", "chip", 2, [1.0, 2.0], [1.0, 2.0], max_knots=1)


@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_fitted_tables_hold_out_within_five_percent(shared: Path, num_devices: int) -> None:
    """vTrain's measured all-reduce: fit every other row, predict the rest."""
    with (shared / "vtrain" / f"a100_AR_GPU{num_devices}_LUT.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    sizes = np.array([float(row[0]) for row in rows])
    seconds = np.array([float(row[3]) * 1e-9 for row in rows])  # out of place
    fitted = fit_table("all_reduce", "a100-80", num_devices, sizes[::2], seconds[::2])
    predicted = np.array([table_seconds(fitted, size) for size in sizes[1::2]])
    assert np.mean(np.abs(predicted / seconds[1::2] - 1)) < 0.05
