"""Shows that long work goes on: a spinner on a terminal, now and then a line elsewhere."""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshwright.message import say

SECONDS_BETWEEN_LINES = 5.0


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
        yield _Lines(title)


class _Lines:
    """Prints a line unless it printed one just before."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.next_at = time.monotonic() + SECONDS_BETWEEN_LINES

    def __call__(self, line: str) -> None:
        if time.monotonic() >= self.next_at:
            self.next_at = time.monotonic() + SECONDS_BETWEEN_LINES
            say(f"{self.title}: {line}")
