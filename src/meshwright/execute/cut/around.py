"""Ops that are called with other arguments than they are given: those of a member's own.

The call of such an op is still that op's: it has its name and its schema, so that whoever knows
what the op does need not know that a member runs it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class Around(ABC):
    """An op, and what is done with its arguments before and with its results after it."""

    target: Any
    """The op, or another of these."""

    @property
    def __name__(self) -> str:
        return str(getattr(self.target, "__name__", "op"))

    @property
    def _schema(self) -> Any:
        return getattr(self.target, "_schema", None)

    @property
    def _overloadpacket(self) -> Any:
        return getattr(self.target, "_overloadpacket", None)

    @property
    def _overloadname(self) -> str:
        return str(getattr(self.target, "_overloadname", ""))

    @property
    def tags(self) -> Any:
        """Those of the op."""
        return getattr(self.target, "tags", ())

    @abstractmethod
    def given(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """What the op gets of these arguments."""

    @abstractmethod
    def kept(self, made: Any) -> Any:
        """What becomes of the op's results."""

    @abstractmethod
    def around(self, target: Any) -> "Around":
        """The same around another op of these arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op."""
        return self.call(self.target, *args, **kwargs)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Run another function in the op's place."""
        given, named = self.given(args, kwargs)
        return self.kept(target(*given, **named))
