"""The local search over assignments: exchanges devices until every slot meets a target.

What is summed is by how much replicas, and links of rings, go beyond the target; so many slots that
are a little late count like one that is very late, and plateaus of the largest time are left. Moves
begin at a slot that is late. Work is counted in steps, not timed, so the same seed and budget give
the same assignment.
"""

from collections.abc import Callable

import numpy as np

from meshwright.compiled import Bool, Int, compiled, inlined, outlined
from meshwright.kernel.draw import below, exponential, uniform
from meshwright.search.method.pipeline.map.assignment_state import (
    PLACE,
    PROGRESS,
    SLOT,
    AssignmentState,
)
from meshwright.search.method.pipeline.map.exact import sorted_neighbours
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem
from meshwright.search.method.pipeline.map.propose import propose

_STEP_SECONDS = 2.5e-7
"""What a step takes for each partner and replica that it touches (one core of a server,
2026-11-15)."""
_SLICE = 50_000
"""How many steps there are between two looks at the clock."""


class AssignmentWalk:
    """The local search, on arrays that are kept between calls."""

    def __init__(self, problem: MappingProblem, seed: int) -> None:
        self.problem = problem
        count, slots = problem.num_places, problem.num_slots
        start, partner, wire = problem.wires
        self._state = AssignmentState(
            places=np.zeros(count + 1, PLACE),
            slots=np.zeros(slots + 1, SLOT),
            place_of=np.zeros(problem.num_devices, np.int32),
            ring=np.zeros(count, np.int32),
            best_ring=np.zeros(count, np.int32),
            hot=np.zeros(slots, np.int32),
            partner=partner,
            wire=wire,
            compute=problem.compute,
            slowness=problem.seconds_per_byte,
            near=sorted_neighbours(problem.seconds_per_byte),
            changed=np.zeros((2 * count + 8, 2), np.int32),
            touched=np.zeros((2, count + 8), np.int32),
            now=np.zeros(1, PROGRESS)[0],
            random=np.array([seed % 2**64], np.uint64),
        )
        self._state.places["slot"][:count] = problem.slot_of_place
        self._state.places["first"] = start
        self._state.slots["first"] = problem.first_place
        self._state.slots["ring_bytes"][:-1] = problem.ring_bytes
        replicas = problem.replicas_of_slot
        self._replicas = int(replicas[0]) if (replicas == replicas[0]).all() else 0
        # More where much is joined, and beyond the processor's caches.
        partners = len(problem.wires[1]) / problem.num_places
        mean = float(problem.replicas_of_slot.mean()) if problem.ring_bytes.any() else 1.0
        far = 1.0 + min(1.0, problem.num_devices / 512)
        self.step_seconds = _STEP_SECONDS * far * (1.0 + 0.3 * partners + 0.15 * mean)

    def begin(self, assignment: Assignment, value: float) -> None:
        """Start at an assignment with its value."""
        places, place_of, ring = self._state.places, self._state.place_of, self._state.ring
        places["device"][:-1] = assignment.device_of_place
        places["best_device"] = places["device"]
        place_of[:] = -1
        place_of[assignment.device_of_place] = np.arange(self.problem.num_places)
        ring[:] = np.concatenate([place_of[each] for each in assignment.rings])
        self._state.best_ring[:] = ring
        slot = self.problem.slot_of_place
        places["seat"][ring] = np.arange(len(slot)) - self.problem.first_place[slot]
        places["stamp"] = -1
        self._state.slots["stamp"] = -1
        for name in ("stamp", "steps", "accepted", "found"):
            self._state.now[name] = 0
        self._state.now["best"] = value

    def run(
        self, steps: int, target: float, hot: float, cold: float, is_over: Callable[[], bool]
    ) -> None:
        """Search for a target; where it is met, for one that is lower by the same share."""
        if target <= 0:  # nothing is lower
            return
        now, left = self._state.now, steps
        now["target"], now["heat"] = target, hot
        now["step_down"] = max(1e-6, 1.0 - target / now["best"])
        now["cooling"] = (cold / hot) ** (1.0 / max(1, steps))
        while left > 0 and not is_over():
            anneal(self._state, min(left, _SLICE), self._replicas)
            left -= _SLICE

    @property
    def value(self) -> float:
        """The largest time of a slot in the best assignment, in seconds."""
        return float(self._state.now["best"])

    @property
    def best(self) -> Assignment:
        """The best assignment so far."""
        devices = self._state.places["best_device"][:-1].copy()
        rings = np.split(devices[self._state.best_ring], self.problem.first_place[1:-1])
        return Assignment(device_of_place=devices, rings=tuple(rings))

    @property
    def steps(self) -> int:
        """How many moves were tried since the last beginning."""
        return int(self._state.now["steps"])


@compiled
def anneal(state: AssignmentState, steps: int, replicas: int) -> None:
    """Some steps: change, add up, keep or undo. `replicas` is 0 where slots differ in theirs."""
    now, slots = state.now, state.slots
    _add_up_all(state)
    for _ in range(steps):
        now.steps += 1
        now.heat *= now.cooling
        if now.num_hot == 0:
            _keep(state)
            now.target = now.best * (1.0 - now.step_down)
            _add_up_all(state)
            if now.num_hot == 0:
                return
        s = np.int64(state.hot[below(state.random, now.num_hot)])
        now.num_changed, now.num_places, now.num_slots = 0, 0, 0
        now.stamp += 1
        low, high = np.int64(-1), np.int64(-1)
        size = slots[s + 1].first - slots[s].first
        if slots[s].ring_bytes > 0.0 and size > 3 and uniform(state.random) < 0.25:
            low, high = _turn_ring(state, s, size)
            _touch_slot(state, s)
        else:
            propose(state, s, replicas)
            if not _apply(state):
                continue
        before = now.late
        for k in range(now.num_slots):
            t = np.int64(state.touched[1, k])
            slots[t].old_seconds, slots[t].old_late = slots[t].seconds, slots[t].late
            _time_slot(state, t)
            now.late += slots[t].late - slots[t].old_late
        if now.late - before <= exponential(state.random, now.heat):
            now.accepted += 1
            for k in range(now.num_slots):
                _update_hot(state, np.int64(state.touched[1, k]))
            if now.num_hot <= 8:
                _keep(state)
            continue
        now.late = before
        for k in range(now.num_slots):
            t = np.int64(state.touched[1, k])
            slots[t].seconds, slots[t].late = slots[t].old_seconds, slots[t].old_late
        if low >= 0:
            _reverse(state, s, low, high)
        _undo(state)


@outlined
def _keep(state: AssignmentState) -> None:
    """Remember the assignment if it is the best."""
    value = 0.0
    for s in range(len(state.slots) - 1):
        value = max(value, state.slots[s].seconds)
        if value >= state.now.best:
            return
    state.now.best = value
    state.now.found += 1
    for p in range(len(state.places) - 1):
        state.places[p].best_device = state.places[p].device
        state.best_ring[p] = state.ring[p]


@outlined
def _add_up_all(state: AssignmentState) -> None:
    """Compute all loads, times and what is late afresh."""
    state.now.num_hot = 0
    state.now.late = 0.0
    for p in range(len(state.places) - 1):
        _add_up(state, p)
    for s in range(len(state.slots) - 1):
        _time_slot(state, s)
        state.now.late += state.slots[s].late
        state.slots[s].hot = -1
        _update_hot(state, s)


@inlined
def _add_up(state: AssignmentState, p: Int) -> None:
    places = state.places
    d = np.int64(places[p].device)
    total = state.compute[places[p].slot, d]
    for e in range(places[p].first, places[p + 1].first):
        total += state.wire[e] * state.slowness[d, places[state.partner[e]].device]
    places[p].load = total


@inlined
def _time_slot(state: AssignmentState, s: Int) -> None:
    """A slot's time, and the sum over its replicas and links of what goes beyond the target."""
    places, slots, ring, target = state.places, state.slots, state.ring, state.now.target
    first, end = slots[s].first, slots[s + 1].first
    top = 0.0
    for p in range(first, end):
        top = max(top, places[p].load)
    weight = slots[s].ring_bytes
    slowest = 0.0
    if weight > 0.0:
        before = np.int64(places[ring[end - 1]].device)
        for at in range(first, end):
            device = np.int64(places[ring[at]].device)
            slowest = max(slowest, state.slowness[before, device])
            before = device
    slots[s].seconds = top + weight * slowest
    late = 0.0
    if slots[s].seconds > target:
        for p in range(first, end):
            late += max(0.0, places[p].load + weight * slowest - target)
        if weight > 0.0:
            before = np.int64(places[ring[end - 1]].device)
            for at in range(first, end):
                device = np.int64(places[ring[at]].device)
                late += max(0.0, top + weight * state.slowness[before, device] - target)
                before = device
    slots[s].late = late / target


@inlined
def _update_hot(state: AssignmentState, s: Int) -> None:
    slots, hot, now = state.slots, state.hot, state.now
    if slots[s].late > 0.0:
        if slots[s].hot < 0:
            slots[s].hot = now.num_hot
            hot[now.num_hot] = s
            now.num_hot += 1
    elif slots[s].hot >= 0:
        now.num_hot -= 1
        last = hot[now.num_hot]
        hot[slots[s].hot] = last
        slots[last].hot = slots[s].hot
        slots[s].hot = -1


@inlined
def _touch_slot(state: AssignmentState, s: Int) -> None:
    if state.slots[s].stamp != state.now.stamp:
        state.slots[s].stamp = state.now.stamp
        state.touched[1, state.now.num_slots] = s
        state.now.num_slots += 1


@inlined
def _reverse(state: AssignmentState, s: Int, low: Int, high: Int) -> None:
    """Turn a stretch of a ring round."""
    ring, places, first = state.ring, state.places, state.slots[s].first
    while low < high:
        one, other = ring[first + low], ring[first + high]
        ring[first + low], ring[first + high] = other, one
        places[other].seat, places[one].seat = low, high
        low += 1
        high -= 1


@inlined
def _turn_ring(state: AssignmentState, s: Int, size: Int) -> tuple[Int, Int]:
    """Reverse a random stretch of a slot's ring; returns it."""
    low = below(state.random, size)
    high = below(state.random, size)
    if low > high:
        low, high = high, low
    _reverse(state, s, low, high)
    return low, high


@inlined
def _apply(state: AssignmentState) -> Bool:
    """Make the changes; column 1 of `changed` then holds the old devices."""
    places, changed, num_changed = state.places, state.changed, state.now.num_changed
    for k in range(num_changed):
        if state.compute[places[changed[k, 0]].slot, changed[k, 1]] == np.inf:
            return False
    if num_changed == 0:
        return False
    for k in range(num_changed):
        state.place_of[places[changed[k, 0]].device] = -1
    for k in range(num_changed):
        p, target = np.int64(changed[k, 0]), changed[k, 1]
        changed[k, 1] = places[p].device
        places[p].device = target
        state.place_of[target] = p
    for k in range(num_changed):
        p = np.int64(changed[k, 0])
        _touch(state, p)
        for e in range(places[p].first, places[p + 1].first):
            _touch(state, np.int64(state.partner[e]))
    return True


@inlined
def _touch(state: AssignmentState, p: Int) -> None:
    places, now = state.places, state.now
    if places[p].stamp != now.stamp:
        places[p].stamp = now.stamp
        places[p].old_load = places[p].load
        state.touched[0, now.num_places] = p
        now.num_places += 1
        _add_up(state, p)
        _touch_slot(state, np.int64(places[p].slot))


@inlined
def _undo(state: AssignmentState) -> None:
    places, changed = state.places, state.changed
    for k in range(state.now.num_changed):
        state.place_of[places[changed[k, 0]].device] = -1
    for k in range(state.now.num_changed):
        places[changed[k, 0]].device = changed[k, 1]
        state.place_of[changed[k, 1]] = changed[k, 0]
    for k in range(state.now.num_places):
        places[state.touched[0, k]].load = places[state.touched[0, k]].old_load
