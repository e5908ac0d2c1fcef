"""Feeds many inputs to a reader: only success and an `InputError` of one short line are allowed.

Every input has a number, and with a seed it is the same again. An input may take ten seconds and
two gigabytes. One that fails is made smaller, saved, and told with the command that repeats it.
"""

import faulthandler
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from meshwright.errors import MAX_LINE, InputError, InputWarning, is_visible

MAX_SECONDS = 10.0
MAX_BYTES = 2 << 30
_STUCK_SECONDS = 300.0
"""Where no signal gets in, as in a compiled loop, the process ends with a trace after this long."""
_WATCHED = 100
"""Inputs between which the watch is set again, which takes longer than an input."""
_TRIES = 300
"""How often a failing input is tried smaller."""


class TooSlow(BaseException):
    """Raised in whatever takes longer than an input may; not an Exception, which it might catch."""


Feed = Callable[[Path, bytes, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Something that is given data from outside."""

    name: str
    make: Callable[[Random], bytes]
    """Makes an input."""
    feed: Feed
    """Does with an input what a user would: reads it, and uses what was read; thoroughly or not.
    The path is of a file that holds the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An input that ended otherwise than it may."""

    reader: str
    number: int
    seed: int
    data: bytes
    error: str
    trace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of many inputs."""

    accepted: int
    refused: int
    failures: tuple[Failure, ...]
    seconds: float


def make_input(reader: Reader, seed: int, number: int) -> bytes:
    """The input of a number."""
    return reader.make(Random(f"{reader.name} {seed} {number}"))


def fuzz(
    reader: Reader,
    inputs: int,
    *,
    seed: int = 0,
    first: int = 0,
    thorough_every: int = 1,
    progress: Callable[[int], None] = lambda _: None,
    max_failures: int = 10,
) -> Report:
    """Feed inputs to a reader; every so many are used thoroughly. The first failure of each kind is
    kept."""
    began = time.process_time()
    counts: Counter[str] = Counter()
    failures: dict[str, Failure] = {}
    # Commands may write to paths that they are given, so they run in a folder of their own.
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, chdir(folder), limits():
        path = Path(folder) / "input"
        for number in range(first, first + inputs):
            if number % _WATCHED == 0:
                faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)
            data = make_input(reader, seed, number)
            error = run_input(reader, path, data, is_thorough=number % thorough_every == 0)
            counts[_outcome(error)] += 1
            if error is not None and _outcome(error) == "failed":
                kind = describe(error).partition(":")[0]
                if kind not in failures:
                    failures[kind] = _make_failure(reader, path, number, seed, data, error)
                if len(failures) >= max_failures:
                    break
            progress(number)
    return Report(
        accepted=counts["accepted"],
        refused=counts["refused"],
        failures=tuple(failures.values()),
        seconds=time.process_time() - began,
    )


def run_input(
    reader: Reader, path: Path, data: bytes, *, is_thorough: bool = True
) -> BaseException | None:
    """Feed one input, within `limits`; what it raised, None where it was accepted."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", InputWarning)
            warnings.showwarning = _check_warning
            reader.feed(path, data, is_thorough)
    except InputError as error:
        return _checked(error)
    except (Exception, TooSlow) as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _check_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    assert issubclass(category, InputWarning), message
    check_line(str(message))


def _checked(error: InputError) -> Exception:
    try:
        check_line(str(error))
    except AssertionError as fault:
        return fault
    return error


def check_line(text: str) -> None:
    """Whether a message is one line that can be shown."""
    assert text, "no message"
    assert is_visible(text), ascii(text)
    assert len(text) <= MAX_LINE, text


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "accepted"
    return "refused" if isinstance(error, InputError) else "failed"


def _make_failure(
    reader: Reader, path: Path, number: int, seed: int, data: bytes, error: BaseException
) -> Failure:
    wanted = describe(error)
    smaller = data if isinstance(error, TooSlow) else _minimise(reader, path, data, wanted)
    return Failure(
        reader=reader.name,
        number=number,
        seed=seed,
        data=smaller,
        error=wanted,
        trace="".join(traceback.format_exception(error)),
    )


def describe(error: BaseException) -> str:
    """The kind of an error and the line of ours where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if "/meshwright/" in each.filename] or list(frames)[-1:]
    place = ours[-1].filename.partition("/src/")[2] or Path(ours[-1].filename).name
    return f"{type(error).__name__} in {place} line {ours[-1].lineno}: {str(error)[:120]}"


def _minimise(reader: Reader, path: Path, data: bytes, wanted: str) -> bytes:
    """Leave out pieces, from halves to single bytes, as long as the same error arises."""
    place_of = wanted.partition(":")[0]
    tries, size = 0, len(data) // 2
    while size and tries < _TRIES:
        start = 0
        while start < len(data) and tries < _TRIES:
            shorter = data[:start] + data[start + size :]
            error = run_input(reader, path, shorter)
            tries += 1
            if error is not None and describe(error).partition(":")[0] == place_of:
                data = shorter
            else:
                start += size
        size //= 2
    return data


def save_failure(failure: Failure, folder: Path) -> str:
    """Keep an input; the command that repeats it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.reader}-{failure.seed}-{failure.number}"
    path.write_bytes(failure.data)
    path.with_suffix(".txt").write_text(f"{failure.error}\n\n{failure.trace}", errors="replace")
    return f"scripts/fuzz --reader {failure.reader} --file {path}"


@contextmanager
def limits() -> Iterator[None]:
    """Within this, too much time raises `TooSlow`, too much memory a MemoryError, and a warning,
    which a user would see, itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    before = signal.signal(signal.SIGALRM, _raise_too_slow)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _raise_too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlow(f"over {MAX_SECONDS:g} s")


class Progress:
    """Tells now and then how far it is."""

    def __init__(self, name: str, inputs: int, seconds: float = 10.0) -> None:
        self._name, self._inputs, self._seconds = name, inputs, seconds
        self._began = self._told = time.monotonic()

    def __call__(self, number: int) -> None:
        now = time.monotonic()
        if now >= self._told + self._seconds:
            self._told = now
            rate = number / (now - self._began)
            line = f"fuzz: {self._name}: {number} of {self._inputs}, {rate:.0f} a second"
            print(line, file=sys.stderr, flush=True)
