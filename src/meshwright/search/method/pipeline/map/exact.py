"""Proves the optimum of small problems: targets by bisection, each by depth-first search.

A target for which no assignment exists is a bound; an assignment that is found lowers the target
to its value. What is left is closed by a search just below the best. Work is counted against a
budget, so that the same budget gives the same answer on any machine.
"""

from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.method.pipeline.map.domain import (
    DEVICE,
    PLACE,
    PROGRESS,
    SLOT,
    ProbeState,
)
from meshwright.search.method.pipeline.map.probe import FOUND, GOES_ON, NONE, probe
from meshwright.search.method.pipeline.map.problem import MappingProblem
from meshwright.search.method.pipeline.map.ring import MOST_EXACT
from meshwright.search.method.pipeline.map.symmetry import Symmetry

TOLERANCE = 1e-9
"""Values that differ by less than this part count as equal, as sums differ in their last bits."""
_ENTRY_SECONDS = 2e-8
"""How long a node looks at one entry of a domain (one core of a server, 2026-11-15)."""
_STRETCH_SECONDS = 0.01
"""How much work lies between two looks at the clock."""
_CLOSE = 1e-3
"""A dive whose range is narrower than this part of the bound ends by trying just below the best."""


class Meter:
    """A budget in seconds of work as estimated, and the clock as a last resort."""

    def __init__(self, seconds: float, parent: "Meter | None" = None, slack: float = 1.0) -> None:
        self.left = seconds * slack  # with much slack only the clock counts
        self._parent = parent
        self._until: float = parent._until if parent is not None else perf_counter() + seconds

    def part(self, share: float) -> "Meter":
        """A share of what is left, which is charged here too."""
        return Meter(self.left * share, self)

    def charge(self, seconds: float) -> None:
        """Charge work, in estimated seconds, to this budget and to those it is part of."""
        self.left -= seconds
        if self._parent is not None:
            self._parent.charge(seconds)

    @property
    def clock_left(self) -> float:
        """How many seconds are left on the clock."""
        return max(0.0, self._until - perf_counter())

    def is_late(self) -> bool:
        """Whether the clock has run out."""
        return perf_counter() >= self._until

    def is_over(self) -> bool:
        """Whether the budget, or the clock, has run out."""
        return self.left <= 0 or self.is_late()


class Probe:
    """A search for an assignment of at most some seconds; goes on in stretches."""

    def __init__(self, problem: MappingProblem, symmetry: Symmetry, floors: Floats) -> None:
        self.problem = problem
        count, devices, slowness = problem.num_places, problem.num_devices, problem.seconds_per_byte
        start, partner, wire = problem.wires
        self._state = ProbeState(
            places=np.zeros(count + 1, PLACE),
            slots=np.zeros(problem.num_slots + 1, SLOT),
            devices=np.zeros(devices, DEVICE),
            partner=partner,
            wire=wire,
            compute=problem.compute,
            slowness=slowness,
            least=floors,
            near=sorted_neighbours(slowness),
            near_ring=sorted_neighbours(np.minimum(slowness, slowness.T)),
            alive=np.zeros((count, devices), np.bool_),
            trail=np.zeros((count * devices + 1, 2), np.int32),
            members=np.zeros(MOST_EXACT, np.int32),
            table=np.zeros(1 << MOST_EXACT, np.int32),
            now=np.zeros(1, PROGRESS)[0],
        )
        places, slots = self._state.places, self._state.slots
        places["slot"][:count] = problem.slot_of_place
        places["first"] = start
        places["line"][:count] = self._lines()
        slots["first"] = problem.first_place
        slots["ring_bytes"][:-1] = problem.ring_bytes
        for name in ("twin", "group", "kind", "seat"):
            self._state.devices[name] = getattr(symmetry, name)

    def _lines(self) -> Ints | int:
        """Lines may change places where every slot has as many replicas."""
        replicas = self.problem.replicas_of_slot
        if (replicas != replicas[0]).any():
            return -1
        numbers = (
            np.arange(self.problem.num_places)
            - self.problem.first_place[self.problem.slot_of_place]
        )
        return numbers.astype(np.int32)

    @property
    def nodes(self) -> int:
        """Choices tried so far, over all targets."""
        return int(self._state.now["nodes"])

    def begin(self, target: float) -> None:
        """Start anew, with another target."""
        state, now = self._state, self._state.now
        state.places["device"] = -1
        state.devices["place"] = -1
        state.slots["filled"] = 0
        state.alive[:] = state.least[self.problem.slot_of_place] <= target
        state.places["size"][:-1] = state.alive.sum(axis=1)
        now["target"], now["depth"], now["num_removed"], now["is_begun"] = target, 0, 0, False

    def run(self, nodes: int) -> int:
        """Go on: FOUND, NONE or GOES_ON. After FOUND, go on for another assignment."""
        if not self._state.now["is_begun"] and not self._state.alive.any(axis=1).all():
            return NONE
        return int(probe(self._state, nodes))

    @property
    def found(self) -> Ints:
        """The devices of the assignment that was found."""
        devices: Ints = self._state.places["device"][:-1].copy()
        return devices

    @property
    def node_seconds(self) -> float:
        """About what a node takes."""
        problem = self.problem
        replicas = problem.num_places / problem.num_slots
        around = replicas * (1 + len(self._state.partner) / problem.num_places)
        return _ENTRY_SECONDS * (around * problem.num_devices + problem.num_places)

    def stretch(self) -> int:
        """Nodes that take about a hundredth of a second."""
        return max(1, int(_STRETCH_SECONDS / self.node_seconds))

    def go_on(self, meter: Meter) -> int:
        """Go on for a stretch, at the cost of a budget: FOUND, NONE or GOES_ON."""
        nodes = self.nodes
        said = self.run(self.stretch())
        meter.charge((self.nodes - nodes + 1) * self.node_seconds)
        return said


def sorted_neighbours(slowness: Floats) -> Ints:
    """By device all others, the fastest link first."""
    apart = slowness.copy()
    np.fill_diagonal(apart, -1.0)
    return np.ascontiguousarray(np.argsort(apart, axis=1, kind="stable")[:, 1:].astype(np.int32))


def dive(
    search: Probe,
    low: float,
    value: float,
    evaluate: Callable[[Ints], float],
    meter: Meter,
    share: float = 0.2,
) -> tuple[Ints | None, float, bool]:
    """Bisect targets, giving up on those that take long: the best devices, value, and proof.

    None where nothing is better than the value at the beginning. `share` is how much of what is
    left one target may take; then it counts as too low, without a proof.
    """
    best, is_proof = None, True
    while low < value * (1 - 2 * TOLERANCE) and not meter.is_over():
        is_last = value <= low * (1 + _CLOSE)
        target = value * (1 - TOLERANCE) if is_last else (low + value) / 2
        search.begin(target)
        part, said = meter.part(share), GOES_ON
        while said == GOES_ON and not part.is_over():
            said = search.go_on(part)
        seconds = evaluate(search.found) if said == FOUND else np.inf
        if seconds < value:
            best, value = search.found, seconds
        else:
            low = target
            is_proof = is_proof and said == NONE
    return best, value, is_proof and low >= value * (1 - 2 * TOLERANCE)


def prove(
    search: Probe,
    bound: float,
    value: float,
    evaluate: Callable[[Ints], float],
    meter: Meter,
) -> Iterator[tuple[float, Ints | None]]:
    """Yields each new bound, with None, and each better assignment, with its value.

    Ends when the two meet or the time is over.
    """
    while bound < value * (1 - TOLERANCE):
        is_last = not np.isfinite(value) or value <= bound * 1.01
        target = value * (1 - TOLERANCE) if is_last or bound <= 0 else (bound + value) / 2
        search.begin(target)
        is_complete = True
        while True:
            if meter.is_over():
                return
            said = search.go_on(meter)
            if said == FOUND:
                seconds = evaluate(search.found)
                if seconds < value:
                    value = seconds
                    yield value, search.found
                    break
                is_complete = False  # a long ring that was not found: perhaps there is none
            elif said == NONE:
                break
        if said == NONE:
            if not is_complete:
                return
            bound = target
            yield bound, None
        assert said != GOES_ON
