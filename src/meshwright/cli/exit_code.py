"""How a command ends, as a number for the shell."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Stable: scripts rely on it."""

    DONE = 0
    FAULT = 1
    """Meshwright has a fault of its own."""
    BAD_INPUT = 2
    NO_PLAN = 3
    """The search found no plan that fits into the devices' memory."""
    REFUSED = 4
    """By the system: no memory, no space on a disk, no more processes or open files."""
    INTERRUPTED = 130
    """By Ctrl-C; the best plan so far has been written when there was one."""
