"""FlexFlow's search over placements: a Metropolis walk (Jia et al., MLSys 2019, section 6.1).

Starts with everything on the best single device; a step proposes to move one random unit (a
co-location group, or an op without one) to a random other device. The objective is the time under
first-in-first-out without link sharing; memory is a wall: once a placement fits none is accepted
that does not, and before that only those that lack less.
"""

from typing import NamedTuple

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, Float, Int, compiled, inlined
from meshwright.kernel.draw import exponential, uniform
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import Instance, explain_nowhere, placement_plan
from meshwright.search.judge import tighten
from meshwright.search.order.list_schedule import (
    ListSchedule,
    ScheduleState,
    first_changed,
    keep_schedule,
    try_schedule,
)
from meshwright.search.problem import Problem

DEFAULT_STEPS = 25_000
DEFAULT_BETA = 100.0
"""A step that lengthens the time by a hundredth of a mean unit's share is accepted once in e times.
Of 0.1 to 1000 it gave the shortest times on five models of the zoo on 4 devices (2026-11-15)."""
_TRIES = 6
"""Placements that lack memory are walked on from with less to fill, so often at most."""
_SLICE_SECONDS = 0.05
"""The kernel returns this often, so that Ctrl-C and the budget are heard."""


def mcmc(
    problem: Problem,
    attempt: Attempt,
    *,
    steps: int = DEFAULT_STEPS,
    beta: float = DEFAULT_BETA,
) -> None:
    """The best placement of a walk of `steps` steps, or as many as the budget allows."""
    instance, clock = problem.instance, problem.clock
    attempt.raise_bound(problem.placement_bound)
    first = first_placement(instance)
    if first is None:
        attempt.refuse(explain_nowhere(instance))
        return
    found = MetropolisWalk(instance, first, problem.seed, beta)
    walking = clock.more(clock.seconds)  # from here on: compiling is not searching
    limits, left = problem.cluster.memory_bytes, steps
    for _ in range(_TRIES):
        found.run(left, walking)
        plan = placement_plan(instance, found.best_device_of_op)
        verdict = problem.try_plan(plan)
        attempt.statistics |= found.statistics
        attempt.offer(plan, verdict)
        if verdict.fits or clock.is_interrupted:
            break
        limits, left = tighten(limits, verdict), max(1, steps // 4)
        found.restart(limits)
    if walking.is_cut:
        clock.cut()


class MetropolisWalk:
    """A Metropolis walk that can be continued."""

    def __init__(self, instance: Instance, device_of_unit: Ints, seed: int, beta: float) -> None:
        self._instance = instance
        schedule = ListSchedule(instance, device_of_unit[instance.unit_of])
        units = np.zeros(instance.num_units + 1, UNIT)
        units["first"] = instance.unit_start
        units["bytes"][:-1] = instance.unit_bytes
        units["device"][:-1] = units["best_device"][:-1] = device_of_unit
        rooms = np.zeros(instance.num_devices, ROOM)
        rooms["limit"] = instance.cluster.memory_bytes
        rooms["used"] = np.bincount(
            device_of_unit, weights=instance.unit_bytes, minlength=instance.num_devices
        )
        self.first_seconds = schedule.seconds
        """Time of the first placement."""
        self._progress = np.zeros(1, PROGRESS)
        self._progress["now"] = self._progress["best"] = self.first_seconds
        self._progress["scale"] = self.first_seconds / (beta * max(1, instance.num_units))
        self._state = MetropolisState(
            schedule.state, units, rooms, self._progress, np.array([seed % 2**64], np.uint64)
        )
        propose_moves(self._state, 0)

    def run(self, steps: int, clock: Clock) -> None:
        """Take so many steps, or stop when the time is over; Ctrl-C ends it, too."""
        if self._instance.num_devices < 2:
            return
        end, size = int(self._progress["steps"][0]) + steps, 16
        with clock.heard():
            while (left := end - int(self._progress["steps"][0])) > 0 and not clock.is_over:
                began = clock.elapsed
                propose_moves(self._state, min(size, left))
                taken = clock.elapsed - began
                # Grows slowly, so that one slice of slow steps cannot exceed the budget by much.
                size = int(min(2 * size, max(1, size * _SLICE_SECONDS / max(taken, 1e-9))))

    def restart(self, limits: Floats) -> None:
        """Go on from where the walk is, with other limits on the memory that it may fill."""
        self._state.rooms["limit"] = limits
        self._state.units["best_device"] = self._state.units["device"]
        self._progress["best"] = self._progress["now"]

    @property
    def best_seconds(self) -> float:
        """Time of the best placement, without link sharing."""
        return float(self._progress["best"][0])

    @property
    def now_seconds(self) -> float:
        """Time of the placement where the walk is."""
        return float(self._progress["now"][0])

    @property
    def device_of_op(self) -> Ints:
        """The placement where the walk is."""
        placed: Ints = self._state.units["device"][:-1][self._instance.unit_of]
        return placed

    @property
    def best_device_of_op(self) -> Ints:
        """The best placement that was met."""
        found: Ints = self._state.units["best_device"][:-1][self._instance.unit_of]
        return found

    @property
    def statistics(self) -> dict[str, float]:
        """Steps, and how many were accepted or were the best so far."""
        return {
            "evaluations": float(self._progress["steps"][0]),
            "accepted": float(self._progress["accepted"][0]),
            "improved": float(self._progress["improved"][0]),
            "first_seconds": self.first_seconds,
            "unshared_seconds": self.best_seconds,
        }


def first_placement(instance: Instance) -> Ints | None:
    """Everything on one device: the fastest with room, else the one with the most memory.

    Where no device can run every op, each unit on the device that runs it fastest; None where a
    unit can run nowhere.
    """
    device_seconds = instance.unit_seconds[:, instance.type_of]
    totals = device_seconds.sum(axis=0)
    memory = instance.cluster.memory_bytes
    can_run = np.flatnonzero(np.isfinite(totals))
    if len(can_run):
        has_room = can_run[memory[can_run] >= instance.unit_bytes.sum()]
        best = (
            has_room[np.argmin(totals[has_room])]
            if len(has_room)
            else can_run[np.argmax(memory[can_run])]
        )
        return np.full(instance.num_units, int(best), dtype=np.int32)
    if not np.isfinite(device_seconds).any(axis=1).all():
        return None
    fastest: Ints = device_seconds.argmin(axis=1).astype(np.int32)
    return fastest


UNIT = np.dtype(
    [
        ("bytes", np.float64),
        ("device", np.int32),
        ("best_device", np.int32),
        ("first", np.int32),  # its ops: from here to the next unit's
    ],
    align=True,
)
"""One unit; arrays of it have one entry more than units."""

ROOM = np.dtype([("used", np.float64), ("limit", np.float64)], align=True)
"""Memory of one device."""

PROGRESS = np.dtype(
    [
        ("now", np.float64),  # time of the schedule that is kept
        ("best", np.float64),
        ("scale", np.float64),  # one unit of temperature, in seconds
        ("steps", np.int64),
        ("accepted", np.int64),
        ("improved", np.int64),
    ],
    align=True,
)
"""Where a walk stands."""


class MetropolisState(NamedTuple):
    """A walk over placements, for kernels."""

    schedule: ScheduleState
    units: Array
    """A UNIT for each unit, and one more."""
    rooms: Array
    """A ROOM for each device."""
    progress: Array
    """One entry that says where the walk stands."""
    random: Array
    """The state of the random numbers, one word."""


@compiled
def propose_moves(state: MetropolisState, steps: Int) -> None:
    """Propose `steps` times to move a random unit to a random other device."""
    units, rooms, progress, step = state.units, state.rooms, state.progress, state.schedule.step
    num_units, num_devices = len(units) - 1, len(rooms)
    for _ in range(steps):
        progress[0].steps += 1
        unit = np.int64(uniform(state.random) * num_units)
        target = np.int64(uniform(state.random) * (num_devices - 1))
        source = np.int64(units[unit].device)
        if target >= source:
            target += 1
        # Metropolis: accept with probability min(1, exp(-(new - now) / scale)), drawn first so
        # that a schedule can be given up as soon as it must be too long.
        limit = progress[0].now + exponential(state.random, progress[0].scale)
        before = _overflow(rooms, source, 0.0) + _overflow(rooms, target, 0.0)
        size = units[unit].bytes
        after = _overflow(rooms, source, -size) + _overflow(rooms, target, size)
        if after > before or step.unit_seconds[unit, step.type_of[target]] == np.inf:
            continue
        if after < before:
            limit = np.inf  # what fits better is taken whatever it costs
        _move(state, unit, source, target)
        begin = first_changed(state.schedule, units[unit].first, units[unit + 1].first)
        total = try_schedule(state.schedule, begin, progress[0].steps, unit, limit)
        if total > limit or total == np.inf:
            _move(state, unit, target, source)
            continue
        keep_schedule(state.schedule, begin)
        rooms[source].used -= size
        rooms[target].used += size
        progress[0].now = total
        progress[0].accepted += 1
        if total < progress[0].best or after < before:
            progress[0].best = total
            progress[0].improved += 1
            for u in range(num_units):
                units[u].best_device = units[u].device


@inlined
def _overflow(rooms: Array, device: Int, change: Float) -> Float:
    return max(0.0, rooms[device].used + change - rooms[device].limit)


@inlined
def _move(state: MetropolisState, unit: Int, source: Int, target: Int) -> None:
    """Let the ops of a unit run on another device than before."""
    units, schedule = state.units, state.schedule
    step, devices = schedule.step, schedule.devices
    units[unit].device = target
    devices[source].load -= step.unit_seconds[unit, devices[source].type]
    devices[target].load += step.unit_seconds[unit, devices[target].type]
    for u in range(units[unit].first, units[unit + 1].first):
        schedule.ops[step.unit_ops[u]].device = target
