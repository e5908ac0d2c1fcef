"""How this program starts Python again, on how many cores, and what its modules are found by.

The current folder may belong to anybody: a `numpy.py` in it must not be run because somebody plans
there. Python puts that folder before all others for `python -m`; here it is left out, or comes last
where a user names a module of it.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec


def can_start_python() -> bool:
    """Whether there is an interpreter to start: a program that embeds Python may be none itself."""
    return os.path.basename(sys.executable or "").startswith("python")


def num_cores() -> int:
    """How many cores of this machine this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as a program, without the current folder on its path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def leave_folder() -> None:
    """Take the current folder off the path, where `python -m` has put it."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", _current_folder()):
        del sys.path[0]


def add_folder(folder: str = "") -> None:
    """Let modules of a folder, else of the current one, be found where no other has their name."""
    folder = folder or _current_folder()
    if folder and folder not in sys.path:
        _miss_absent_modules()
        sys.path.append(folder)


def _miss_absent_modules() -> None:
    """Let modules of the standard library that this machine lacks stay missing.

    Libraries try to import `msvcrt`, say, which exists on Windows only. Others are there also where
    the path has been changed for a while.
    """
    library = os.path.dirname(os.__file__)
    own = [library, os.path.join(library, "lib-dynload")]
    for name in sys.stdlib_module_names - sys.modules.keys():
        if find_spec(name) is None and PathFinder.find_spec(name, own) is None:
            sys.modules[name] = None  # type: ignore[assignment]  # imports of it fail


def _current_folder() -> str:
    """Empty where it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""
