"""What the members of a group do together with tensors: the collectives of an expanded step.

Each is a value that can be called: on fake tensors, when a trace is built, it gives tensors of the
shapes that its results have; at run time `begin` starts it on real ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.execute.exchange import Exchange
from meshwright.execute.work import Work

Finish = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Begun:
    """A collective under way."""

    made: Any
    """Its results, which hold what they should after `finish`."""
    work: Work
    finish: Finish


class Talk(Protocol):
    """A collective."""

    __name__: str

    def __call__(self, *args: Any) -> Any:
        """Tensors as large as its results."""

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""


@dataclass(frozen=True)
class AllReduce:
    """The sum of the members' tensors."""

    __name__ = "all_reduce"

    def __call__(self, tensor: Tensor) -> Tensor:
        """As large as each term."""
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it on a copy: others may still read the term."""
        total = torch.empty_like(args[0], memory_format=torch.contiguous_format).copy_(args[0])
        return Begun(total, exchange.all_reduce(total.view(-1), group), _nothing)


def _nothing() -> None:
    pass
