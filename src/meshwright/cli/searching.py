"""One line on a terminal that shows a search while it runs: time, best step, bound, gap, method."""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from meshwright.cli.console import Words, make_console
from meshwright.cli.progress import shown_progress
from meshwright.search.standing import Standing, Watch
from meshwright.units import format_percent, format_seconds

_BAR = 16
"""Columns of the bar."""
_DRAWN_A_SECOND = 8
"""How often the line is drawn again, so that its time runs while nothing is found."""


@contextmanager
def shown_search(
    title: str, arguments: Namespace
) -> Iterator[tuple[Callable[[str], None], Watch | None]]:
    """Within this, a search is shown on standard error: where that is a terminal as one line, which
    is gone at the end, else by lines of progress."""
    if arguments.verbose or arguments.quiet or not sys.stderr.isatty():
        with shown_progress(title, arguments) as progress:
            yield progress, None
        return
    line = SearchLine(title)
    with Live(
        console=make_console(is_error=True),
        get_renderable=line.draw,
        refresh_per_second=_DRAWN_A_SECOND,
        transient=True,
    ):
        yield lambda _: None, line.note


class SearchLine:
    """What was heard last of a search, drawn as it would be now."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._known: tuple[Standing, float] | None = None

    def note(self, standing: Standing) -> None:
        """Hear where the search stands."""
        self._known = standing, self._clock() - standing.seconds

    def draw(self) -> Table:
        """The line: before the search begins, while kernels are compiled, its title only."""
        line = Table.grid(padding=(0, 1))
        if self._known is None:
            line.add_column(no_wrap=True, overflow="ellipsis")
            line.add_row(Words(self._title, style="bold"))
            return line
        standing, began = self._known
        budget = standing.budget_seconds
        seconds = min(self._clock() - began, budget)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(
            ProgressBar(total=budget, completed=seconds, width=_BAR),
            Words(f"{seconds:.0f} of {format_seconds(budget)}"),
            _describe(standing),
        )
        return line


def _describe(standing: Standing) -> Words:
    """The best step, who found it, bound and gap, and who searches now."""
    text = Words()
    if standing.found_by:
        text.append(format_seconds(standing.step_seconds), style="bold green")
        text.append(f" by {standing.found_by}")
    else:
        text.append("no plan that fits yet")
    if standing.bound_seconds:
        text.append(f", bound {format_seconds(standing.bound_seconds)}")
        if standing.found_by:
            text.append(f", gap {format_percent(standing.gap)}")
    if standing.methods:
        verb = "searches" if len(standing.methods) == 1 else "search"
        text.append(f"; {', '.join(standing.methods)} {verb}", style="bright_black")
    return text
