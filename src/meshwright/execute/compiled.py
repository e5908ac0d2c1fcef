"""The function of a segment, and what it is given besides tensors: the rank's state and moment.

Written by `meshwright.execute.code`.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from meshwright.execute.scale import LossScale

Function = Callable[[list[Any], "RankState"], list[Any]]
"""From inputs (a list that it empties) and what is held to outputs."""

FILE_NAME = "<segment>"
"""The name that generated code has in tracebacks."""


class Extra(Enum):
    """What a function does besides running its ops."""

    NOTHING = "nothing"
    TIMES = "times"
    """It says when each op is done, by `RankState.mark`."""
    CHECKS = "checks"
    """It shows the results of each op, to `RankState.look`."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A segment's function, and where the text of each of its lines begins."""

    run: Function
    first_text: tuple[int, ...]
    calls: tuple[int, ...]
    """How many of its lines each call runs, which may be more than one for a region and for
    updates: where a step is timed, there is a mark after each call."""

    def failed_line(self, error: BaseException) -> int:
        """The line of the segment that an error comes from."""
        found, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILE_NAME:
                found = trace.tb_lineno - 3  # the function's own line and the one for state
            trace = trace.tb_next
        last = max(0, bisect_right(self.first_text, found) - 1)
        return self.first_text.index(self.first_text[last])  # of a region the first


@dataclass(slots=True)
class RankState:
    """What a rank holds from step to step, and what generated code needs to know of the moment."""

    state: list[torch.Tensor]
    """Parameters, buffers, the optimiser's state and constants."""
    sums: list[torch.Tensor | None]
    """Gradients that microbatches add up to."""
    groups: list[dict[str, Any]]
    """The optimiser's groups of parameters, with the numbers that updates are given."""
    group_of: Mapping[str, int]
    """The group of each parameter, by name."""
    rates: Sequence[torch.Tensor]
    """The learning rate of each group, where a recorded step reads it; none: it is a number."""
    update: Callable[..., None]
    """Called with parameters, their gradients and state, the number of their group, whether it is
    the first time, and the learning rate where a recorded step reads it: by the updates of an
    optimiser that takes its own steps."""
    keys: Callable[[int, int], torch.Tensor]
    """The keys of random numbers of an op that is run on so many samples; 0: it has none."""
    seed_of: Callable[[int, int], int]
    """A seed of an op that is run on so many samples and draws for them together."""
    mark: Callable[[], None]
    """Called after every call of a function that is timed."""
    talk: Callable[..., Any]
    """Called with a collective and its arguments, to begin it; returns its results to be."""
    look: Callable[[int, torch.Tensor], None]
    """Called with every version that an op has made, and its number, by a function that checks."""
    scale: LossScale | None = None
    """What losses are multiplied with before backward."""
    is_first: bool = True
    """Whether no parameter was updated yet."""
    moment: tuple[int, int] = (0, 0)
    """The microbatch that runs, and the first of its rows."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """One a microbatch, each already weighed by its share of the batch."""
