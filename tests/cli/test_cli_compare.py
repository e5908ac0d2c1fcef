"""`meshwright compare`: from the files of a plan and a run to a report and to files of costs."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runner import refusal, run

from measured_run import chain, hosts, run_of
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph, read_graph
from meshwright.plan.plan import Plan, place_ops
from meshwright.profile.profile import read_profile
from meshwright.simulate.measured import Run
from meshwright.simulate.simulate import simulate

MB = 1e6
CALL = '{"op":"aten.mm.default"}'


def thought() -> tuple[Graph, Cluster, Plan]:
    """Four layers on two hosts, two each."""
    graph = chain([0.01] * 4, [MB, 4 * MB, 4 * MB, MB])
    where = [int(int(name[1:]) >= 2) for name in graph.op_names]
    return graph, hosts(100 * MB, 0.0), place_ops(graph.op_names, where, ["h0.d0", "h1.d0"])


def actual_run(**changes: object) -> Run:
    """In fact the third layer takes twice as long and the network has half its rate."""
    plan = thought()[2]
    graph = chain([0.01, 0.01, 0.02, 0.01], [MB, 4 * MB, 4 * MB, MB])
    return run_of(simulate(graph, hosts(50 * MB, 0.0), plan), **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As `meshwright plan -o` and a run leave it."""
    graph, cluster, plan = thought()
    graph.save(tmp_path / "graph.json.gz")
    cluster.save(tmp_path / "cluster.yaml")
    plan.save(tmp_path / "plan.json")
    actual_run().save(tmp_path / "run.json.gz")
    return tmp_path


def test_the_report_says_where_prediction_and_reality_part(folder: Path) -> None:
    result = run("compare", folder, folder)
    assert result.code == 0
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[0] == "chain on hosts, step 2 of a run"
    # 120 ms of compute and twice 4 MB at 100 MB/s, against 150 ms and twice 4 MB at 50 MB/s.
    assert lines[1] == "median of 2 steps by the wall clock: 310 ms"
    assert lines[2] == (
        "- the step took 310 ms, predicted 200 ms: the prediction is 35.5% too short"
    )
    assert "- transfers h0.d0 -> h1.d0 reached 50 MB/s instead of 100 MB/s" in lines
    assert any(line.startswith("- compute on h1.d0 took 50% longer") for line in lines)
    assert "device step compute communication waiting overhead" in lines
    assert "h0.d0 predicted 200 ms 60 ms 80 ms 60 ms 0 s" in lines
    assert "measured 310 ms 60 ms 160 ms 90 ms 0 s" in lines
    assert "all difference +220 ms +30 ms +160 ms +30 ms 0 s" in lines
    assert "transfer h0.d0 -> h1.d0 1 40 ms 80 ms +40 ms" in lines


def test_json_is_one_object_with_everything(folder: Path) -> None:
    found = run("compare", folder / "plan.json", folder / "run.json.gz", "--json").json
    assert found["error"] == pytest.approx(200 / 310 - 1)
    assert found["wall_seconds"] == pytest.approx(0.31)
    assert found["is_emulated"] is False
    for device in found["devices"]:
        assert sum(device["predicted"].values()) == pytest.approx(0.2)
        assert sum(device["measured"].values()) == pytest.approx(0.31)
    assert found["groups"][0]["difference_seconds"] == pytest.approx(0.04)
    assert found["findings"]
    assert found["calibrated_seconds"] is None
    assert found["trace"] is None


def test_costs_that_are_written_make_the_next_prediction_come_true(folder: Path) -> None:
    graph, cluster = folder / "new.json.gz", folder / "new.yaml"
    written = run("compare", folder, folder, "--json", "--write-graph", graph,
                  "--write-cluster", cluster).json  # fmt: skip
    assert written["calibrated_seconds"] == pytest.approx(0.31)
    assert (written["write_graph"], written["write_cluster"]) == (str(graph), str(cluster))
    again = run("simulate", graph, "--cluster", cluster, "--plan", folder / "plan.json", "--json")
    assert again.json["step_seconds"] == pytest.approx(0.31)
    assert read_graph(graph).seconds["box"][2] == pytest.approx(0.02)


def test_the_text_says_what_the_written_costs_predict(folder: Path) -> None:
    result = run("compare", folder, folder, "--write-graph", folder / "new.json.gz")
    # 150 ms of compute, and twice 40 ms of transfers, whose rate is as it was.
    assert "with the costs written, the same plan is predicted to take 230 ms" in result.err


def test_calls_are_added_to_a_profile(folder: Path) -> None:
    path = folder / "profile.json"
    for call in (CALL, CALL.replace("mm", "relu")):
        actual_run(calls={"f2": call}).save(folder / "run.json.gz")
        assert run("compare", folder, folder, "--write-profile", path, "--json").code == 0
    (table,) = read_profile(path).tables
    assert dict(table.calls) == pytest.approx({CALL: 0.02, CALL.replace("mm", "relu"): 0.02})


def test_the_trace_has_both(folder: Path) -> None:
    trace = folder / "both.json"
    result = run("compare", folder, folder, "--trace", trace)
    assert f"wrote {trace}" in result.err
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"devices (predicted)", "devices (measured)"} <= names


def test_a_network_that_was_not_measured_stays_and_is_said_to(folder: Path) -> None:
    run_ = actual_run()
    start, finish = np.array(run_.start), np.array(run_.finish)
    kinds = simulate(*thought()).program.instructions["peer"]
    start[kinds >= 0] = finish[kinds >= 0] = np.nan
    actual_run(start=start, finish=finish).save(folder / "run.json.gz")
    result = run("compare", folder, folder, "--write-cluster", folder / "new.yaml")
    assert "the links stay as they were" in result.err
    assert Cluster.load(folder / "new.yaml").links == thought()[1].links


def test_an_emulated_run_proves_no_compute_costs(folder: Path) -> None:
    actual_run(is_emulated=True).save(folder / "run.json.gz")
    for name in ("--write-graph", "--write-profile"):
        assert refusal("compare", folder, folder, name, folder / "new.json") == (
            f"{name}: must be given a run that computed, but {folder} was emulated; its "
            f"communication can be written with --write-cluster"
        )
    result = run("compare", folder, folder, "--write-cluster", folder / "new.yaml")
    assert result.code == 0
    assert "step 2 of an emulated run" in result.out


def test_what_is_missing_or_of_another_plan_is_refused(folder: Path) -> None:
    assert refusal("compare", folder, folder / "none").startswith(f"{folder / 'none'}: cannot be")
    count = len(actual_run().start)
    actual_run(start=np.zeros(1), finish=np.ones(1)).save(folder / "short.json")
    assert refusal("compare", folder, folder / "short.json") == (
        f"{folder / 'short.json'}: run: must have the plan's {count} instructions, got 1; run the "
        f"plan again"
    )
    actual_run(device_names=("a", "b")).save(folder / "other.json")
    assert "must be of the plan's 2 devices, got 'a' for 'h0.d0'" in refusal(
        "compare", folder, folder / "other.json"
    )
    assert "the run must say which kernel calls its ops were" in refusal(
        "compare", folder, folder, "--write-profile", folder / "p.json"
    )
    (folder / "cluster.yaml").unlink()
    assert refusal("compare", folder, folder) == (
        f"{folder}: must hold cluster.yaml beside the plan, as `meshwright plan -o` writes it"
    )


def test_names_that_are_no_files_are_refused() -> None:
    for name in ("", "\0", "none", "/dev/null", 300 * "n"):
        assert refusal("compare", name, name)


def test_a_plan_whose_name_no_file_can_have_is_no_such_plan(folder: Path) -> None:
    name = 300 * "n"  # file systems allow 255
    assert refusal("compare", name, folder) == f"{name}: no such plan, neither a file nor a folder"


def test_several_runs_say_what_has_changed_and_what_depends_on_it(folder: Path) -> None:
    actual_run().save(folder / "second.json.gz")
    several = (folder, folder / "run.json.gz", folder / "second.json.gz")
    result = run("compare", *several)
    assert result.code == 0
    assert "device h1.d0: 1.50 times slower than thought (1.50 to 1.50 in 2 runs)" in result.out
    assert "2.00 times slower than thought" in result.out
    found = run("compare", *several, "--json").json
    assert [Path(each).name for each in found["runs"]] == ["run.json.gz", "second.json.gz"]
    factors = sorted({round(each["factor"], 6) for each in found["drifts"]})
    assert factors == [1.5, 2.0]
    assert run("compare", folder, folder, "--json").json["drifts"] == []


def test_runs_as_they_were_thought_have_changed_nothing(folder: Path) -> None:
    graph, cluster, plan = thought()
    for name in ("one.json", "two.json"):
        run_of(simulate(graph, cluster, plan)).save(folder / name)
    result = run("compare", folder, folder / "one.json", folder / "two.json")
    assert "all 2 runs: no link and no device has changed" in result.out


def test_a_cluster_that_is_written_keeps_what_was_predicted_and_what_was_measured(
    folder: Path,
) -> None:
    path = folder / "measured.yaml"
    runs = (folder / "run.json.gz", folder / "run.json.gz")
    assert run("compare", folder, *runs, "--write-cluster", path).code == 0
    first, second = Cluster.load(path).calibrations
    assert first == second
    assert (first.model, first.device_type, first.num_devices, first.num_hosts) == (
        "chain", "box", 2, 2,
    )  # fmt: skip
    assert [first.predicted_seconds, first.measured_seconds] == pytest.approx([0.2, 0.31])
