"""`profile --device cpu` without a model, and commands that take this machine for `cpu`."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import refusal, run

import meshwright as mw
from meshwright.cli import machine
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.machine import make_machine
from meshwright.graph.graph import Graph
from meshwright.units import GIB

KIND = replace(
    DEVICE_TYPES["cpu"],
    flops_per_second={"fp32": 80e9},
    memory_bytes=24 * GIB,
    memory_bytes_per_second=12e9,
    call_seconds=10e-6,
    source="measured on here 2026-11-18: Own",
)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that were measured, on a machine of two cores that nothing else runs on."""
    found: list[int] = []

    def measure(threads: int, _today: object) -> Cluster:
        found.append(threads)
        return make_machine(KIND, bytes_per_second=4e9, latency_seconds=8e-6)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path / "cache" / "own"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(machine, "measure_machine", measure)
    monkeypatch.setattr(machine, "num_cores", lambda: 2)
    return found


def test_cpu_is_this_machine_once_it_was_measured(asked: list[int]) -> None:
    before = run("cluster", "show", "cpu-x2", "--json")
    assert "cpu: not measured on this machine, but a generic server socket" in before.err
    assert "`meshwright profile --device cpu` measures it" in before.err
    assert before.json["types"][0]["memory_bytes"] == 256 * GIB

    result = run("profile", "--device", "cpu")
    assert (result.code, asked) == (0, [1])
    assert "cpu: measured on here 2026-11-18: Own" in result.err
    assert "fp32 80 GFLOP/s, memory 24 GiB at 12 GB/s, 10 us a call, between" in result.err

    after = run("cluster", "show", "cpu-x2", "--json")
    assert "cpu: measured on here 2026-11-18: Own" in after.err
    (kind,) = after.json["types"]
    assert (kind["memory_bytes"], kind["source"]) == (12 * GIB, KIND.source)
    assert after.json["bytes_per_second"] == [4e9, 4e9]
    run("cluster", "save", "cpu-x2", "two.yaml")
    run("cluster", "save", "h100-x2", "other.yaml")
    # A library call reads no cache; the file that the command wrote has the figures.
    assert mw.cluster("cpu-x2").types["cpu"] == DEVICE_TYPES["cpu"]
    assert mw.cluster("two.yaml").types["cpu"] == replace(KIND, memory_bytes=12 * GIB)
    assert "measured" not in run("cluster", "show", "other.yaml").err
    listed = run("cluster", "list", "--devices", "--json").json["devices"]
    assert [each["source"] for each in listed if each["name"] == "cpu"] == [KIND.source]


def test_a_file_with_the_catalogues_cpu_means_this_machine_too(asked: list[int]) -> None:
    mw.cluster("cpu-x2").save("two.yaml")
    assert "cpu: not measured" in run("cluster", "check", "two.yaml").err
    run("profile", "--device", "cpu")
    assert asked
    assert "cpu: measured on here" in run("cluster", "check", "two.yaml").err


def test_figures_are_those_of_the_threads_that_ranks_have(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("profile", "--device", "cpu", "--threads", 2, "--json")
    assert (result.json["threads"], asked) == (2, [2])
    assert "not measured" in run("cluster", "show", "cpu-x2").err
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    shown = run("cluster", "show", "cpu-x2", "--json")
    # Two ranks of two threads on two cores: each is half as fast as one by itself.
    assert shown.json["types"][0]["flops_per_second"] == {"fp32": 40e9}


def test_a_prediction_counts_the_calls(asked: list[int], tiny: Graph) -> None:
    tiny.save("g.json")
    run("profile", "--device", "cpu")
    result = run("simulate", "g.json", "--cluster", "cpu-x1", "--data", 1, "--json")
    work = tiny.flops / 80e9
    moved = (tiny.bytes_read + tiny.bytes_written) / 12e9
    expected = sum(max(one, other) for one, other in zip(work, moved, strict=True))
    assert asked
    assert result.json["step_seconds"] == pytest.approx(expected + 10e-6 * tiny.calls.sum())


@pytest.fixture
def tiny() -> Graph:
    return mw.load_graph("gpt:hidden=8,heads=2,layers=1,sequence=4,batch=2,vocabulary=16")


def test_quiet_says_nothing_of_it(asked: list[int]) -> None:
    assert run("cluster", "show", "cpu-x2", "--quiet").err == ""
    assert not asked


def test_a_damaged_file_is_refused_by_name(asked: list[int]) -> None:
    run("profile", "--device", "cpu")
    assert asked
    (path,) = Path("cache/own").glob("cpu-*.json")
    mw.cluster("h100-x1").save(path)
    assert "must be a machine as `meshwright profile --device cpu` writes it" in refusal(
        "cluster", "show", "cpu-x1"
    )
