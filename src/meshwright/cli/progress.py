"""Shows that long work goes on: a spinner on a terminal, now and then a line elsewhere."""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshwright.errors import printable
from meshwright.message import say
from meshwright.units import format_number, format_seconds

if TYPE_CHECKING:
    from meshwright.execute.log import Callback, Entry

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_STEPS = 0.1
"""How often the line of a run is drawn again: as often as one can read it."""
_BAR = 20


@contextmanager
def shown_progress(title: str, arguments: Namespace) -> Iterator[Callable[[str], None]]:
    """Within this, lines given to the yielded function appear on standard error.

    With --verbose all of them; with --json only on a terminal, where they do not end up in
    anybody's log; with --quiet none.
    """
    if arguments.verbose:
        yield lambda line: say(f"{title}: {line}")
    elif arguments.quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from meshwright.cli.console import Words, make_console  # rich takes 0.1 s to import

        head = Words(title, "bold")
        with make_console(is_error=True).status(head) as status:
            yield lambda line: status.update(Words.assemble(head, f"  {line}"))
    elif arguments.json:
        yield lambda _: None
    else:
        yield _ProgressLines(title)


class _ProgressLines:
    """Prints a line unless it printed one just before."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.next_at = time.monotonic() + SECONDS_BETWEEN_LINES

    def __call__(self, line: str) -> None:
        if time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + SECONDS_BETWEEN_LINES
            say(f"{self.title}: {line}")


def shown_steps(arguments: Namespace) -> "tuple[Callback, ...]":
    """What shows every step of a run while it trains: a line on a terminal. Elsewhere the run's own
    lines, every ten seconds, have to do."""
    if arguments.quiet or not sys.stderr.isatty():
        return ()
    return (StepLine(arguments.steps),)


class StepLine:
    """A line that is drawn over itself; the cursor waits at its begin, so that whatever else is
    printed, by any process, takes its place."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps, self.clock, self.next_at = steps, clock, 0.0

    def __call__(self, entry: "Entry") -> None:
        """Draw a step, unless one was drawn just before."""
        is_last = entry.step >= self.steps
        if self.clock() < self.next_at and not is_last:
            return
        self.next_at = self.clock() + SECONDS_BETWEEN_STEPS
        done = _BAR * entry.step // self.steps
        left = format_seconds((self.steps - entry.step) * entry.seconds)
        text = (
            f"[{'#' * done}{'.' * (_BAR - done)}] step {entry.step} of {self.steps}: loss "
            f"{entry.loss:.4f}, {format_number(entry.samples_per_second)} samples/s, {left} left"
        )
        # Erased to its end once the run is done: the losses are printed then.
        sys.stderr.write("\r\x1b[K" + ("" if is_last else f"{printable(text)}\r"))
        sys.stderr.flush()
