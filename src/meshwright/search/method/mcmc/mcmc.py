"""FlexFlow's search over placements: a Metropolis walk (Jia et al., MLSys 2019, section 6.1).

Starts with everything on the best single device; a step proposes to move one random unit (a
co-location group, or an op without one) to a random other device. The objective is the time under
first-in-first-out without link sharing; memory is a wall: once a placement fits none is accepted
that does not, and before that only those that lack less.
"""

from time import perf_counter

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.search.bound.work import placement_bound
from meshwright.search.instance import Instance, make_instance, placement_plan
from meshwright.search.judge import judge, refuse, tighten, try_plan, why_stopped
from meshwright.search.method.mcmc.walk import (
    PROGRESS,
    ROOM,
    UNIT,
    MetropolisState,
    propose_moves,
)
from meshwright.search.order.list_schedule import ListSchedule

DEFAULT_STEPS = 25_000
DEFAULT_BETA = 100.0
"""A step that lengthens the time by a hundredth of a mean unit's share is accepted once in e times.
Of 0.1 to 1000 it gave the shortest times on five models of the zoo on 4 devices (2026-11-15)."""
_TRIES = 6
"""Placements that lack memory are walked on from with less to fill, so often at most."""
_SLICE_SECONDS = 0.05
"""The kernel returns this often, so that Ctrl-C and the budget are heard."""


def mcmc(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    budget_seconds: float = 30.0,
    sharing: str = "fair",
    steps: int = DEFAULT_STEPS,
    beta: float = DEFAULT_BETA,
) -> Answer:
    """The best placement of a walk of `steps` steps, or as many as the budget allows."""
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = placement_bound(instance)
    first = first_placement(instance)
    if first is None:
        return refuse("mcmc", no_device_message(instance), bound, started)
    found = MetropolisWalk(instance, first, seed, beta)
    until = perf_counter() + budget_seconds  # from here on: compiling is not searching
    limits, left = cluster.memory_bytes, steps
    for _ in range(_TRIES):
        found.run(left, until)
        plan = placement_plan(instance, found.best_device_of_op)
        verdict = try_plan(graph, cluster, plan, sharing)
        if verdict.fits or found.is_interrupted:
            break
        limits, left = tighten(limits, verdict), max(1, steps // 4)
        found.restart(limits)
    stop = why_stopped(is_interrupted=found.is_interrupted, is_cut=found.is_cut)
    statistics = found.statistics
    return judge("mcmc", graph, cluster, plan, bound, started, statistics, sharing, verdict, stop)


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
        self.is_interrupted = False
        """Whether Ctrl-C ended it."""
        self.is_cut = False
        """Whether it had to stop before its last step because of the time."""
        propose_moves(self._state, 0)

    def run(self, steps: int, until: float) -> None:
        """Take so many steps, or stop at a `perf_counter` time; Ctrl-C ends it, too."""
        if self._instance.num_devices < 2:
            return
        end, size = int(self._progress["steps"][0]) + steps, 16
        try:
            while (left := end - int(self._progress["steps"][0])) > 0 and perf_counter() < until:
                began = perf_counter()
                propose_moves(self._state, min(size, left))
                taken = perf_counter() - began
                # Grows slowly, so that one slice of slow steps cannot exceed the budget by much.
                size = int(min(2 * size, max(1, size * _SLICE_SECONDS / max(taken, 1e-9))))
            self.is_cut |= left > 0
        except KeyboardInterrupt:
            self.is_interrupted = True  # the best so far is the answer

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


def no_device_message(instance: Instance) -> str:
    """Name a unit that no device can run."""
    nowhere = ~np.isfinite(instance.unit_seconds).any(axis=1)
    unit = int(np.flatnonzero(nowhere)[0])
    op = instance.unit_ops[instance.unit_start[unit]]
    return (
        f"op {instance.graph.op_names[op]!r} (with its group) can run on no device type of the "
        f"cluster; a device type on which its seconds are finite would do"
    )
