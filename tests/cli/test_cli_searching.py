"""A search on a terminal is one line; elsewhere it is lines of progress."""

import io
import sys
from argparse import Namespace

import pytest
from cli_runner import run
from rich.console import Console

from meshwright.cli.searching import SearchLine, shown_search
from meshwright.search.standing import Standing

STANDING = Standing(
    seconds=2.0,
    budget_seconds=10.0,
    methods=("pipeline", "deploy"),
    found_by="hybrid",
    step_seconds=0.012,
    bound_seconds=0.008,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(line: SearchLine, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(line.draw())
    return capture.get()


def test_the_line_has_time_best_step_bound_gap_and_method() -> None:
    now = [100.0]
    line = SearchLine("planning x", clock=lambda: now[0])
    assert drawn(line) == "planning x\n"
    line.note(STANDING)
    now[0] = 101.0  # its time runs while nothing is told
    text = drawn(line)
    assert text.count("\n") == 1
    assert text.split(maxsplit=1)[1].strip() == (
        "3 of 10 s 12 ms by hybrid, bound 8 ms, gap 50 %; pipeline, deploy search"
    )
    now[0] = 1000.0
    assert "10 of 10 s" in drawn(line)


def test_before_a_plan_is_found_the_line_says_so() -> None:
    line = SearchLine("planning x", clock=lambda: 0.0)
    line.note(Standing(seconds=0.0, budget_seconds=10.0, methods=("data",)))
    assert drawn(line).endswith("0 of 10 s no plan that fits yet; data searches\n")
    line.note(Standing(seconds=0.0, budget_seconds=10.0, methods=("data",), bound_seconds=1.0))
    assert drawn(line).endswith("no plan that fits yet, bound 1 s; data searches\n")


@pytest.mark.parametrize("width", [20, 40, 60])
def test_the_line_is_one_line_however_narrow_the_terminal(width: int) -> None:
    line = SearchLine("planning a\x1b[31m name that is longer than the terminal is wide", lambda: 0)
    assert "\x1b" not in drawn(line, width)
    for _ in range(2):
        assert drawn(line, width).count("\n") == 1
        assert len(drawn(line, width)) <= width + 1
        line.note(STANDING)


def test_plan_draws_its_search_on_a_terminal_and_clears_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    arguments = Namespace(verbose=False, quiet=False, json=True)
    with shown_search("planning x", arguments) as (progress, watch):
        progress("heft: 1 s a step")
        assert watch is not None
        watch(STANDING)
    shown = terminal.getvalue()
    assert "12 ms" in shown
    assert "heft: 1 s" not in shown
    assert shown.endswith("\x1b[2K"), "nothing of it stays"


@pytest.mark.parametrize("given", [{"verbose": True}, {"quiet": True}, {}])
def test_elsewhere_lines_have_to_do(given: dict[str, bool]) -> None:
    arguments = Namespace(**{"verbose": False, "quiet": False, "json": False} | given)
    with shown_search("planning x", arguments) as (_, watch):
        assert watch is None


def test_plan_without_a_terminal_prints_no_line() -> None:
    result = run("plan", "mlp", "--cluster", "cpu-x1", "--method", "single", "--json")
    assert result.code == 0
    assert "\x1b" not in result.err
    assert "searches" not in result.err
