"""What the log of a run has of a step."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a step once it was taken."""

    step: int
    """The number of the step, counted from one."""
    loss: float
    learning_rate: float
    """The learning rate of the optimiser's first group."""
    seconds: float
    samples_per_second: float
    validation_loss: float | None = None
    """Of the validation data after the step, where it was looked at."""


Callback = Callable[[Entry], None]
"""Is told of every step, on the first rank, when the next one was taken."""
