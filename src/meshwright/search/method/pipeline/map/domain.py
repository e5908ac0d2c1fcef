"""Domains of places: what is taken out, put back, and refuted with its images. For kernels.

Symmetry breaking during search (Gent and Smith, ECAI 2000): where nothing is left below a choice,
nothing is below its images under a symmetry of what is decided either. Symmetries are exchanges of
devices that change nothing, of hosts that are alike, and of lines of replicas that are still empty.
"""

from typing import Any

import numpy as np

from meshwright.compiled import inlined, outlined

TRAIL = 3
"""Place in the array of counts: what is taken out so far."""


@inlined
def remove(places: Any, alive: Any, trail: Any, counts: Any, p: Any, d: Any) -> None:
    """Take a device out of a domain."""
    alive[p, d] = False
    places[p].size -= 1
    trail[counts[TRAIL], 0] = p
    trail[counts[TRAIL], 1] = d
    counts[TRAIL] += 1


@inlined
def restore(places: Any, alive: Any, trail: Any, counts: Any, mark: Any) -> None:
    """Put back all that was taken out since a mark."""
    while counts[TRAIL] > mark:
        counts[TRAIL] -= 1
        p = trail[counts[TRAIL], 0]
        alive[p, trail[counts[TRAIL], 1]] = True
        places[p].size += 1


@outlined
def refute(
    places: Any, slots: Any, devices: Any, alive: Any, trail: Any, counts: Any, p: Any, d: Any
) -> None:  # fmt: skip
    """Take a refuted choice, and its images under symmetries of what is decided, out."""
    own = places[p].line
    for q in range(slots[places[p].slot].first, slots[places[p].slot + 1].first):
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
        for e in range(len(devices)):
            if alive[q, e] and _is_image(devices, d, e):
                remove(places, alive, trail, counts, np.int64(q), e)


@inlined
def _is_image(devices: Any, d: Any, e: Any) -> bool:
    """Whether an exchange that touches no device in use takes d to e."""
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
