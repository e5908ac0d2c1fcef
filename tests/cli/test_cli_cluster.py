"""`meshwright cluster check`, `schema` and `list --devices`."""

from pathlib import Path

import pytest
from cli_runner import refusal, run

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.schema import cluster_schema

SHORT = """\
name: ours
racks:
- count: 32
  oversubscription: 2
  hosts: [{count: 16, devices: 8 x h100, nics: 8 x 400 Gb/s}]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ours.yaml"
    file.write_text(SHORT)
    return file


def test_check_says_what_4096_devices_mean_on_a_screen(path: Path) -> None:
    shown = run("cluster", "check", path)
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 105
    assert "ours: 512 hosts, 4,096 devices" in shown.out
    rows = {line.split("  ")[0]: line for line in lines}
    assert "8 x h100" in rows["512: host0 ... host511"]
    assert "989.5 TFLOP/s bf16" in rows["512: host0 ... host511"]
    assert "450 GB/s" in rows["another of its host (512 hosts)"]
    assert "4 us    50 GB/s" in rows["another host of its rack (32 racks)"]
    assert "25 GB/s" in rows["another rack"]
    assert "around a rack (16: host0 ... host15; 128 devices): 3.2 TB/s each way" in shown.out
    assert "doubts: none" in shown.out


def test_check_as_json_has_the_same(path: Path) -> None:
    document = run("cluster", "check", path, "--json").json
    assert (document["hosts"], document["devices"], document["doubts"]) == (512, 4096, [])
    assert [each["tier"] for each in document["reach"]] == ["host", "rack", ""]
    assert document["narrowest"]["share_bytes_per_second"] == 25e9
    kind = document["kinds"][0]
    assert len(kind["hosts"]) == 512
    assert kind["devices"][0]["flops_per_second"]["bf16"] == 989.5e12


def test_check_lists_doubts_once(path: Path) -> None:
    path.write_text(SHORT.replace("8 x 400 Gb/s", "8 x 400"))
    shown = run("cluster", "check", path)
    assert (shown.code, shown.err) == (0, "")
    assert "- line 5: racks[0].hosts[0].nics is below 1 MB/s, got 400 B/s" in shown.out
    assert len(run("cluster", "check", path, "--json").json["doubts"]) == 1


def test_check_refuses_what_is_no_cluster(path: Path) -> None:
    path.write_text(SHORT.replace("h100", "h1000"))
    assert "racks[0].hosts[0].devices: unknown device type" in refusal("cluster", "check", path)


def test_check_of_many_kinds_of_hosts_is_cut(path: Path) -> None:
    hosts = ", ".join(f"{{devices: {n} x t4, nics: 1 GB/s}}" for n in range(1, 31))
    path.write_text(f"hosts: [{hosts}]")
    shown = run("cluster", "check", path).out
    assert "... and 18 more kinds of hosts" in shown
    assert len(shown.splitlines()) < 30


@pytest.mark.parametrize("name", ["dgx1-x4", "tpuv4-4x4x4", "h200-x1", "mixed-s2", "uniform-64"])
def test_check_knows_names(name: str) -> None:
    shown = run("cluster", "check", name)
    assert (shown.code, len(shown.out.splitlines()) <= 24) == (0, True)


def test_schema_prints_it() -> None:
    assert run("cluster", "schema").json == cluster_schema()


def test_schema_as_text_names_every_field_with_unit_and_default() -> None:
    text = run("cluster", "schema", "--text").out
    assert "  hosts[].nics, in bytes a second\n" in text
    assert "  hosts[].count, default 1\n" in text
    assert "  links[].latency_seconds, in seconds, default 0.0\n" in text
    assert "  devices[].memory_bytes, in bytes\n" in text
    assert max(map(len, text.splitlines())) <= 100


def test_list_devices_has_every_type_with_its_source() -> None:
    text = " ".join(run("cluster", "list", "--devices").out.split())
    rows = run("cluster", "list", "--devices", "--json").json["devices"]
    assert [row["name"] for row in rows] == list(DEVICE_TYPES)
    for row in rows:
        assert row["name"] in text
        assert f"[{row['source']}]" in text
        assert row["flops_per_second"] == dict(DEVICE_TYPES[row["name"]].flops_per_second)
    assert "fp64/fp32 163.4, tf32 653.7, fp16/bf16 1307.4, fp8/int8 2614.9" in text
    assert "in a host: each pair 64 GB/s, PCIe 44 GB/s" in text
