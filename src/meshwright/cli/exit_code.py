"""How a command ends, as a number for the shell."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Stable: scripts rely on it."""

    DONE = 0
    FAULT = 1
    """Meshwright's own."""
    BAD_INPUT = 2
    NO_PLAN = 3
    """No plan fits."""
    REFUSED = 4
    """By the system: no memory, no space on a disk, no more processes or open files."""
    INTERRUPTED = 130
    """By Ctrl-C; the best plan so far has been written when there was one."""
