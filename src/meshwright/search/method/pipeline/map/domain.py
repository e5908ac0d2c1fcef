"""What a depth-first search for an assignment works on: above all the domains of places.

What is taken out of domains is put back later, and refuted with its images. Symmetry breaking
during search (Gent and Smith, ECAI 2000): where nothing is left below a choice, nothing is below
its images under a symmetry of what is decided either. Symmetries are exchanges of devices that
change nothing, of hosts that are alike, and of lines of replicas that are still empty.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Bool, Int, inlined, outlined

PLACE = np.dtype(
    [
        ("load", np.float64),  # compute and transfers that are decided
        ("slot", np.int32),
        ("line", np.int32),  # replica, where lines may change places, else -1
        ("device", np.int32),
        ("size", np.int32),  # of its domain
        ("first", np.int32),  # its partners: from here to the next place's
        ("next", np.int32),  # at this depth: the place that is decided
        ("node_mark", np.int32),  # at this depth: the trail before its first choice
        ("mark", np.int32),  # at this depth: the trail before its present choice
    ],
    align=True,
)
"""One place; arrays of it have one entry more than places."""

SLOT = np.dtype(
    [
        ("ring_bytes", np.float64),
        ("top", np.float64),  # least time of the slowest replica
        ("need", np.float64),  # least slowness of the ring's slowest link
        ("first", np.int32),  # its places: from here to the next slot's
        ("filled", np.int32),
    ],
    align=True,
)
"""One slot; arrays of it have one entry more than slots."""

DEVICE = np.dtype(
    [
        ("place", np.int32),
        ("twin", np.int32),  # devices of one number can be exchanged
        ("group", np.int32),  # host, or any other group
        ("kind", np.int32),  # groups of one kind can be exchanged, -1 for none,
        ("seat", np.int32),  # device by device in this order
    ],
    align=True,
)
"""One device: the place on it, and what it can be exchanged with."""

PROGRESS = np.dtype(
    [
        ("target", np.float64),  # no assignment may take more seconds
        ("depth", np.int64),  # places that are decided
        ("nodes", np.int64),  # choices tried so far, over all targets
        ("num_removed", np.int64),  # entries of the trail
        ("is_begun", np.bool_),
    ],
    align=True,
)
"""How far a search has come."""


class ProbeState(NamedTuple):
    """Everything that a search for one assignment works on."""

    places: Array
    slots: Array
    devices: Array
    partner: Array
    """Partners of places, place after place."""
    wire: Array
    """The bytes that go to each partner."""
    compute: Array
    """Seconds by slot and device."""
    slowness: Array
    """Seconds a byte between two devices."""
    least: Array
    """By slot and device what a replica there takes at least, in seconds."""
    near: Array
    """By device all others, the fastest link first."""
    near_ring: Array
    """By device all others, the faster of the links to and fro first."""
    alive: Array
    """By place and device whether the device is in the place's domain."""
    trail: Array
    """Places, and devices that were taken out of their domains, in that order."""
    members: Array
    """Room for the devices of one ring."""
    table: Array
    """Room for the sets of devices at which paths can end."""
    now: Array
    """One record of `PROGRESS`."""


@inlined
def remove(state: ProbeState, p: Int, d: Int) -> None:
    """Take a device out of a domain."""
    now = state.now
    state.alive[p, d] = False
    state.places[p].size -= 1
    state.trail[now.num_removed, 0] = p
    state.trail[now.num_removed, 1] = d
    now.num_removed += 1


@inlined
def restore(state: ProbeState, mark: Int) -> None:
    """Put back all that was taken out since a mark."""
    now = state.now
    while now.num_removed > mark:
        now.num_removed -= 1
        p = state.trail[now.num_removed, 0]
        state.alive[p, state.trail[now.num_removed, 1]] = True
        state.places[p].size += 1


@outlined
def refute(state: ProbeState, p: Int, d: Int) -> None:
    """Take a refuted choice, and its images under symmetries of what is decided, out."""
    places = state.places
    own = places[p].line
    for q in range(state.slots[places[p].slot].first, state.slots[places[p].slot + 1].first):
        is_image = q == p
        if not is_image and own >= 0 and places[q].device < 0:
            is_image = True  # both lines are empty: they may change places
            for other in range(len(places) - 1):
                if places[other].device >= 0 and (
                    places[other].line == own or places[other].line == places[q].line
                ):
                    is_image = False
        if not is_image:
            continue
        for e in range(len(state.devices)):
            if state.alive[q, e] and _is_image(state, d, e):
                remove(state, np.int64(q), e)


@inlined
def _is_image(state: ProbeState, d: Int, e: Int) -> Bool:
    """Whether an exchange that touches no device in use takes d to e."""
    devices = state.devices
    if d == e or (devices[d].twin == devices[e].twin):
        return True
    if devices[d].kind < 0 or devices[d].kind != devices[e].kind:
        return False
    if devices[d].group == devices[e].group or devices[d].seat != devices[e].seat:
        return False
    for other in range(len(devices)):
        if devices[other].place >= 0 and (
            devices[other].group == devices[d].group or devices[other].group == devices[e].group
        ):
            return False
    return True
