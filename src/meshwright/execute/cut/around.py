"""Wraps an op so that it runs on a member's own version of the arguments that it is given.

The wrapper has the op's name, schema and tags, so that code which knows what the op does need not
know that a member runs it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class Around(ABC):
    """An op, with what is done to its arguments before it runs and to its results after."""

    target: Any
    """The op, or another wrapper around it."""

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
        """The arguments that the op is called with."""

    @abstractmethod
    def kept(self, made: Any, args: Sequence[Any]) -> Any:
        """The results of the wrapper, made of those of the op; `args`: what it was called with."""

    @abstractmethod
    def around(self, target: Any) -> "Around":
        """The same wrapper around another op with the same arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op on the arguments that it is to be given."""
        return self.call(self.target, *args, **kwargs)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Run another function in the op's place."""
        given, named = self.given(args, kwargs)
        return self.kept(target(*given, **named), args)
