"""What the local search over assignments works on: arrays of records, and how far it has come.

Moves nothing.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array

PLACE = np.dtype(
    [
        ("load", np.float64),
        ("old_load", np.float64),
        ("slot", np.int32),
        ("device", np.int32),
        ("best_device", np.int32),
        ("first", np.int32),  # its partners: from here to the next place's
        ("seat", np.int32),  # where it is on its slot's ring
        ("stamp", np.int32),  # the move that has touched it last
    ],
    align=True,
)
"""One place; arrays of it have one entry more than places."""

SLOT = np.dtype(
    [
        ("ring_bytes", np.float64),
        ("seconds", np.float64),
        ("late", np.float64),
        ("old_seconds", np.float64),
        ("old_late", np.float64),
        ("first", np.int32),  # its places: from here to the next slot's
        ("hot", np.int32),  # where it is among the late ones, -1 if it is not
        ("stamp", np.int32),
    ],
    align=True,
)
"""One slot; arrays of it have one entry more than slots."""

PROGRESS = np.dtype(
    [
        ("target", np.float64),
        ("late", np.float64),  # the sum of what is late, in targets
        ("heat", np.float64),
        ("cooling", np.float64),  # the factor of the heat in each step
        ("best", np.float64),  # the least largest time of a slot so far
        ("step_down", np.float64),  # by what share of the best value the next target is lower
        ("num_hot", np.int64),
        ("stamp", np.int64),  # the number of the present move
        ("num_changed", np.int64),
        ("num_places", np.int64),  # places that the move has touched
        ("num_slots", np.int64),
        ("steps", np.int64),
        ("accepted", np.int64),
        ("found", np.int64),  # how often the best value became lower
    ],
    align=True,
)
"""Where a walk is, and what it has found."""


class AssignmentState(NamedTuple):
    """Everything that the annealing of an assignment works on."""

    places: Array
    slots: Array
    place_of: Array
    """The place on each device; -1 where it is free."""
    ring: Array
    """Places in the order of their slot's ring, slot after slot."""
    best_ring: Array
    hot: Array
    """The slots that are late, in any order."""
    partner: Array
    """Partners of places, place after place."""
    wire: Array
    """The bytes that go to each partner."""
    compute: Array
    """Seconds by slot and device."""
    slowness: Array
    """Seconds a byte between two devices."""
    near: Array
    """By device all others, the fastest link first."""
    changed: Array
    """Places and the devices that they get in the present move; once it is made, those they had."""
    touched: Array
    """Places, and slots, whose load or time the present move has changed."""
    now: Array
    """One record of `PROGRESS`."""
    random: Array
