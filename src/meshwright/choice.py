"""Reads a choice that a user may give as a member of an enumeration or by its text."""

from enum import StrEnum
from typing import Any, TypeVar

from meshwright.errors import InputError, quoted

E = TypeVar("E", bound=StrEnum)


def read_choice(value: Any, kind: type[E], what: str) -> E:
    """The member that is meant; `what` names the field in the error."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value in {each.value for each in kind}:
        return kind(value)
    shown = quoted(value) if isinstance(value, str) else f"{value!r:.60}"
    raise InputError(f"{what}: must be one of {', '.join(kind)}, got {shown}")
