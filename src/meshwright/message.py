"""One-line messages on standard error, and warnings."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from meshwright.errors import InputWarning, one_line

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


_OURS = (os.path.join(os.path.dirname(__file__), ""), contextlib.__file__)
"""Where code begins that no user has written."""


def warn(message: str) -> None:
    """Warn of what a user gave, at the line of theirs that led here."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(InputWarning(one_line(message)), stacklevel=level)


@contextlib.contextmanager
def without_remarks(is_quiet: bool = True) -> Iterator[None]:
    """Within this, remarks are not printed: `--quiet`."""
    token = _IS_QUIET.set(is_quiet)
    try:
        yield
    finally:
        _IS_QUIET.reset(token)


def say_nothing(_line: str) -> None:
    """Take a line of progress, and keep quiet."""
