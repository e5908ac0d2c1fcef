"""Who can have which device: bipartite matching, and the tightest limit at which one exists."""

from bisect import bisect_left

import numpy as np

from meshwright.array import Bools, Floats, Ints


def match_slots(can_run: Bools, wanted: Ints) -> tuple[Ints, int]:
    """Slot of each device (-1 for none) such that slot s gets `wanted[s]`, as far as possible.

    The second is how many could not be served. Augmenting paths, breadth first, devices and slots
    in their order.
    """
    slots, devices = can_run.shape
    slot_of = np.full(devices, -1, np.int32)
    missing = 0
    order: list[int] = np.argsort(can_run.sum(axis=1) - wanted, kind="stable").tolist()
    for slot in order:
        for _ in range(int(wanted[slot])):
            free = np.flatnonzero(can_run[slot] & (slot_of < 0))
            if len(free):
                slot_of[free[0]] = slot
            elif not _augment(can_run, slot_of, slot):
                missing += 1
    assert slots == len(wanted)
    return slot_of, missing


def _augment(can_run: Bools, slot_of: Ints, slot: int) -> bool:
    """Give the slot one more device by handing others on."""
    came_by = {slot: -1}  # the device through which a slot was reached
    front = [slot]
    taken_by = np.full(len(slot_of), -1, np.int64)  # the slot that would take a device
    while front:
        following = []
        for each in front:
            fresh = np.flatnonzero(can_run[each] & (taken_by < 0))
            taken_by[fresh] = each
            free = fresh[slot_of[fresh] < 0]
            if len(free):
                device = int(free[0])
                while device >= 0:
                    taker = int(taken_by[device])
                    slot_of[device] = taker
                    device = came_by[taker]
                return True
            for device in fresh.tolist():
                owner = int(slot_of[device])
                if owner not in came_by:
                    came_by[owner] = device
                    following.append(owner)
        front = following
    return False


def least_limit(floors: Floats, wanted: Ints) -> float:
    """The least limit within which every slot gets its devices; infinite where none does.

    The bottleneck assignment: a bound of every mapping when `floors` holds for every place.
    """
    levels = np.unique(floors[np.isfinite(floors)])
    if not len(levels) or match_slots(floors <= levels[-1], wanted)[1]:
        return float("inf")
    place = bisect_left(levels, True, key=lambda level: not match_slots(floors <= level, wanted)[1])
    return float(levels[place])


def as_places(slot_of: Ints, first_place: Ints) -> Ints:
    """The device of each place: every slot's devices in their order."""
    devices = np.argsort(np.where(slot_of < 0, len(first_place), slot_of), kind="stable")
    return devices[: first_place[-1]].astype(np.int32)
