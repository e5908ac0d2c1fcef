"""Names: every example works, bad ones are refused in one line."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.catalogue import find_cluster, list_clusters, load_cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.errors import InputError

EXAMPLES = [entry.example for entry in list_clusters()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_builds_under_its_own_name(name: str) -> None:
    assert find_cluster(name).name == name


@pytest.mark.parametrize(
    ("name", "num_devices"),
    [
        ("dgx1", 8), ("dgx1-x4", 32), ("titan-v-4x4", 16), ("nvlink50-eth20-x5", 10),
        ("mesh2d-8x8", 64), ("torus3d-4x4x4", 64), ("random-blk1-64", 64), ("uniform-10-s7", 10),
        ("fat-tree-k4", 16), ("spine-leaf-2x3x4x5", 60), ("multi-rail-4x8x2", 32),
        ("h100-x8x16", 128), ("a100-80-x8x2", 16), ("tpuv4-4x4x4", 64), ("hierarchical-8x4x4", 128),
        ("h200-x1", 1), ("a100-80-x8", 8), ("v100-32-x4", 4), ("cpu-x2", 2), ("tpuv4-x4", 4),
        ("h100-spineleaf-8", 8), ("h100-spineleaf-1024", 1024), ("h100-spineleaf-200-o4", 200),
        ("tpuv4-fattree-1024", 1024), ("tpuv4-fattree-40", 40),
    ],
)  # fmt: skip
def test_names_have_their_devices(name: str, num_devices: int) -> None:
    assert load_cluster(name).num_devices == num_devices


@pytest.mark.parametrize("kind", DEVICE_TYPES)
@pytest.mark.parametrize("count", [1, 2, 16])
def test_every_type_makes_a_host(kind: str, count: int) -> None:
    cluster = find_cluster(f"{kind}-x{count}")
    assert len(cluster.hosts) == 1
    assert (cluster.bandwidth > 0).all()
    assert {device.type for device in cluster.devices} == {kind}


def test_a_precision_without_a_rate_runs_as_fp32() -> None:
    assert DEVICE_TYPES["v100-16"].peak_flops_per_second("bf16") == 15.7e12
    assert DEVICE_TYPES["h100"].peak_flops_per_second("bf16") == 989.5e12


@pytest.mark.parametrize(
    "name",
    ["h100-x8x99999999", "h100-x8x" + "9" * 5000, "mesh3d-9999x9999x9999", "uniform-99999999",
     "fat-tree-k1000000", "hierarchical-9x9x9x9x9x9x9x9x9", "dgx1-x4096", "tpuv4-x4096",
     "random-blk1-0", "h100-x0", "spine-leaf-1x1x1x1-o0", "mesh2d-4", "uniform-4-s" + "9" * 40,
     "h100-spineleaf-12", "h100-spineleaf-0", "h100-spineleaf-16392", "h100-spineleaf-16-o0",
     "tpuv4-fattree-100", "tpuv4-fattree-" + "9" * 30],
)  # fmt: skip
def test_bad_numbers_are_refused_at_once(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_cluster(name)
    assert len(str(caught.value)) < 400


def test_a_misspelt_name_lists_near_ones() -> None:
    with pytest.raises(InputError, match=r"no cluster 'tag-testbet' .* tag-testbed"):
        find_cluster("tag-testbet")


def test_neither_a_file_nor_a_name_says_both() -> None:
    with pytest.raises(InputError, match=r"no file 'h100-8', and no cluster .* h100-x8"):
        load_cluster("h100-8")


def test_a_cluster_is_itself() -> None:
    cluster = find_cluster("cpu-x1")
    assert load_cluster(cluster) is cluster


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    find_cluster("t4-x2").save("dgx1")
    assert load_cluster("dgx1").name == "t4-x2"
    assert load_cluster(tmp_path / "dgx1").name == "t4-x2"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a cluster file, is a folder"):
        load_cluster(tmp_path)


@settings(max_examples=200)
@given(st.one_of(st.text(), st.from_regex(r"[a-z0-9]+(-x?[0-9]{1,4}){0,3}", fullmatch=True)))
def test_any_text_is_a_cluster_or_an_input_error(name: str) -> None:
    message = ""
    try:
        find_cluster(name)
    except InputError as error:
        message = str(error)
    assert "\n" not in message


def test_naming_a_cluster_needs_no_numba() -> None:
    code = (
        "import sys; from meshwright.cluster.catalogue import find_cluster; "
        "find_cluster('dgx1-x4'); sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
