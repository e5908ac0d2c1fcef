"""What can go wrong, and whose fault it is.

    MeshwrightError
    ├── InputError      the user's: names the thing, the rule and the value
    ├── RankError       one process's of several: names what it was doing
    └── NonFiniteError  the training's: names the step that made a NaN or an infinity

That no plan fits is an answer (see `meshwright.plan.answer`), not an exception; our own mistakes
are assertions.

Whatever a message quotes came from outside, so it is made printable here, where messages are made.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_LINE = 800
"""Characters of a line that is shown to people. The longest of our own messages have 500."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that Unicode calls printable and fonts do not draw (Default_Ignorable)."""


class MeshwrightError(Exception):
    """Everything Meshwright raises on purpose."""


class InputError(MeshwrightError):
    """Something the user gave breaks a rule; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class InputWarning(UserWarning):
    """Something the user gave breaks no rule, but is hardly meant; the message is one line."""


class RankError(MeshwrightError):
    """One process of a run failed while it ran an instruction; raised from the failure itself."""

    def __init__(
        self, doing: str, reason: str, *, ranks: tuple[int, ...] = (), seconds: float = 0.0
    ) -> None:
        """`ranks` are those that it waited for in vain, for so many seconds."""
        super().__init__(one_line(f"at {doing}: {reason}"))
        self.doing, self.ranks, self.seconds = doing, ranks, seconds


class NonFiniteError(MeshwrightError):
    """A training step has made a number that is not finite, where it must be."""

    def __init__(self, step: int, what: str, where: str = "") -> None:
        """`what` is not finite after `step`, on the rank that `where` names; empty: on this one."""
        super().__init__(one_line(f"{where and where + ': '}step {step}: {what}"))
        self.step, self.where = step, where
        self.since = 0
        """The step after which the newest checkpoint of the run was written."""


@contextmanager
def errors_in(where: object) -> Iterator[None]:
    """While this holds, what is wrong with what the user gave is told with where it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


@contextmanager
def os_errors(failure: str) -> Iterator[None]:
    """While this holds, what the system refuses is told as this failure, with the reason."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{failure} ({error.strerror or error})") from None


def is_visible(text: str) -> bool:
    """Whether a terminal draws all of a text and obeys none of it."""
    return text.isprintable() and _INVISIBLE.search(text) is None


def printable(text: str, limit: int = MAX_LINE) -> str:
    """Text as it may be shown: characters that steer a terminal or cannot be seen are escaped as
    Python escapes them, and of a text longer than `limit` the middle is left out."""
    shown = _cut(text, limit, len(text))
    if is_visible(shown):
        return shown
    escaped = "".join(each if is_visible(each) else ascii(each)[1:-1] for each in shown)
    return _cut(escaped, limit, len(text))


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Printable text on one line, with single spaces for runs of white space."""
    return printable(" ".join(_cut(text, limit, len(text)).split()), limit)


def quoted(name: str, limit: int = 80) -> str:
    """A name from outside, safe to print on one line: quoted, escaped, and cut when very long."""
    shown = name[:limit]
    text = repr(shown) if is_visible(shown) else ascii(shown)
    is_whole = len(name) <= limit and len(text) <= limit
    return text if is_whole else text[: limit - 4] + "...'"


def _cut(text: str, limit: int, length: int) -> str:
    """The beginning and the end of a text, with `length` between them, where it is too long."""
    if len(text) <= limit:
        return text
    note = f" ... ({length:,} characters) ... "
    kept = limit - len(note)
    return f"{text[: kept - kept // 2]}{note}{text[-(kept // 2) :]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What a message may say of an unknown name: the known ones that are most like it, or all."""
    names = list(known)
    low, lower = name[:80].lower(), {each.lower(): each for each in names}
    near = [each for each in lower if low and each.startswith(low)][:3]
    near = [lower[each] for each in near or difflib.get_close_matches(low, lower, n=3)]
    return f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(names) or 'none'}"


def some(names: list[str] | tuple[str, ...], limit: int = 8) -> str:
    """The first few of many names, for a message."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"
