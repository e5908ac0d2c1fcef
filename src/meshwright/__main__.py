"""The program: `python -m meshwright`, and the command `meshwright`."""

import sys

from meshwright.interpreter import leave_folder

if __name__ == "__main__":
    leave_folder()  # before anything else is imported

import atexit
import os

INTERRUPTED = 130
"""As `meshwright.cli.exit_code` has it, which is not imported before Ctrl-C is waited for."""


def program() -> None:
    """Run the command of the command line, and end the process with its exit code.

    Ctrl-C while modules are imported is one line, too. Where it arrives while Python executes a
    text, as a dataclass is made, CPython ends the process by that signal in the end although it was
    handled; so the code of an interrupted command is set by the last function that runs at exit.
    """
    codes: list[int] = []
    atexit.register(lambda: os._exit(codes[0]) if codes else None)
    try:
        from meshwright.cli import main

        code = main()
    except KeyboardInterrupt:
        print("meshwright: interrupted", file=sys.stderr, flush=True)
        code = INTERRUPTED
    if code == INTERRUPTED:
        codes.append(code)
    sys.exit(code)


if __name__ == "__main__":
    program()
