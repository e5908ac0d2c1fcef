"""`meshwright plan` and `meshwright simulate`: what they print, write and return."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run

from meshwright import api
from meshwright.cli import plan as plan_command
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import read_cluster
from meshwright.graph.graph import Graph, read_graph
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.source import load_graph

FILES = ["answer.json", "cluster.yaml", "graph.json.gz", "plan.html", "plan.json", "trace.json"]
UNDRAWN = [name for name in FILES if name not in ("plan.html", "trace.json")]
"""What an interrupted search leaves."""
KEYS = {
    "method", "step_seconds", "bound_seconds", "gap", "stop", "search_seconds", "peak_bytes",
    "plan", "binding", "model", "cluster",
}  # fmt: skip


def plan_mlp(*options: object) -> Any:
    return run(
        "plan", "mlp", "--cluster", "v100-32-x2", "--method", "data", "--budget", 1, *options
    )


def test_text_shows_answer_devices_path_and_chart() -> None:
    result = plan_mlp()
    assert result.code == 0
    for text in ("samples/s", "gap", "peak GiB", "path ", "█ forward", "50 % of batch"):
        assert text in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_json_is_one_object_with_every_key() -> None:
    document = plan_mlp("--json").json
    assert document.keys() >= KEYS
    assert (document["model"], document["cluster"]) == ("mlp", "v100-32-x2")
    assert document["method"] == "data"
    assert document["plan"] is None
    assert 0 < document["bound_seconds"] <= document["step_seconds"]
    assert document["gap"] == pytest.approx(
        document["step_seconds"] / document["bound_seconds"] - 1
    )
    assert len(document["peak_bytes"]) == 2


def test_json_says_nothing_else() -> None:
    plan_mlp("--json")  # compiles what is not compiled yet
    assert plan_mlp("--json").err == ""


def test_output_folder_holds_everything(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    document = plan_mlp("--json", "-o", folder).json
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert document["plan"] == str(folder / "plan.json")
    answer = json.loads((folder / "answer.json").read_text())
    assert answer["format"] == "meshwright.answer"
    assert answer["step_seconds"] == document["step_seconds"]

    graph, cluster = read_graph(folder / "graph.json.gz"), read_cluster(folder / "cluster.yaml")
    timeline = api.simulate(graph, cluster, Plan.load(folder / "plan.json"))
    assert timeline.step_seconds == document["step_seconds"]
    assert list(timeline.peak_bytes) == document["peak_bytes"]


def test_output_replaces_older_files_and_keeps_others(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "plan.json").write_text("old")
    assert plan_mlp("-o", tmp_path).code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*FILES, "notes.txt"])
    assert Plan.load(tmp_path / "plan.json").parts


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(_graph: Graph, path: Path) -> None:
        path.write_text("half a graph")
        raise error

    monkeypatch.setattr(Graph, "save", fail)
    result = plan_mlp("-o", tmp_path / "out")
    assert result.code == (2 if isinstance(error, OSError) else 130)
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_batch_reaches_the_graph() -> None:
    assert plan_mlp("--json", "--batch", 64).json["batch"] == 64


def test_a_graph_file_plans_like_its_model(tmp_path: Path) -> None:
    run("zoo", "save", "mlp", tmp_path / "graph.json")
    options = ("--cluster", "v100-32-x2", "--method", "data", "--budget", 1, "--json")
    from_file = run("plan", tmp_path / "graph.json", *options, "--batch", 32).json
    from_zoo = run("plan", "mlp", *options, "--batch", 32).json
    assert from_file["step_seconds"] == pytest.approx(from_zoo["step_seconds"])


def test_a_shipped_graph_is_planned_by_its_name() -> None:
    options = ("--cluster", "v100-32-x2", "--method", "data", "--budget", 1, "--json")
    result = run("plan", "alexnet-32", *options)
    assert (result.json["model"], result.json["batch"]) == ("alexnet-32", 512)
    assert "PyTorch" not in result.err


def test_a_shipped_graph_is_planned_without_torch() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers'))); "
        "from meshwright.cli import main; "
        "sys.exit(main(['plan', 'vgg16-32', '--cluster', 'v100-32-x2', '--method', 'single']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "vgg16-32 (batch 512" in done.stdout


def test_a_trace_that_would_be_too_large_is_coarser_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "coarser" not in plan_mlp("-o", tmp_path / "whole").err
    monkeypatch.setattr("meshwright.export.perfetto.view.MAX_EVENTS", 10)
    found = plan_mlp("-o", tmp_path / "coarse")
    assert f"{tmp_path / 'coarse' / 'trace.json'} is coarser than the step: of 2 dev" in found.err
    about = json.loads((tmp_path / "coarse" / "trace.json").read_text())["otherData"]
    assert about["coarser"] in found.err
    arguments = ("mlp", "--cluster", "v100-32-x2", "--plan", tmp_path / "coarse" / "plan.json")
    assert about["coarser"] in run("simulate", *arguments, "--trace", tmp_path / "t.json").err


def test_simulate_repeats_the_plan_and_writes_a_trace(tmp_path: Path) -> None:
    planned = plan_mlp("--json", "-o", tmp_path).json
    arguments = ("simulate", "mlp", "--cluster", "v100-32-x2", "--plan", tmp_path / "plan.json")
    document = run(*arguments, "--json", "--trace", tmp_path / "t.json.gz").json
    assert document["step_seconds"] == planned["step_seconds"]
    assert document["peak_bytes"] == planned["peak_bytes"]
    assert document["fits"] is True
    assert sum(document["attribution"].values()) == pytest.approx(document["step_seconds"])
    assert (tmp_path / "t.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    text = run(*arguments, "--sharing", "none").out
    assert "fullest device" in text
    assert "critical path" in text


def test_simulate_warns_of_a_plan_that_does_not_fit(tmp_path: Path) -> None:
    plan_mlp("-o", tmp_path)
    cluster = read_cluster(tmp_path / "cluster.yaml")
    devices = tuple(replace(device, memory_bytes=1e6) for device in cluster.devices)
    replace(cluster, devices=devices).save(tmp_path / "small.yaml")
    cluster_and_plan = ("--cluster", tmp_path / "small.yaml", "--plan", tmp_path / "plan.json")
    result = run("simulate", "mlp", *cluster_and_plan, "--json")
    assert result.code == 0
    assert result.json["fits"] is False
    assert result.err == "meshwright: the plan does not fit into its devices' memory\n"
    assert "GiB OVER" in run("simulate", "mlp", *cluster_and_plan).out


# Answers that a small search does not give, by a stand-in for it.


def stand_in(monkeypatch: pytest.MonkeyPatch, answer: Answer, press: bool = False) -> None:
    def plan(_graph: Graph, _cluster: Cluster, **_options: object) -> Answer:
        if press:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                return answer
        return answer

    monkeypatch.setattr(plan_command, "recall_or_search", plan)


def no_answer() -> Answer:
    return Answer(
        method="single",
        plan=None,
        step_seconds=math.inf,
        bound_seconds=0.25,
        stop=Stop.INFEASIBLE,
        binding="memory of host0.0: needs 3 GiB more",
    )


def some_answer() -> Answer:
    return api.plan("mlp", "v100-32-x2", method="data", budget_seconds=1)


def test_no_plan_is_code_3_and_names_the_constraint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, no_answer())
    result = plan_mlp("-o", tmp_path / "out")
    assert (result.code, result.out) == (3, "")
    assert result.err == "meshwright: no plan fits: memory of host0.0: needs 3 GiB more\n"
    # What was asked and why nothing fits is kept, but no plan.
    kept = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert kept == ["answer.json", "cluster.yaml", "graph.json.gz", "plan.html"]


def test_a_model_too_large_for_its_device_is_code_3(tmp_path: Path) -> None:
    load_graph("gpt2-xl").save(tmp_path / "graph.json")
    options = ("--cluster", "1080ti-x1", "--budget", 60, "--json")
    result = run("plan", tmp_path / "graph.json", *options)
    assert result.code == 3
    assert result.json["plan"] is None
    assert "no plan fits" in result.err
    assert result.json["binding"] in result.err


def test_no_plan_in_json_has_nulls(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, no_answer())
    result = plan_mlp("--json")
    assert result.code == 3
    assert result.json["step_seconds"] is result.json["gap"] is result.json["plan"] is None
    assert result.json["stop"] == "INFEASIBLE"


def test_interrupted_search_writes_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, some_answer(), press=True)
    result = plan_mlp("-o", tmp_path / "out", "--json")
    assert result.code == 130
    assert result.json["plan"] == str(tmp_path / "out" / "plan.json")
    assert (some_answer().stop, result.json["stop"]) == (Stop.ENDED, "INTERRUPTED")
    assert Plan.load(tmp_path / "out" / "plan.json") == some_answer().plan
    assert "interrupted; the best plan so far is in" in result.err


def test_interrupt_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_arguments: object, **_options: object) -> Answer:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_command, "recall_or_search", plan)
    assert (plan_mlp().code, plan_mlp().err) == (130, "meshwright: interrupted\n")


def test_own_faults_are_one_line_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_arguments: object, **_options: object) -> Answer:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(plan_command, "recall_or_search", plan)
    result = plan_mlp()
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "internal error: ZeroDivisionError: by zero" in result.err
    assert "--traceback" in result.err
    assert "Traceback (most recent call last)" in plan_mlp("--traceback").err
    monkeypatch.setenv("MESHWRIGHT_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in plan_mlp().err


def test_ctrl_c_in_a_real_search_leaves_its_best_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    def press_at_the_third(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            signal.raise_signal(signal.SIGINT)

    @contextmanager
    def shown_search(
        _title: str, _arguments: object
    ) -> Iterator[tuple[Callable[[str], None], None]]:
        yield press_at_the_third, None

    monkeypatch.setattr(plan_command, "shown_search", shown_search)
    options = ("--cluster", "v100-32-x2", "--budget", 60, "--json", "-o", tmp_path / "out")
    result = run("plan", "mlp", *options)
    assert result.code == 130
    assert len(lines) < 5  # of nine methods
    times = {
        name: seconds
        for name, seconds in result.json["statistics"].items()
        if name.endswith("_seconds") and seconds is not None
    }
    assert result.json["step_seconds"] == min(times.values())
    assert result.json["stop"] == "INTERRUPTED"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == UNDRAWN


@pytest.mark.parametrize(
    "code",
    [
        # CPython remembers it for the end of the process, whoever handles it.
        "entry._run = lambda _: exec('raise KeyboardInterrupt')",
        # While the command line's modules are imported.
        "import sys; del sys.modules['meshwright.cli']; sys.meta_path.insert(0, Pressed())",
    ],
)
def test_ctrl_c_in_any_code_ends_with_the_code_of_an_interrupt(code: str) -> None:
    program = f"""
from meshwright.__main__ import program
from meshwright.cli import entry

class Pressed:
    def find_spec(self, *_):
        raise KeyboardInterrupt

{code}
program()
"""
    command = [sys.executable, "-c", program, "zoo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (130, "meshwright: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("model", ["graph.json", "swin-l"])  # while it searches or captures
def test_ctrl_c_at_any_moment_is_no_traceback(tmp_path: Path, model: str, seconds: float) -> None:
    load_graph("gpt2-xl").save(tmp_path / "graph.json")
    command = [sys.executable, "-m", "meshwright", "plan", model, "--cluster", "dgx1-x4"]
    command += ["--budget", "100", "-o", str(tmp_path / "out"), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=100)
    if process.returncode == -signal.SIGINT:  # Python itself was still starting
        frames = [line for line in err.splitlines() if line.lstrip().startswith(b"File ")]
        assert frames
        assert all(b'File "<frozen ' in each for each in frames), err
        return
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    if out and json.loads(out)["plan"] is not None:
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == UNDRAWN
    else:
        assert [path.name for path in tmp_path.iterdir()] == ["graph.json"]
