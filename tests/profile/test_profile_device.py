"""Names that devices give themselves, as CUDA reports them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.profile.device import find_device_type
from meshwright.profile.profile import check_device_type

KNOWN = {
    "NVIDIA H200": "h200",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-40GB": "a100-40",
    "A100-PCIE-40GB": "a100-40",
    "NVIDIA A100-SXM4-80GB": "a100-80",
    "NVIDIA A100 80GB PCIe": "a100-80",
    "Tesla V100-SXM2-16GB": "v100-16",
    "Tesla V100-PCIE-16GB": "v100-16",
    "Tesla V100-SXM2-32GB": "v100-32",
    "Tesla V100S-PCIE-32GB": "v100-32",
    "Tesla P100-PCIE-16GB": "p100",
    "Tesla T4": "t4",
    "NVIDIA GeForce GTX 1080 Ti": "1080ti",
    "GeForce GTX 1080 Ti": "1080ti",
    "NVIDIA TITAN V": "titan-v",
    "NVIDIA GeForce RTX 3070": "rtx3070",
    "NVIDIA GeForce RTX 4080 SUPER": "rtx4080s",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 5090": "rtx5090",
    "NVIDIA RTX A6000": "a6000",
    "NVIDIA A10": "a10",
    "NVIDIA A30": "a30",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA GB200": "gb200",
    "NVIDIA B300 SXM6 AC": "b300",
    "AMD Instinct MI250X": "mi250x-gcd",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
}
OTHERS = {
    "NVIDIA GeForce RTX 3070 Ti": "geforce-rtx-3070-ti",
    "NVIDIA GeForce RTX 3070 Laptop GPU": "geforce-rtx-3070-laptop-gpu",
    "NVIDIA GeForce RTX 4080": "geforce-rtx-4080",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": "h100-80gb-hbm3-mig-1g-10gb",
    "NVIDIA GH200 144G HBM3e": "gh200-144g-hbm3e",
    "NVIDIA A10G": "a10g",
    "NVIDIA L40": "l40",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada-generation",
    "NVIDIA GeForce RTX 4090 D": "geforce-rtx-4090-d",
    "AMD Instinct MI300A": "amd-instinct-mi300a",
    "": "unknown",
    "  éé ": "unknown",
}


@pytest.mark.parametrize("name", KNOWN)
def test_devices_of_the_catalogue_are_known_by_their_names(name: str) -> None:
    assert find_device_type(name) == KNOWN[name]


@pytest.mark.parametrize("name", OTHERS)
def test_other_devices_are_types_of_their_own(name: str) -> None:
    assert find_device_type(name) == OTHERS[name]


def test_every_device_of_the_catalogue_that_runs_cuda_or_rocm_has_a_name() -> None:
    others = {"cpu", "tpuv4", "tpuv5e", "tpuv5p", "gaudi3"}
    # ROCm has no name for a whole module.
    assert set(KNOWN.values()) == set(DEVICE_TYPES) - others - {"mi250x"}


@given(st.text())
def test_any_name_gives_a_type_that_can_be_written(name: str) -> None:
    check_device_type(find_device_type(name))


@given(st.text(alphabet="ab", min_size=50, max_size=90))
def test_names_of_more_than_64_letters_are_cut(name: str) -> None:
    assert find_device_type(name) == name[:64]


def test_a_name_is_not_cut_within_its_dashes() -> None:
    assert find_device_type(f"{'a' * 63} -- b") == "a" * 63
    assert find_device_type(f"{'a' * 62} -- b") == f"{'a' * 62}-b"
