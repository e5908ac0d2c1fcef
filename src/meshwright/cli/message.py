"""One-line messages on standard error."""

import contextlib
import sys


def say(message: str) -> None:
    """Print one line; what is not printable, as in a file's name, shows as "?"."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(message.split()))
    with contextlib.suppress(OSError):  # closed too: the exit code has to do
        print(f"meshwright: {line}", file=sys.stderr, flush=True)
