"""Compiles hot kernels with Numba, once, into a cache, and says so when it takes time.

The cache is a folder of files that Numba unpickles: as trusted as the code beside it. Files that
are damaged or cannot be written cost a compilation and a message, nothing else.

Import this only from kernel modules: Numba takes 0.3 s to import, and `import meshwright` must not.
"""

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from typing import Any, TypeVar, cast

from meshwright.interpreter import can_start_python, module_command
from meshwright.message import remark, say


def _import_numba() -> None:
    """Import Numba without the `.numba_config.yaml` of the current folder.

    That file may name the folder of the cache, whose files Numba unpickles and runs. Numba reads it
    when it is imported, unless there is no YAML to read it by, and again before it compiles.
    """
    kept = sys.modules.get("yaml")
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a file and no YAML
            config = import_module("numba.core.config")
    finally:
        del sys.modules["yaml"]
        if kept is not None:
            sys.modules["yaml"] = kept
    config._config_fname = ""  # type: ignore[attr-defined]


_import_numba()  # before anything of it

from numba.core import event, types  # noqa: E402
from numba.core.caching import FunctionCache, IndexDataCacheFile  # noqa: E402
from numba.core.registry import CPUDispatcher  # noqa: E402

F = TypeVar("F", bound=Callable[..., Any])

# Inside kernels Numba infers every type; these names say to people what an argument is.
Array = Any
Int = Any
Float = Any
Bool = Any

_OPTIONS: dict[str, Any] = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
"""Without Numba's run time for references: kernels work on arrays that their caller made and make
none. Counting references to their arguments took nine tenths of the engine's time. Without the
wrapper that C would call: none does."""


class _CacheFile(IndexDataCacheFile):
    """One kernel's files in the cache, each with a digest of what it holds.

    The digest tells of damage before machine code is run, and the key of which types the code is
    for: two processes that compile one kernel for different types may choose the same file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._version = f"{self._version} with digests"

    def save(self, key: Any, data: Any) -> None:
        """Called by Numba with what it has compiled."""
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        """Called by Numba before it compiles; None: there is nothing."""
        found = super().load(key)
        return found[1] if found is not None and found[0] == key else None

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(sha256(content).digest() + content)

    def _load_data(self, name: str) -> Any:
        with open(self._data_path(name), "rb") as file:
            digest, content = file.read(_DIGEST_BYTES), file.read()
        if sha256(content).digest() != digest:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(content)

    def forget(self) -> None:
        """Drop the index, without which none of the files is found."""
        with suppress(OSError):
            os.unlink(self._index_path)


_DIGEST_BYTES = 32


class _Cache(FunctionCache):
    """One kernel's cache, which fails in words."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file: Any = _CacheFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Called by Numba before it compiles; None: there is nothing."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # a damaged pickle may raise any
            _say_once(
                "damaged",
                f"the kernels kept in {self.cache_path} are damaged ({_reason(error)}); compiling "
                f"them again",
            )
            self._cache_file.forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Called by Numba with what it has compiled."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            _say_once(
                "unwritable",
                f"compiled kernels cannot be kept in {self.cache_path} ({_reason(error)})",
            )


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__


_SAID: set[str] = set()
"""The troubles that were told; one for the process, so that each is told once."""


def _say_once(trouble: str, message: str) -> None:
    """Say what the first kernel that meets a trouble has to say about it."""
    if trouble not in _SAID:
        _SAID.add(trouble)
        say(message)


class _Kernel(CPUDispatcher):
    """Takes a constant for any value of its type, and int32 for int64, where a kernel calls it.

    Numba compiles what a kernel calls again for each type of integer and each constant that is
    passed, and again for what a variable is set to at first: of `push`, three in place of one.
    """

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What Numba asks for the types of a call, in its words."""
        by_name = {name: _widest(each) for name, each in kws.items()}
        return super().get_call_template(tuple(map(_widest, args)), by_name)

    def enable_caching(self) -> None:
        """Keep what is compiled, where there is a folder for it."""
        try:
            self._cache = _Cache(self.py_func)
        except (RuntimeError, OSError) as error:  # in Numba's words: no locator
            _say_once("unwritable", f"compiled kernels cannot be kept ({_reason(error)})")


def _widest(kind: Any) -> Any:
    """The type that a kernel is compiled for when another passes it a value of this one."""
    unliteral: Callable[[Any], Any] = types.unliteral
    plain = unliteral(kind)
    return types.int64 if plain in (types.int8, types.int16, types.int32) else plain


class _Helper(_Kernel):
    """Has no way in from Python: unpacking the arguments took a fifth of all compilation."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.py_func.__qualname__} is a helper, which only kernels can call")


def compiled(function: F) -> F:
    """Compile a kernel on its first call and keep the machine code in Numba's on-disk cache."""
    kernel = _Kernel(function, targetoptions=_OPTIONS)
    kernel.enable_caching()
    return cast(F, kernel)


def inlined(function: F) -> F:
    """Compile a helper of kernels into each place that calls it.

    Passing an array costs seven words a call.
    """
    options = {**_OPTIONS, "forceinline": True, "no_cpython_wrapper": True}
    return cast(F, _Helper(function, targetoptions=options))


def outlined(function: F) -> F:
    """Compile a helper of kernels once, as a function: for what is long and rarely called."""
    return cast(F, _Helper(function, targetoptions={**_OPTIONS, "no_cpython_wrapper": True}))


class _Announcer(event.Listener):
    """Writes one line when one of our kernels is really compiled, none when it is cached."""

    def __init__(self) -> None:
        self.announced = False
        self.beside: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None

    def on_start(self, event: Any) -> None:
        if not self.announced and isinstance(event.data["dispatcher"], _Kernel):
            self.announced = True
            self._start_beside()
            remark("compiling its kernels for this machine, once (under 30 s) ...")

    def _start_beside(self) -> None:
        # Numba compiles under one lock, so a second core needs a second process.
        if self.beside and can_start_python():
            nowhere = subprocess.DEVNULL
            self.process = subprocess.Popen(
                module_command(*self.beside), stdin=nowhere, stdout=nowhere, stderr=nowhere
            )

    def on_end(self, event: Any) -> None:
        pass


_ANNOUNCER = _Announcer()
"""One for the process, so that it is said once."""


@contextmanager
def announced_compilation(*beside: str) -> Iterator[None]:
    """Within this, a kernel that has to be compiled is announced on standard error.

    `beside`: a module, and its arguments, that is then run in a process of its own, to compile
    others meanwhile; they come from the cache when they are needed here.
    """
    _ANNOUNCER.beside = beside or _ANNOUNCER.beside  # one may stand within another
    try:
        with event.install_listener("numba:compile", _ANNOUNCER):
            yield
    finally:
        if beside and _ANNOUNCER.process is not None:
            _ANNOUNCER.process.wait()
            _ANNOUNCER.process = None
