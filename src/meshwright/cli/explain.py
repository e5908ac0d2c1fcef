"""`meshwright explain`: why a plan takes as long as it does, or what would do where none fits."""

from argparse import Namespace
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console

from meshwright.api import explain
from meshwright.cli.console import Cell, Words, make_console, print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.progress import shown_progress
from meshwright.cli.sheet import Sheet
from meshwright.explain.explain import SIMULATIONS
from meshwright.explain.explanation import (
    Explanation,
    word_change,
    word_memory,
    word_remedy,
    word_rival,
)
from meshwright.explain.neighbour import Neighbour
from meshwright.units import format_count, format_percent, format_seconds

_MAX_SHARES = 12
_LEAST_SHARE = 0.001
"""Shares below this are summed in one line."""


def run_explain(arguments: Namespace) -> int:
    """Explain the plan of a folder and show what was found."""
    given = arguments.simulations
    with shown_progress(f"explaining {arguments.plan}", arguments) as progress:
        found = explain(
            arguments.plan,
            simulations=SIMULATIONS if given is None else given,
            progress=progress,
        )
    if arguments.json:
        print_json(found.to_dict())
        return ExitCode.DONE
    console = make_console()
    if found.plan:
        _show_plan(console, found)
    else:
        _show_remedies(console, found)
    return ExitCode.DONE


def _show_plan(console: Console, found: Explanation) -> None:
    step = f"{format_seconds(found.step_seconds)} a step"
    if found.bound_seconds > 0:
        step += f", the bound is {format_seconds(found.bound_seconds)}"
    console.print(Words(f"{found.model} on {found.cluster}: {step}", style="bold"))
    console.print(Words(found.plan))
    console.print()
    _show_shares(console, found)
    _show_path(console, found)
    _show_neighbours(console, found)
    _show_rivals(console, found)
    _show_memory(console, found)


def _show_shares(console: Console, found: Explanation) -> None:
    """What the step is spent on."""
    of = f"the busiest device, {found.anchor}" if found.anchor else "the critical path"
    console.print(Words(f"What the step is spent on, by {of}", style="bold"))
    total = found.step_seconds or 1.0
    shown = [each for each in found.shares[:_MAX_SHARES] if each.seconds >= _LEAST_SHARE * total]
    rows: list[Sequence[Cell]] = [
        (
            format_percent(each.seconds / total),
            format_seconds(each.seconds),
            str(each.cause),
            each.where,
        )
        for each in shown
    ]
    rest = found.shares[len(shown) :]
    if rest:
        left = sum(each.seconds for each in rest)
        causes = ", ".join(dict.fromkeys(str(each.cause) for each in rest))
        rows.append((format_percent(left / total), format_seconds(left), "the rest", causes))
    heads = ("share", "seconds", "what", "where")
    console.print(Sheet(heads, rows, wraps=("where",), right=("share", "seconds")))
    console.print()


def _show_path(console: Console, found: Explanation) -> None:
    """The critical path in words."""
    console.print(Words("The critical path", style="bold"))
    rows = [(format_seconds(each.seconds), each.what) for each in found.path]
    console.print(Sheet(("seconds", "what"), rows, wraps=("what",), right=("seconds",)))
    console.print()


def _show_neighbours(console: Console, found: Explanation) -> None:
    """What each decision is worth."""
    if not found.neighbours:
        return
    possible = [each for each in found.neighbours if each.plan is not None]
    console.print(Words("What each decision is worth, by simulating the other one", style="bold"))
    rows: list[Sequence[Cell]] = []
    for decision, group in groupby(possible, key=lambda each: each.decision):
        for number, each in enumerate(group):
            rows.append((decision if number == 0 else "", each.change, _styled(each)))
    console.print(
        Sheet(("decision", "instead", "step"), rows, wraps=("decision", "instead", "step"))
    )
    notes = [f"{each.change}: {each.obstacle}" for each in found.neighbours if each.plan is None]
    for note in dict.fromkeys(notes):
        console.print(Words(f"not possible: {note}", style="bright_black"))
    if found.not_tried:
        more = format_count(found.not_tried, "more neighbour")
        console.print(Words(f"{more} not simulated (see --simulations)", style="bright_black"))
    if found.faster:
        best = found.faster[0]
        console.print(
            Words(
                f"faster than the plan: {best.decision}, {best.change}: {word_change(best)}",
                style="yellow",
            )
        )
    console.print()


def _styled(neighbour: Neighbour) -> Words:
    style = "yellow" if neighbour.is_faster else "" if neighbour.fits else "red"
    return Words(word_change(neighbour), style=style)


def _show_rivals(console: Console, found: Explanation) -> None:
    """The runner-up of each kind."""
    if not found.rivals:
        return
    console.print(Words("Plans of other kinds, and what they lose their time to", style="bold"))
    rows = [(each.kind, each.description, word_rival(each)) for each in found.rivals]
    console.print(Sheet(("kind", "plan", "step"), rows, wraps=("plan", "step")))
    console.print()


def _show_memory(console: Console, found: Explanation) -> None:
    """Print how full devices get and when, and which decisions only memory forces."""
    console.print(Words("Memory at its fullest", style="bold"))
    for held in found.memory:
        when = f"at {format_seconds(held.at_seconds)}"
        during = f" ({held.during})" if held.during else ""
        console.print(Words(f"{word_memory(held)}; {when}{during}"))
    for each in found.forced:
        console.print(Words(f"memory decides: {each.decision}; {each.change} {word_change(each)}"))


def _show_remedies(console: Console, found: Explanation) -> None:
    """What would do where nothing fits."""
    console.print(Words(f"{found.model} on {found.cluster}: no plan fits", style="bold"))
    console.print(Words(found.binding))
    console.print()
    console.print(Words("The smallest changes that do, each planned", style="bold"))
    rows = [(each.kind, word_remedy(each)) for each in found.remedies]
    console.print(Sheet(("change of", "what does"), rows, wraps=("what does",)))
