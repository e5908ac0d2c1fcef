"""One-line messages on standard error."""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

from meshwright.errors import one_line

_IS_QUIET = ContextVar("is_quiet", default=False)


def say(message: str) -> None:
    """Print one line; where standard error is closed or full, the exit code has to do."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(f"meshwright: {one_line(message)}", file=sys.stderr, flush=True)


def remark(message: str) -> None:
    """Print one line that is good to know and neither an error nor a warning."""
    if not _IS_QUIET.get():
        say(message)


@contextlib.contextmanager
def without_remarks(is_quiet: bool = True) -> Iterator[None]:
    """Within this, remarks are not printed: `--quiet`."""
    token = _IS_QUIET.set(is_quiet)
    try:
        yield
    finally:
        _IS_QUIET.reset(token)
