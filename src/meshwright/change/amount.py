"""How much something is changed by: to a value of its own, or times a factor."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.errors import InputError, quoted

_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_FACTOR = re.compile(rf"\s*(?:{_NUMBER}\s*[xX\u00d7]|[xX\u00d7]\s*{_NUMBER})\s*")
"""Written '2x' or 'x2', and with a multiplication sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A factor or a value: one of the two is given."""

    factor: float | None = None
    """What the old value is multiplied by."""
    value: float | None = None
    """What takes the old value's place, in the unit of what is changed."""

    def __post_init__(self) -> None:
        given = [each for each in (self.factor, self.value) if each is not None]
        if len(given) != 1:
            raise InputError(f"amount: must be a factor or a value, got {len(given):,} of them")
        if not 0 < given[0] < math.inf:
            raise InputError(f"amount: must be positive and finite, got {given[0]}")

    def of(self, old: float) -> float:
        """The new value of what was `old`."""
        if self.factor is not None:
            return old * self.factor
        assert self.value is not None
        return self.value

    def words(self, show: Callable[[float], str]) -> str:
        """What it is for people; `show` prints a value with its unit."""
        if self.factor is not None:
            return f"{self.factor:g}x"
        assert self.value is not None
        return show(self.value)


def read_amount(text: str, what: str, parse: Callable[[str, str], float]) -> Amount:
    """The amount that a text such as '2x' or '400 Gb/s' stands for; `parse` reads a value."""
    match = _FACTOR.fullmatch(text)
    if match is None:
        value = parse(text, what)
        if not value > 0:
            raise InputError(f"{what}: must be positive, got {quoted(text)}")
        return Amount(value=value)
    factor = float(match[1] or match[2])
    if not 0 < factor < math.inf:
        raise InputError(f"{what}: must be a positive factor, got {quoted(text)}")
    return Amount(factor=factor)
