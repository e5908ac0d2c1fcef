"""Types of devices: their figures against data sheets, and what every one of them must have."""

import pytest

import meshwright as mw
from meshwright.cluster.builder.inside import INSIDE
from meshwright.cluster.devices import DEVICE_TYPES, find_type
from meshwright.errors import InputError
from meshwright.units import GIB

BOXES = {
    "p100": 16, "1080ti": 11, "titan-v": 12, "v100-16": 16, "v100-32": 32, "t4": 16,
    "rtx3070": 8, "rtx3090": 24, "rtx4080s": 16, "rtx4090": 24, "rtx5090": 32, "a6000": 48,
    "a10": 24, "a30": 24, "l4": 24, "l40s": 48, "a100-40": 40, "a100-80": 80, "h100": 80,
    "h200": 141, "gh200": 96, "b200": 180, "gb200": 186, "b300": 288, "mi250x": 128,
    "mi250x-gcd": 64, "mi300x": 192, "mi325x": 256, "tpuv5e": 16, "tpuv5p": 95, "gaudi3": 128,
}  # fmt: skip
"""Gigabytes on the box."""

SHEETS: dict[str, tuple[float, float, float]] = {
    # bf16 (dense), fp32, memory bandwidth in TFLOPS and GB/s, in the form that sheets have.
    # Written by the hand of the catalogue: finds slips of units and sparsity, no wrong sheet.
    "l4": (242 / 2, 30.3, 300), "l40s": (362.05, 91.6, 864), "a10": (125, 31.2, 600),
    "a30": (165, 10.3, 933), "a6000": (309.7 / 2, 38.7, 768), "rtx3090": (142 / 2, 35.6, 936),
    "rtx4090": (330.4 / 2, 82.6, 1008), "rtx5090": (419 / 2, 104.8, 1792),
    "gh200": (1979 / 2, 67, 4000), "b200": (4500 / 2, 75, 8000), "gb200": (5000 / 2, 80, 8000),
    "b300": (36000 / 8 / 2, 600 / 8, 8000), "mi250x": (383, 95.7, 3276.8),
    "mi300x": (1307.4, 163.4, 5300), "mi325x": (1307.4, 163.4, 6000), "tpuv5e": (197, 32.8, 819),
    "tpuv5p": (459, 76.5, 2765), "gaudi3": (1835, 229, 3670),
}  # fmt: skip


@pytest.mark.parametrize("name", SHEETS)
def test_figures_are_those_of_the_data_sheet(name: str) -> None:
    kind, (bf16, fp32, rate) = DEVICE_TYPES[name], SHEETS[name]
    assert kind.peak_flops_per_second("bf16") / 1e12 == pytest.approx(bf16, rel=0.003)
    assert kind.peak_flops_per_second("fp32") / 1e12 == pytest.approx(fp32, rel=0.003)
    assert kind.memory_bytes_per_second / 1e9 == rate


def test_device_memory_is_below_the_number_on_the_box() -> None:
    assert set(BOXES) == set(DEVICE_TYPES) - {"tpuv4", "cpu"}
    for name, gigabytes in BOXES.items():
        assert 0.9 * gigabytes * GIB < DEVICE_TYPES[name].memory_bytes < gigabytes * GIB


@pytest.mark.parametrize("name", DEVICE_TYPES)
def test_every_type_has_a_source_and_falls_from_precision_to_precision(name: str) -> None:
    kind = DEVICE_TYPES[name]
    assert len(kind.source) > 10
    assert name in INSIDE
    # A narrower format is never slower, as far as a sheet has it: a swapped pair would show.
    for order in (("fp64", "fp32", "tf32", "bf16", "fp8", "fp4"), ("fp32", "tf32", "fp16", "fp8")):
        rates = [kind.flops_per_second[each] for each in order if each in kind.flops_per_second]
        assert rates == sorted(rates)


def test_half_of_a_module_is_half_of_its_figures() -> None:
    whole, half = DEVICE_TYPES["mi250x"], DEVICE_TYPES["mi250x-gcd"]
    assert half.memory_bytes * 2 == whole.memory_bytes
    assert half.memory_bytes_per_second * 2 == whole.memory_bytes_per_second
    for precision, rate in whole.flops_per_second.items():
        assert half.flops_per_second[precision] * 2 == rate


@pytest.mark.parametrize("name", DEVICE_TYPES)
def test_a_small_model_is_planned_on_every_type(name: str) -> None:
    answer = mw.plan("mlp", f"{name}-x2", method="data", budget_seconds=1)
    assert answer.plan is not None
    assert 0 < answer.bound_seconds <= answer.step_seconds < 10


def test_an_unknown_type_names_near_ones() -> None:
    with pytest.raises(InputError, match=r"unknown device type 'mi300'; did you mean mi300x"):
        find_type("mi300")
