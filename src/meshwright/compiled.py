"""Compiles hot kernels with Numba, once, into a cache, and says so when it takes time.

Import this only from kernel modules: Numba takes 0.3 s to import, and `import meshwright` must not.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

# Inside kernels Numba infers every type; these names say to people what an argument is.
Array = Any
Int = Any
Float = Any
Bool = Any

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""Without Numba's run time for references: kernels work on arrays that their caller made and make
none. Counting references to their arguments took nine tenths of the engine's time."""


def compiled(function: F) -> F:
    """Compile a kernel on its first call and keep the machine code in Numba's on-disk cache."""
    return cast(F, numba.njit(cache=True, **_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a helper of kernels into each place that calls it.

    Passing an array costs seven words a call.
    """
    return cast(F, numba.njit(forceinline=True, **_OPTIONS)(function))


def outlined(function: F) -> F:
    """Compile a helper of kernels once, as a function: for what is long and rarely called."""
    return cast(F, numba.njit(**_OPTIONS)(function))


class _Announcer(event.Listener):
    """Writes one line when one of our kernels is really compiled, none when it is cached."""

    def __init__(self) -> None:
        self.announced = False

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if not self.announced and function.__module__.startswith("meshwright."):
            self.announced = True
            print(
                "meshwright: compiling its kernels for this machine, once (under 30 s) ...",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event: Any) -> None:
        pass


_ANNOUNCER = _Announcer()
"""One for the process, so that it is said once."""


@contextmanager
def announced_compilation() -> Iterator[None]:
    """Within this, a kernel that has to be compiled is announced on standard error."""
    with event.install_listener("numba:compile", _ANNOUNCER):
        yield
