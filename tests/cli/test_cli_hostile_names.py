"""Names from files and arguments are shown, never obeyed: by no terminal and by no markup."""

import ast
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Result, run
from hypothesis import given
from hypothesis import strategies as st

import meshwright.cli
from measured_run import chain, hosts, run_of
from meshwright.cli.console import MAX_SHOWN
from meshwright.cluster.cluster import Cluster
from meshwright.errors import MAX_LINE, InputError, is_visible, printable, quoted
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, place_ops
from meshwright.simulate.simulate import simulate

TITLE = "\x1b]0;owned\x07"
"""Renames the window of a terminal that is shown it."""
EVIL = f"{TITLE}\x9b2J\x7f\r\n\u202e\u2028\u200b\u3164[bold][/] [/x] 模型 Größe :smile:"
"""Escape sequences of seven and eight bits, a forged line, text from right to left, markup."""
SHOWN = r"\x1b]0;owned\x07\x9b2J\x7f"
"""How it begins when it is shown."""


def spoil(name: str) -> str:
    return f"{name}{EVIL}"


def spoiled_graph() -> Graph:
    graph = chain([0.01] * 4, [1e6, 4e6, 4e6, 1e6])
    return replace(
        graph,
        name=spoil("chain"),
        op_names=tuple(map(spoil, graph.op_names)),
        kind=tuple(map(spoil, graph.kind)),
        module=tuple(map(spoil, graph.module)),
    )


def spoiled_cluster() -> Cluster:
    cluster = hosts(1e8, 0.0)
    return Cluster(
        name=spoil("hosts"),
        types={
            spoil(name): replace(kind, name=spoil(name)) for name, kind in cluster.types.items()
        },
        devices=tuple(
            replace(each, name=spoil(each.name), type=spoil(each.type), host=spoil(each.host))
            for each in cluster.devices
        ),
        switches=tuple(map(spoil, cluster.switches)),
        links=tuple(
            replace(each, source=spoil(each.source), target=spoil(each.target))
            for each in cluster.links
        ),
    )


def spoiled_plan(graph: Graph, cluster: Cluster) -> Plan:
    where = [int(int(name[1]) >= 2) for name in graph.op_names]
    return place_ops(graph.op_names, where, [each.name for each in cluster.devices])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with all that it is for and a run of it, every name of them spoiled."""
    folder = tmp_path_factory.mktemp("folder") / f"\x1b[31m{EVIL.replace('/', '')}"
    folder.mkdir()
    graph, cluster = spoiled_graph(), spoiled_cluster()
    plan = spoiled_plan(graph, cluster)
    graph.save(folder / "graph.json.gz")
    cluster.save(folder / "cluster.yaml")
    plan.save(folder / "plan.json")
    run_of(simulate(graph, cluster, plan)).save(folder / "run.json.gz")
    return folder


def check(result: Result, *, code: int = 0) -> Result:
    """Every line can be shown to a terminal."""
    assert result.code == code, result
    for line in (*result.out.split("\n"), *result.err.split("\n")):
        assert is_visible(line), ascii(line)
    return result


@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "show", "{}/cluster.yaml"],
        ["plan", "{}/graph.json.gz", "--cluster", "{}/cluster.yaml", "--method", "single"],
        ["plan", "{}/graph.json.gz", "--cluster", "{}/cluster.yaml", "--method", "deploy"],
        ["plan", "{}/graph.json.gz", "--cluster", "{}/cluster.yaml", "--method", "pipeline"],
        ["simulate", "{}/graph.json.gz", "--cluster", "{}/cluster.yaml", "--plan", "{}/plan.json"],
        ["compare", "{}", "{}"],
    ],
)
def test_names_are_shown_escaped(folder: Path, words: list[str]) -> None:
    words = [word.format(folder) for word in words]
    budget = ["--budget", "0.5"] if words[0] == "plan" else []
    result = check(run(*words, *budget))
    assert SHOWN[:12] in result.out  # some columns are cut
    if words[0] != "compare":
        return
    assert "[bold][/]" in result.out
    assert "模型 Größe :smile:" in result.out


@pytest.mark.parametrize("command", ["plan", "simulate", "cluster"])
def test_json_escapes_what_is_not_printable_and_keeps_the_name(folder: Path, command: str) -> None:
    files = ["--cluster", folder / "cluster.yaml", "--json"]
    words: list[Any] = {
        "plan": ["plan", folder / "graph.json.gz", *files, "--method", "single", "--budget", "1"],
        "simulate": ["simulate", folder / "graph.json.gz", *files, "--plan", folder / "plan.json"],
        "cluster": ["cluster", "show", folder / "cluster.yaml", "--json"],
    }[command]
    result = check(run(*words))
    assert spoil("hosts") in (result.json.get("cluster"), result.json.get("name"))
    assert "模型 Größe" in result.out


def test_a_file_name_that_is_no_unicode_does_not_break_json(folder: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.json")
    (tmp_path / name).write_bytes((folder / "plan.json").read_bytes())
    files = [folder / "graph.json.gz", "--cluster", folder / "cluster.yaml"]
    result = check(run("simulate", *files, "--plan", tmp_path / name, "--json"))
    assert result.json["plan"].endswith("\udcff.json")


@pytest.mark.parametrize(
    "words",
    [
        [EVIL],
        ["plan", EVIL, "--cluster", "cpu-x1"],
        ["plan", "mlp", "--cluster", EVIL],
        ["plan", "mlp", "--cluster", "cpu-x1", "--method", EVIL],
        ["plan", "mlp", "--cluster", "cpu-x1", "--budget", EVIL],
        ["plan", "mlp", "--cluster", "cpu-x1", f"--{EVIL}"],
        ["plan", "mlp", "--cluster", "cpu-x1", "--sharing", EVIL],
        ["plan", "mlp", "--cluster", "cpu-x1", "-o", f"/dev/null/{EVIL}"],
        ["simulate", "mlp", "--cluster", "cpu-x1", "--plan", EVIL],
        ["cluster", "show", f"cpu-x1{EVIL}"],
        ["zoo", "save", EVIL, "/dev/null"],
        ["network", EVIL],
        ["testbed", "up", EVIL],
    ],
)
def test_arguments_are_shown_escaped(words: list[str]) -> None:
    result = check(run(*words), code=2)
    assert result.err.count("\n") == 1


def test_a_network_of_such_names_is_refused_in_one_line(folder: Path) -> None:
    assert check(run("network", folder), code=2).err.count("\n") == 1


def test_a_terminal_is_shown_colours_and_nothing_of_a_name(folder: Path) -> None:
    files = [folder / "graph.json.gz", "--cluster", folder / "cluster.yaml"]
    words = ["plan", *files, "--method", "placement", "--budget", "1"]
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", *map(str, words)], stdout=inner, stderr=inner
    )
    os.close(inner)
    shown = b""
    while True:
        try:
            piece = os.read(outer, 1 << 16)
        except OSError:  # how a terminal ends
            break
        shown += piece
    os.close(outer)
    text = shown.decode()
    assert process.wait() == 0, text
    assert "\x1b[1" in text  # bold, from us
    assert SHOWN[:12] in text
    assert "\x1b]" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text


def test_a_long_line_is_cut_with_its_length(tmp_path: Path) -> None:
    message = str(InputError(f"{'x' * 100_000}: must be short"))
    assert len(message) <= MAX_LINE
    assert " ... (100,015 characters) ... " in message
    assert message.endswith("x: must be short")
    assert len(check(run("plan", "mlp", "--cluster", "x" * 100_000), code=2).err) < MAX_LINE + 20
    replace(hosts(1e8, 0.0), name="\x1b" * 4000).save(tmp_path / "cluster.json")
    shown = check(run("cluster", "show", tmp_path / "cluster.json")).out.splitlines()[0]
    assert len(shown) <= MAX_SHOWN
    assert " characters) ... " in shown


def test_a_name_longer_than_a_path_is_refused() -> None:
    with pytest.raises(InputError, match="its name must have at most 4,096 characters, got 4,097"):
        replace(hosts(1e8, 0.0), name="x" * 4097)
    for change in ({"name": "x" * 4097}, {"kind": ("mm", "x" * 4097)}):
        with pytest.raises(InputError, match=r"name 'xx.*': must have at most 4,096 characters"):
            replace(chain([1.0], [1.0]), **change)


@given(st.text(), st.integers(60, 200))
def test_shown_text_is_visible_and_short(text: str, limit: int) -> None:
    assert is_visible(printable(text, limit))
    assert is_visible(str(InputError(text)))
    assert len(printable(text, limit)) <= limit


@pytest.mark.parametrize("text", ["Größe", "模型", "naïve café", "ключ", "שלום", "a b-c_d", "🙂"])
def test_names_in_any_script_are_readable(text: str) -> None:
    assert printable(text) == text
    assert quoted(text) == f"'{text}'"


def test_only_the_console_and_messages_write_to_the_terminal() -> None:
    """Everything that a command prints passes one of two places, where it is made printable."""
    faults = []
    for path in Path(meshwright.cli.__path__[0]).rglob("*.py"):
        if path.name == "console.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in ("rich.text", "rich.markup"):
                faults.append(f"{path.name}: imports {node.module}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                is_console = node.func.id in ("Console", "print") and path.name != "entry.py"
                faults += [f"{path.name}: calls {node.func.id}"] if is_console else []
    assert faults == []
