"""One-line messages on standard error."""

import contextlib
import sys

from meshwright.errors import one_line


def say(message: str) -> None:
    """Print one line; where standard error is closed or full, the exit code has to do."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(f"meshwright: {one_line(message)}", file=sys.stderr, flush=True)
