"""Checks what a user gives to a public function, and names it in the error."""

import difflib
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, TypeVar

from meshwright.errors import InputError, one_line, quoted

E = TypeVar("E", bound=StrEnum)


def read_choice(value: Any, kind: type[E], what: str) -> E:
    """The member of an enumeration that is meant, given itself or by its text; `what` names the
    field in the error."""
    if isinstance(value, kind):
        return value
    need_one_of(value, tuple(kind), what)
    return kind(value)


def need_one_of(value: Any, texts: tuple[str, ...], what: str) -> None:
    """Refuse what is none of these texts."""
    if not isinstance(value, str) or value not in texts:
        near = difflib.get_close_matches(value, texts, n=1) if isinstance(value, str) else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{what}: must be one of {', '.join(texts)}, got {shown(value)}{hint}")


def need_type(value: Any, kind: type | tuple[type, ...], what: str, wanted: str) -> None:
    """Refuse what is of no such type; `wanted` words the type for people."""
    if not isinstance(value, kind):
        raise InputError(f"{what}: must be {wanted}, got {shown(value)}")


def need_number(
    value: Any, what: str, *, is_positive: bool = False, is_whole: bool = False
) -> None:
    """Refuse what is no number from 0; infinity is one."""
    wanted = f"a {'whole ' * is_whole}{'positive ' * is_positive}number"
    kind = Integral if is_whole else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not (value > 0 if is_positive else value >= 0):
        more = "" if is_positive else " from 0"
        raise InputError(f"{what}: must be {wanted}{more}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value of any type for a message: short, printable, and whatever its `repr` does."""
    if isinstance(value, str):
        return quoted(value)
    try:
        return one_line(repr(value), 60)
    except Exception:
        return type(value).__name__
