"""`meshwright plan --allocate`: what it prints, writes and returns."""

from pathlib import Path
from typing import Any

import pytest
from cli_runner import run

from meshwright import api
from meshwright.cluster.build import multi_rail
from meshwright.plan.plan import Plan


@pytest.fixture(name="rails")
def _rails(tmp_path: Path) -> Path:
    path = tmp_path / "rails.yaml"
    cluster = multi_rail(
        num_hosts=3,
        num_rails=2,
        devices_per_host=1,
        rail_bytes_per_second=2.5e9,
        device_type="v100-32",
        name="rails [of] three",
    )
    cluster.save(path)
    return path


def plan_data(cluster: object, *options: object) -> Any:
    return run(
        "plan", "mlp", "--cluster", cluster, "--method", "data", "--budget", 2, "--allocate",
        *options,
    )  # fmt: skip


def test_text_says_how_much_faster_and_who_gets_what(rails: Path) -> None:
    result = plan_data(rails, "--verbose")
    assert result.code == 0
    assert "% faster than uniform bandwidth (" in plan_data(rails).out
    for text in ("from host", "to host", "rate", "ways", "host0", "rail0 50 %, rail1 50 %"):
        assert text in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_json_has_both_times_and_the_allocations(rails: Path) -> None:
    document = plan_data(rails, "--json").json
    plain = run("plan", "mlp", "--cluster", rails, "--method", "data", "--budget", 2, "--json").json
    assert document["uniform_seconds"] == plain["step_seconds"]
    assert document["step_seconds"] < document["uniform_seconds"]
    assert document["statistics"]["uniform_seconds"] == document["uniform_seconds"]
    assert 0 <= document["statistics"]["allocation_gap"] <= 1e-3
    ring = [each for each in document["allocations"] if each["bytes_per_second"] > 1e9]
    assert [(each["source"], each["target"]) for each in ring] == [
        ("host0", "host1"), ("host1", "host2"), ("host2", "host0"),
    ]  # fmt: skip
    for each in ring:
        assert each["shares"] == pytest.approx([0.5, 0.5], abs=1e-3)
    assert plain["allocations"] == []
    assert plain["uniform_seconds"] is None


def test_folder_holds_the_allocations(rails: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    document = plan_data(rails, "--json", "-o", folder).json
    found = Plan.load(folder / "plan.json")
    assert len(found.allocations) == len(document["allocations"]) > 0
    timeline = api.simulate(folder / "graph.json.gz", folder / "cluster.yaml", found)
    assert timeline.step_seconds == document["step_seconds"]


def test_method_auto_says_what_each_takes(rails: Path) -> None:
    result = run("plan", "mlp", "--cluster", rails, "--budget", 2, "--allocate", "--json")
    assert result.code == 0
    document = result.json
    assert document["step_seconds"] <= document["uniform_seconds"]
    assert document["bound_seconds"] <= document["step_seconds"]
    text = run("plan", "mlp", "--cluster", rails, "--budget", 2, "--allocate").out
    assert "proven under this cost model: no plan is faster" in text
    assert "uniform 1" not in text  # which is no method


def test_one_host_is_planned_as_usual_and_said_to_have_nothing() -> None:
    result = plan_data("v100-32-x2")
    assert result.code == 0
    assert "nothing to allocate: the cluster has one host" in result.out
    document = plan_data("v100-32-x2", "--json").json
    assert document["notes"] == ["nothing to allocate: the cluster has one host"]
    assert document["allocations"] == []
    assert document["uniform_seconds"] is None


def test_plan_that_gains_nothing_has_no_allocation(rails: Path) -> None:
    result = run(
        "plan", "mlp", "--cluster", rails, "--method", "single", "--budget", 1, "--allocate"
    )
    assert result.code == 0
    assert "none is faster than uniform bandwidth" in result.out
    assert "from host" not in result.out


def test_model_that_does_not_fit_is_refused_as_without(rails: Path) -> None:
    result = run(
        "plan", "llama-3-70b", "--cluster", rails, "--method", "data", "--budget", 1, "--allocate"
    )
    assert result.code == 3
    assert "no plan fits" in result.err


def test_teams_across_hosts_are_the_reason_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    multi_rail(num_hosts=2, num_rails=2, devices_per_host=1).save(path)
    result = run(
        "plan", "gpt:hidden=64,heads=4,layers=2,sequence=32", "--cluster", path, "--method",
        "hybrid", "--tensor", "2", "--budget", 2, "--allocate",
    )  # fmt: skip
    assert result.code == 0
    assert "none for tensor, context or expert parallelism or ZeRO 2 and 3 across" in result.out
