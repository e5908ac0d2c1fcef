"""Cluster files: round trips, forms, one-line refusals, fuzzing."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.cluster.catalogue import find_cluster, list_clusters
from meshwright.cluster.cluster import Cluster, CollectiveTable
from meshwright.cluster.file import decode_cluster, read_cluster
from meshwright.errors import InputError

EXPLICIT: dict[str, Any] = {
    "format": "meshwright.cluster",
    "version": 1,
    "name": "two",
    "types": {
        "toy": {
            "flops_per_second": {"fp32": "1e12"},
            "memory_bytes": "8 GiB",
            "memory_bytes_per_second": "100 GB/s",
        }
    },
    "devices": [
        {"name": "a", "type": "toy", "host": "h"},
        {"name": "b", "type": "t4", "host": "h", "memory_bytes": "4 GB"},
    ],
    "switches": ["s"],
    "links": [
        {"source": "a", "target": "s", "bytes_per_second": "50 GB/s", "both_ways": True},
        {"source": "s", "target": "b", "bytes_per_second": "100 Gbit/s", "latency_seconds": "5 us"},
        {"source": "b", "target": "s", "bytes_per_second": 1e9},
    ],
}
BUILDER: dict[str, Any] = {
    "format": "meshwright.cluster",
    "version": 1,
    "build": "hierarchical",
    "name": "ours",
    "arguments": {
        "devices_per_host": 2,
        "branching": [4, 3],
        "oversubscription": [2],
        "host_bytes_per_second": "100 Gbit/s",
        "device_type": "a100-80",
    },
}
TABLE = CollectiveTable(
    collective="all_reduce",
    device_type="t4",
    num_devices=2,
    sizes_bytes=(1.0, 1e6 / 3),
    seconds=(1e-5, 0.1),
)


def read(document: object) -> Cluster:
    return decode_cluster(json.dumps(document).encode(), "test")


def assert_same(one: Cluster, other: Cluster) -> None:
    for field in dataclasses.fields(Cluster):
        first, second = getattr(one, field.name), getattr(other, field.name)
        assert (dict(first) if field.name == "types" else first) == (
            dict(second) if field.name == "types" else second
        )


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml.gz", ".json.gz"])
@pytest.mark.parametrize("name", [entry.example for entry in list_clusters()[3:11]])
def test_a_saved_cluster_comes_back_exactly(tmp_path: Path, name: str, suffix: str) -> None:
    cluster = dataclasses.replace(find_cluster(name), tables=(TABLE,))
    path = tmp_path / f"cluster{suffix}"
    cluster.save(path)
    assert_same(cluster, Cluster.load(path))
    assert_same(cluster, read_cluster(path))


def test_human_units_are_read() -> None:
    cluster = read(EXPLICIT)
    assert cluster.memory_bytes.tolist() == [8 * 2**30, 4e9]
    assert cluster.bandwidth.tolist() == [[float("inf"), 12.5e9], [1e9, float("inf")]]
    assert cluster.latency[0, 1] == pytest.approx(5e-6)
    assert cluster.types["toy"].flops_per_second["fp32"] == 1e12
    assert cluster.types["t4"].flops_per_second["fp16"] == 65e12
    assert len(cluster.links) == 4


def test_what_libraries_keep_and_who_launches_kernels_come_back(tmp_path: Path) -> None:
    toy = EXPLICIT["types"]["toy"] | {"library_bytes": "16 MiB", "is_asynchronous": False}
    cluster = read(EXPLICIT | {"types": {"toy": toy}})
    kind = cluster.types["toy"]
    assert (kind.library_bytes, kind.is_asynchronous) == (16 * 2**20, False)
    cluster.save(tmp_path / "cluster.json")
    assert_same(cluster, Cluster.load(tmp_path / "cluster.json"))


def test_types_keep_nothing_and_are_launched_on_unless_said() -> None:
    kind = read(EXPLICIT).types["toy"]
    assert (kind.library_bytes, kind.is_asynchronous) == (0, True)


def test_yaml_says_the_same_as_json() -> None:
    assert_same(read(EXPLICIT), decode_cluster(yaml.safe_dump(EXPLICIT).encode(), "test"))


def test_a_builder_file_builds() -> None:
    cluster = read(BUILDER)
    assert (cluster.name, cluster.num_devices) == ("ours", 24)
    rates = {(link.source, link.target): link.bytes_per_second for link in cluster.links}
    assert rates["host0", "tier1-0"] == 12.5e9
    assert rates["tier1-0", "tier2-0"] == 4 * 12.5e9 / 2


def test_a_matrix_may_have_units() -> None:
    document = BUILDER | {
        "build": "from_matrix",
        "arguments": {"bytes_per_second": [[0, "1 GB/s"], [2e9, 0]], "device_type": "t4"},
    }
    assert read(document).bandwidth[0, 1] == 1e9


def change(document: dict[str, Any], **changes: object) -> dict[str, Any]:
    return document | changes


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "test: not a cluster file (must have hosts or racks, or format 'meshwright"),
        ([], "not a cluster file"),
        (change(EXPLICIT, version=2), "version must be 1, got 2"),
        (change(EXPLICIT, colour=1), "unknown field `colour`"),
        (change(EXPLICIT, devices=[]), "at least one device"),
        (change(EXPLICIT, devices=EXPLICIT["devices"] * 2), "'a' stands twice"),
        (change(EXPLICIT, switches=["a"]), "'a' stands twice"),
        (change(EXPLICIT, links=[]), "'b' cannot be reached from 'a'"),
        (change(EXPLICIT, links=[{"source": "a", "target": "z", "bytes_per_second": 1}]),
         "link 'a' -> 'z': no node 'z'"),
        (change(EXPLICIT, links=[{"source": "a", "target": "b", "bytes_per_second": -1}]),
         "bytes_per_second must be positive and finite, got -1"),
        (change(EXPLICIT, links=[{"source": "a", "target": "b", "bytes_per_second": "9 parsecs"}]),
         "unknown unit 'parsecs'"),
        (change(EXPLICIT, links=[{"source": "a", "target": "b"}]), "bytes_per_second"),
        (change(EXPLICIT, devices=[{"name": "a", "type": "x9", "host": "h"}]),
         "unknown device type 'x9'"),
        (change(EXPLICIT, types={"toy": EXPLICIT["types"]["toy"] | {"library_bytes": -1}}),
         "device type 'toy': library_bytes must be finite and not negative, got -1"),
        (change(EXPLICIT, types={"toy": EXPLICIT["types"]["toy"] | {"library_bytes": "many"}}),
         "device type 'toy': library_bytes"),
        (change(EXPLICIT, types={"toy": EXPLICIT["types"]["toy"] | {"is_asynchronous": 1}}),
         "Expected `bool`, got `int`"),
        (change(BUILDER, build="hierarchal"), "did you mean hierarchical?"),
        (change(BUILDER, arguments={"branching": [2]}), "argument devices_per_host is missing"),
        (change(BUILDER, arguments={"devices_per_hosts": 2}), "did you mean devices_per_host"),
        (change(BUILDER, arguments=BUILDER["arguments"] | {"host_bytes_per_second": []}),
         "hierarchical: host_bytes_per_second: Expected `float | str`"),
        (change(BUILDER, arguments={"devices_per_host": "2", "branching": [2]}), "`int`"),
        (change(BUILDER, arguments={"devices_per_host": 10**18, "branching": [2]}),
         "devices_per_host must be at most 16384"),
        ({"maxFPGAs": 10**12, "maxSizePerFPGA": 1.0}, "maxFPGAs must be from 0 to 2048"),
        ({"maxFPGAs": 1, "maxSizePerFPGA": 0.0}, "maxSizePerFPGA must be positive"),
        ({"maxDevices": 4, "maxMemoryPerDevice": 1.0}, "bandwidth"),
        ({"maxDevices": 0, "maxMemoryPerDevice": 1.0, "bandwidth": 1.0}, "maxDevices must be"),
    ],
)  # fmt: skip
def test_bad_documents_are_refused_by_name(document: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read(document)


def test_load_points_builder_files_to_the_other_reader(tmp_path: Path) -> None:
    path = tmp_path / "builder.yaml"
    path.write_text(yaml.safe_dump(BUILDER))
    with pytest.raises(InputError, match="names a builder"):
        Cluster.load(path)
    assert read_cluster(path).num_devices == 24


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(tmp_path / "none.yaml")


def test_dnn_partitioning_states_accelerators_and_hosts() -> None:
    cluster = read({"maxFPGAs": 3, "maxSizePerFPGA": 100.0, "maxCPUs": 2, "nodes": [], "edges": []})
    assert [device.type for device in cluster.devices] == ["accelerator"] * 3 + ["cpu-host"] * 2
    assert cluster.memory_bytes[:3].tolist() == [100.0] * 3
    assert cluster.bandwidth[0, 4] == 2.0**31
    assert cluster.latency.max() == 0


def test_piper_states_its_bandwidth() -> None:
    cluster = read({"maxDevices": 4, "maxMemoryPerDevice": 8e9, "bandwidth": 25e9, "nodes": []})
    assert (cluster.num_devices, cluster.bandwidth[0, 3]) == (4, 25e9)
    assert set(cluster.memory_bytes.tolist()) == {8e9}


def test_published_workloads_are_read(shared: Path) -> None:
    path = shared / "dnn-partitioning" / "throughput" / "layer_bert24_inference.json"
    assert read_cluster(path).num_devices == 7
    assert read_cluster(shared / "piper" / "bert32a100.json").num_devices == 10
