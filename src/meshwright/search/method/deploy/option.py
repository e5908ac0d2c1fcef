"""What can be chosen for a group of ops: on which devices, and how (after TAG).

Knows nothing of graphs and of what a choice costs.
"""

from dataclasses import dataclass
from enum import IntEnum


class GroupOption(IntEnum):
    """How a group of ops runs on several devices."""

    ALL_REDUCE = 0
    """Replicated, each replica on its share of the batch; gradients are all-reduced."""
    PARAMETER_SERVER = 1
    """Replicated on shares of the batch; each replica sums some of the gradients for all."""
    DUPLICATE = 2
    """Every device runs everything on the whole batch: nothing is to be synchronised."""
    MODEL = 3
    """The ops are dealt out over the devices, each runs on one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAction:
    """A choice for one group of ops."""

    places: tuple[int, ...]
    """The device groups, rising."""
    devices: tuple[int, ...]
    """Numbers of the devices, rising: those of the places, less those without a sample."""
    option: GroupOption
    shares: tuple[float, ...] = ()
    """Each device's share of the batch; empty where all are equal or nothing is replicated."""


Strategy = tuple[GroupAction, ...]
"""An action for each group, in the order of groups."""
