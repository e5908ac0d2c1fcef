"""Checks what a user gives to a public function, and names it in the error."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

import numpy as np

from meshwright.errors import InputError, one_line, quoted

E = TypeVar("E", bound=StrEnum)
P = ParamSpec("P")
R = TypeVar("R")

_KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = MappingProxyType(
    {
        bool: ((bool, np.bool_), "True or False"),
        int: ((Integral,), "a whole number"),
        float: ((Real,), "a number"),
        str: ((str,), "a text"),
        Path: ((Path,), "a path"),
        NoneType: ((NoneType,), "None"),
        Callable: ((Callable,), "a function"),  # type: ignore[dict-item]
        Mapping: ((Mapping,), "a mapping"),
        Sequence: ((Sequence, np.ndarray), "a list"),
    }
)
"""What is taken for a type that a function asks for, and the type in words."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with arguments of plain types refused by name where they are of others.

    Types that are more than plain, or a choice among such, the function has to check itself.
    """
    signature = inspect.signature(function)
    kinds = {name: _plain_kinds(each.annotation) for name, each in signature.parameters.items()}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            wanted = kinds[name]
            if wanted and not any(_is_of(value, each) for each in wanted):
                words = " or ".join(_KINDS[each][1] for each in wanted)
                raise InputError(f"{name}: must be {words}, got {shown(value)}")
        return function(*args, **kwargs)

    return call


def _plain_kinds(annotation: Any) -> tuple[Any, ...]:
    """The plain types that an annotation allows; none where it allows any other, too."""
    every = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    kinds = tuple(get_origin(each) or each for each in every)
    return kinds if all(kind in _KINDS for kind in kinds) else ()


def _is_of(value: Any, kind: Any) -> bool:
    is_odd = (kind in (int, float) and isinstance(value, bool)) or (
        kind is Sequence and isinstance(value, str | bytes)
    )
    return isinstance(value, _KINDS[kind][0]) and not is_odd


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


def need_flag(value: Any, what: str) -> None:
    """Refuse what is neither True nor False: a text or a number counts as True by itself."""
    need_type(value, (bool, np.bool_), what, "True or False")


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, which True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def need_number(
    value: Any, what: str, *, is_positive: bool = False, is_whole: bool = False
) -> None:
    """Refuse what is no number from 0; infinity is one."""
    wanted = f"a {'whole ' * is_whole}{'positive ' * is_positive}number"
    kind = Integral if is_whole else Real
    is_of_kind = isinstance(value, kind) and not isinstance(value, bool)
    if not is_of_kind or not (value > 0 if is_positive else value >= 0):
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
