"""Bad input: exit code 2 and one line that names the thing, the rule and the value."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import refusal, run

from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.plan import Part, Plan
from meshwright.zoo.shipped import read_shipped


@pytest.fixture
def graph_document(tmp_path: Path) -> dict[str, Any]:
    """The zoo's mlp as its file has it."""
    read_shipped("mlp").save(tmp_path / "mlp.json")
    document: dict[str, Any] = json.loads((tmp_path / "mlp.json").read_text())
    return document


def save_plan(path: Path, **changes: Any) -> Path:
    """A plan of the mlp on the one device of cpu-x1, with changes."""
    graph, cluster = read_shipped("mlp"), find_cluster("cpu-x1")
    fields: dict[str, Any] = {"ops": graph.op_names, "devices": (cluster.devices[0].name,)}
    Plan(parts=(Part(**(fields | changes)),)).save(path)
    return path


def refused_plan(graph: object, cluster: object = "cpu-x1", *options: object) -> str:
    return refusal("plan", graph, "--cluster", cluster, "--budget", 1, *options)


def test_no_command() -> None:
    assert "COMMAND" in refusal()


def test_unknown_command() -> None:
    assert "invalid choice: 'fly'" in refusal("fly")


def test_unknown_option() -> None:
    assert "--colour" in refused_plan("mlp", "cpu-x1", "--colour")


def test_missing_cluster() -> None:
    assert "--cluster" in refusal("plan", "mlp")


def test_missing_graph_file(tmp_path: Path) -> None:
    message = refused_plan(tmp_path / "none.json")
    assert "no file" in message
    assert "none.json" in message


def test_near_model_name() -> None:
    assert "did you mean bert-large" in refused_plan("bert-larg")


def test_a_factory_that_cannot_be_imported() -> None:
    pytest.importorskip("torch", reason="capture needs the torch extra")
    assert "'a.b:c': cannot be imported (No module named 'a')" in refused_plan("a.b:c")


def test_folder_as_graph(tmp_path: Path) -> None:
    assert "cannot be read (Is a directory)" in refused_plan(tmp_path)


def test_name_with_a_nul_byte() -> None:
    assert "no file" in refused_plan("a\0b")
    assert "no file" in refused_plan("mlp", "a\0b")


def test_a_folder_with_a_nul_byte() -> None:
    assert "must be the name of a folder, which has no NUL" in refused_plan(
        "mlp", "cpu-x1", "-o", "a\0b"
    )


def test_endless_name() -> None:
    assert "no file" in refused_plan("x" * 5000)
    assert "no file" in refused_plan("mlp", "x" * 5000)


def test_cycle_in_graph(tmp_path: Path) -> None:
    nodes = [{"id": name, "seconds": 1.0} for name in "ab"]
    edges = [{"source": "a", "target": "b"}, {"source": "b", "target": "a"}]
    path = tmp_path / "cycle.json"
    path.write_text(json.dumps({"directed": True, "nodes": nodes, "links": edges}))
    assert "cycle" in refused_plan(path)


def test_nan_in_graph(tmp_path: Path, graph_document: dict[str, Any]) -> None:
    path = tmp_path / "nan.json"
    path.write_text(json.dumps(graph_document | {"batch": float("nan")}))
    assert "nan.json" in refused_plan(path)


def test_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "graph.json.gz"
    path.write_bytes(gzip.compress(b"{" + b" " * 10_000)[:-20])
    assert "truncated or damaged gzip" in refused_plan(path)


def test_empty_and_binary_graphs(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(b"")
    assert "is empty" in refused_plan(path)
    path.write_bytes(bytes(range(256)))
    assert "not a graph" in refused_plan(path)


def test_near_cluster_name() -> None:
    assert "did you mean dgx1-x4" in refused_plan("mlp", "dgx1-y4")


def test_unknown_device_type(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    find_cluster("cpu-x2").save(path)
    document = json.loads(path.read_text())
    document["devices"][0]["type"] = "abacus"
    path.write_text(json.dumps(document))
    assert "unknown device type 'abacus'" in refused_plan("mlp", path)


def test_unknown_method() -> None:
    assert "divination" in refused_plan("mlp", "cpu-x1", "--method", "divination")


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "soon", ""])
def test_budget_must_be_positive(value: str) -> None:
    message = refusal("plan", "mlp", "--cluster", "cpu-x1", "--budget", value)
    assert "--budget: must be a positive number" in message
    assert value in message


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "٣", "9" * 30])
def test_batch_must_be_a_count(value: str) -> None:
    assert "--batch: must be a whole number from 1" in refused_plan(
        "mlp", "cpu-x1", "--batch", value
    )


def test_seed_must_be_whole() -> None:
    assert "--seed: must be a whole number" in refused_plan("mlp", "cpu-x1", "--seed", "1e3")


def test_sharing_must_be_known() -> None:
    assert "--sharing: invalid choice" in refused_plan("mlp", "cpu-x1", "--sharing", "equal")


def test_output_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refused_plan("mlp", "cpu-x1", "-o", tmp_path / "file" / "deep")
    assert "is not a folder" in message
    assert "must be a folder" in refused_plan("mlp", "cpu-x1", "-o", tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "no permission" in refused_plan("mlp", "cpu-x1", "-o", tmp_path / "new")


def test_plan_that_names_a_missing_op(tmp_path: Path) -> None:
    ops = (*read_shipped("mlp").op_names[:-1], "ghost")
    path = save_plan(tmp_path / "plan.json", ops=ops)
    message = refusal("simulate", "mlp", "--cluster", "cpu-x1", "--plan", path)
    assert "op 'ghost' is not in graph mlp" in message


def test_plan_that_names_a_missing_device(tmp_path: Path) -> None:
    path = save_plan(tmp_path / "plan.json", devices=("mars",))
    message = refusal("simulate", "mlp", "--cluster", "cpu-x1", "--plan", path)
    assert "device 'mars' is not in cluster" in message


def test_part_granularity_needs_a_schedule(tmp_path: Path) -> None:
    path = save_plan(tmp_path / "plan.json")
    message = refusal(
        "simulate", "mlp", "--cluster", "cpu-x1", "--plan", path, "--granularity", "part"
    )
    assert "must have a schedule" in message


def test_not_a_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    assert "not a plan file" in refusal(
        "simulate", "mlp", "--cluster", "cpu-x1", "--plan", tmp_path / "plan.json"
    )
    assert "no such plan" in refusal(
        "simulate", "mlp", "--cluster", "cpu-x1", "--plan", tmp_path / "none.json"
    )


def test_trace_that_cannot_be_written(tmp_path: Path) -> None:
    path = save_plan(tmp_path / "plan.json")
    message = refusal(
        "simulate", "mlp", "--cluster", "cpu-x1", "--plan", path, "--trace", tmp_path / "no" / "t"
    )
    assert "cannot be written" in message


def test_saving_to_a_missing_folder(tmp_path: Path) -> None:
    target = tmp_path / "no" / "file.json"
    assert "cannot be written" in refusal("zoo", "save", "mlp", target)
    assert "cannot be written" in refusal("cluster", "save", "dgx1", target)


def test_undecodable_arguments_are_shown_safely() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "plan", b"\xff\x1b[31m", "--cluster", "cpu-x1"],
        capture_output=True,
    )
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_help_and_version() -> None:
    assert run("--help").code == run("plan", "--help").code == 0
    assert run("--version").out.startswith("meshwright ")
