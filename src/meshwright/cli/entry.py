"""From arguments to an exit code: runs a command and words everything that can go wrong.

Bad input is one line on standard error, never a traceback.
"""

import contextlib
import errno
import os
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from meshwright.cli.exit_code import ExitCode
from meshwright.cli.parser import make_parser
from meshwright.errors import InputWarning, MeshwrightError, printable, quoted
from meshwright.message import say, without_remarks


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _prepare_streams()
        with _told_warnings():
            code = _run_or_leave(arguments)
        sys.stdout.flush()  # here, where a full disk or a closed pipe can still be handled
        return code
    except MeshwrightError as error:
        return _complain(f"error: {error}", ExitCode.BAD_INPUT)
    except BrokenPipeError:  # the reader has seen enough (`meshwright zoo | head -1`)
        _drop_output()
        return ExitCode.DONE
    except KeyboardInterrupt:
        return _complain("interrupted", ExitCode.INTERRUPTED)
    except Exception as error:
        if _is_out_of_memory(error):
            return _complain(f"error: out of memory ({_reason(error)})", ExitCode.REFUSED)
        if isinstance(error, OSError):
            _drop_output()
            where = quoted(str(error.filename)) if error.filename else "standard output or a pipe"
            place = f"{where}: " if error.errno is not None else ""
            return _complain(f"error: {place}{_reason(error)}", ExitCode.REFUSED)
        return _confess(error, arguments)


def _prepare_streams() -> None:
    """Give closed standard streams something to write to, and all of them a way to show any text.

    Where a shell closed one (`>&-`), the next file to be opened would take its number.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without block characters shows "?"
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def _told_warnings() -> Iterator[None]:
    """Within this, warnings of ours are lines as errors are, each once."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", InputWarning)
        others = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, InputWarning):
                say(f"warning: {message}")
            else:
                others(message, category, *place, **more)

        warnings.showwarning = tell
        yield


def _run_or_leave(arguments: list[str]) -> int:
    try:
        parsed = make_parser().parse_args(arguments)
        with without_remarks(parsed.quiet):
            return _run(parsed)
    except SystemExit as stop:  # argparse, after --help and --version
        return stop.code if isinstance(stop.code, int) else ExitCode.DONE


def _drop_output() -> None:
    """Lose what could not be written: Python tries once more at its end, and would complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_out_of_memory(error: Exception) -> bool:
    """Whether this process may have no more memory; loaders, threads and torch say so in words."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error)
    return type(error).__name__ == "OutOfMemoryError" or any(each in text for each in _NO_MEMORY)


_NO_MEMORY = (
    "annot allocate memory",
    "can't allocate memory",
    "not enough memory",
    "failed to map segment",
    "can't start new thread",
)


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text if isinstance(text, str) and text else type(error).__name__


def _run(arguments: Namespace) -> int:
    """Run the command; its module is imported only now, so that --help needs none."""
    name = arguments.command
    module = import_module(f"meshwright.cli.{_MODULES.get(name, name)}")
    code: int = getattr(module, f"run_{name}")(arguments)
    return code


_MODULES = {"completion": "completion.complete"}
"""The modules of commands that are not called as their command is."""


def _complain(message: str, code: int) -> int:
    say(message)
    return code


def _confess(error: Exception, arguments: list[str]) -> int:
    if "--traceback" in arguments or os.environ.get("MESHWRIGHT_TRACEBACK", "0") not in ("", "0"):
        for line in "".join(traceback.format_exception(error)).splitlines():
            print(printable(line), file=sys.stderr)
        return ExitCode.FAULT
    return _complain(
        f"internal error: {type(error).__name__}: {str(error)[:300]}; this is a fault of "
        f"Meshwright, please report it with the output of --traceback (or MESHWRIGHT_TRACEBACK=1)",
        ExitCode.FAULT,
    )
