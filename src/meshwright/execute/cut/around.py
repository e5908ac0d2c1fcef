"""Wraps an op so that it runs on a member's own version of the arguments that it is given.

The wrapper has the op's name, schema and tags, so that code which knows what the op does need not
know that a member runs it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
"""What an op is called with, by place and by name."""

_OF_OPS = {"__name__", "_schema", "_overloadpacket", "_overloadname", "tags"}


@dataclass(frozen=True)
class Around(ABC):
    """An op, with what is done to its arguments before it runs and to its results after."""

    target: Any
    """The op, or another wrapper around it."""

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_OPS:
            raise AttributeError(name)
        return getattr(self.target, name)

    @abstractmethod
    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments that the op is called with."""

    @abstractmethod
    def _kept(self, made: Any, args: Sequence[Any]) -> Any:
        """The results of the wrapper, made of those of the op; `args`: what it was called with."""

    def around(self, target: Any) -> Self:
        """The same wrapper around another op with the same arguments."""
        return replace(self, target=target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op on the arguments that it is to be given."""
        return self.call(self.target, *args, **kwargs)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Run another function in the op's place."""
        given, named = self._given(args, kwargs)
        return self._kept(target(*given, **named), args)
