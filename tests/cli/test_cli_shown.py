"""How much commands print, in which words, and what they name to do next."""

import re
import shlex
from pathlib import Path

import pytest
from cli_runner import refusal, run

import meshwright as mw
from meshwright.cluster.catalogue import find_cluster
from meshwright.export.launch.command import launch_commands
from meshwright.graph.build import GraphBuilder
from meshwright.search.method.name import ENTRIES
from meshwright.search.method.table import METHODS

HOST, HOSTS = "v100-32-x8", "dgx1-x4"


def plan(cluster: str, *options: object, method: str = "data") -> list[str]:
    arguments = ("plan", "mlp", "--cluster", cluster, "--method", method, "--budget", 1, *options)
    result = run(*arguments)
    assert result.code == 0, result.err
    return result.out.splitlines()


def test_help_has_a_line_for_every_method() -> None:
    text = " ".join(run("plan", "--help").out.split())
    for name, entry in ENTRIES.items():
        assert f"{name}: {entry.summary}" in text
    assert sorted(METHODS) == sorted(ENTRIES)


def test_equal_devices_are_one_row_with_a_count() -> None:
    lines = plan(HOST)
    assert sum(line.startswith("host0") for line in lines) == 1
    assert sum("host0 (8)" in line for line in lines) == 1


def test_verbose_shows_every_device_and_every_method(tmp_path: Path) -> None:
    result = run("plan", "mlp", "--cluster", HOST, "--budget", 1, "--method", "data", "--verbose")
    for number in range(8):
        assert sum(line.startswith(f"host0.{number} ") for line in result.out.splitlines()) == 2
    assert "planning mlp on v100-32-x8: data: " in result.err
    assert "not allowed with" in refusal("zoo", "-q", "--verbose")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_shows_facts_and_says_nothing(tmp_path: Path, option: str) -> None:
    result = run("plan", "mlp", "--cluster", HOST, "--method", "data", option, "-o", tmp_path / "o")
    assert result.err == ""
    assert "samples/s" in result.out
    for text in ("peak memory", "critical path", "next"):
        assert text not in result.out
    assert run("simulate", "--plan", tmp_path / "o", option).out.count("\n") < 8
    assert run("zoo", "save", "mlp", tmp_path / "g.json", option).err == ""
    assert run("zoo", "save", "mlp", tmp_path / "g.json").err != ""
    assert refusal("plan", "nope", "--cluster", HOST, option)


def test_simulate_takes_the_folder_that_plan_wrote(tmp_path: Path) -> None:
    plan(HOST, "-o", tmp_path)
    alone = run("simulate", "--plan", tmp_path, "--json").json
    given = ("simulate", "mlp", "--cluster", HOST, "--plan", tmp_path / "plan.json", "--json")
    assert alone == run(*given).json | {"plan": str(tmp_path)}
    other = run("simulate", "--plan", tmp_path, "--cluster", "a100-80-x8", "--json")
    assert other.code == 0
    assert other.json["cluster"] == "a100-80-x8"
    (tmp_path / "graph.json.gz").unlink()
    assert "must hold graph.json.gz beside the plan" in refusal("simulate", "--plan", tmp_path)


def test_the_next_command_of_one_host(tmp_path: Path) -> None:
    folder = tmp_path / "my plan"
    assert (
        plan(HOST, "-o", folder)[-1]
        == f"next: meshwright run {shlex.quote(str(folder))} --emulate"  # of no captured model
    )
    assert plan(HOST)[-1].startswith("next: give -o DIR to keep the plan")
    graph = tmp_path / "graph.json"
    run("zoo", "save", "gpt2", graph)
    lines = run("plan", graph, "--cluster", HOST, "--method", "data", "-o", folder).out
    assert lines.splitlines()[-1].endswith("--model MODEL")  # a file does not say which


def test_a_plan_that_cannot_be_run_says_so_where_it_is_made() -> None:
    words = ("plan", "mlp", "--cluster", "v100-32-x2", "--method", "pipedream", "--batch", 4)
    result = run(*words, "--microbatches", 3)
    said = result.err.splitlines()[-1]
    assert said.startswith("meshwright: `meshwright run` cannot run this plan: graph mlp: a batch ")
    assert "cannot be cut into 3 equal microbatches" in said
    assert "next" not in result.out
    whole = run("plan", "mlp", "--cluster", HOST, "--method", "data", "--budget", 1)
    assert "can emulate this plan, not train" in whole.err


def test_a_plan_of_inference_says_that_it_is_emulated_only_and_run_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tmp_path / "graph.json"
    builder = GraphBuilder("chain", 8)
    first, second = (builder.add_op(name, flops=1e9, calls=1) for name in ("first", "second"))
    builder.add_tensor(first, 1e3, [second])
    builder.finish().save(graph)
    folder = tmp_path / "plan"
    made = run("plan", graph, "--cluster", HOST, "--method", "data", "-o", folder)
    reason = "its step has no loss (inference)"
    assert made.err.splitlines()[-1].endswith(f"can emulate this plan, not train: {reason}")
    assert made.out.splitlines()[-1].endswith("--emulate")
    shown = run("plan", graph, "--cluster", HOST, "--method", "data", "--json").json
    answers = (shown["notes"], mw.plan(graph, HOST, "data").notes)
    assert all(
        "`meshwright run` emulates its plans, and trains none" in each[-1] for each in answers
    )
    monkeypatch.setattr("meshwright.cli.run.start_ranks", lambda *_: pytest.fail("started"))
    for way in (("--model", "gpt2"), ("--script", "train.py", "--commands")):
        said = refusal("run", folder, *way).strip()
        assert said.endswith(f"but {reason}; --emulate runs others")


def test_the_next_commands_of_several_hosts_are_those_of_run(tmp_path: Path) -> None:
    brief = plan(HOSTS, "-o", tmp_path)[-1]
    assert brief.startswith(f"next: meshwright run {shlex.quote(str(tmp_path))} --emulate --comm")
    assert brief.endswith("# prints what each of 4 hosts starts")
    lines = plan(HOSTS, "-o", tmp_path, "--verbose")
    cluster = find_cluster(HOSTS)
    words = ["-m", "meshwright", "run", str(tmp_path), "--emulate"]
    expected = launch_commands(cluster, range(cluster.num_devices), words)
    assert lines[-len(expected) :] == expected
    assert sum("torchrun --nnodes 4" in line for line in lines) == 4


def test_of_many_hosts_a_few_commands_are_shown(tmp_path: Path) -> None:
    lines = plan("tag-testbed", "-o", tmp_path, "--verbose")
    assert sum("torchrun" in line for line in lines) == 4
    assert lines[-1].startswith("# and 3 hosts more, or Slurm: meshwright run ")


def test_a_plan_of_some_devices_names_their_hosts_only(tmp_path: Path) -> None:
    lines = plan(HOSTS, "-o", tmp_path, method="single")
    assert lines[-1].startswith("next: meshwright run ")


def test_numbers_have_one_style() -> None:
    text = "\n".join(plan(HOSTS, "--batch", 100_000))
    assert re.search(r"[\d,]+ samples/s", text)
    assert not re.search(r"\de\+\d|\d{5}", text)


def test_answers_say_where_times_come_from_and_what_is_proven(tmp_path: Path) -> None:
    text = "\n".join(plan(HOST, "-o", tmp_path))
    assert "times   measured 0, fitted 0, estimated 30 of 30 ops" in text
    assert "proven under this cost model: no plan" in text
    expected = {"measured": 0, "fitted": 0, "estimated": 30}
    assert run("simulate", "--plan", tmp_path, "--json").json["times"] == expected
    assert "estimated 30 of 30 ops" in run("simulate", "--plan", tmp_path).out
    json = ("plan", "mlp", "--cluster", HOST, "--method", "data", "--json")
    assert run(*json).json["times"] == expected
