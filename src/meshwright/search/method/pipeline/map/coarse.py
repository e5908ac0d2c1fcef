"""Which host, rather than which device: a relaxation that CP-SAT solves, for bounds and starts.

Hosts, or whatever fast links join, have room for so many places. A wire or a ring that leaves a
host costs at least the fastest link out of it, whatever the devices; what stays costs no more than
the fastest links that a device of the host has (`place_floors`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.clock import Clock
from meshwright.search.method.pipeline.map.pack import fastest_links, join_links, spanning_links
from meshwright.search.method.pipeline.map.problem import MappingProblem
from meshwright.search.solver import run_solver

TICKS = 10_000_000
"""How many ticks the best value has. Times are whole numbers for CP-SAT, rounded down: what a few
terms lose is less than a millionth. With a thousand times as many ticks CP-SAT 9.15 called a value
optimal that a feasible assignment undercuts by a fifth."""
_LEAST_STEP = 1.5
"""A step in bandwidth by a smaller factor is no border between hosts."""
_MOST_ENTRIES = 12_000
"""Places and wires times hosts, beyond which CP-SAT is not asked: it could not even begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coarse:
    """What CP-SAT has proven, and where it has put places."""

    bound_seconds: float
    device_of_place: Ints | None
    """Some devices of the right hosts."""


def find_hosts(problem: MappingProblem) -> Ints | None:
    """The division into at least two components with the widest step in bandwidth, if any."""
    links = spanning_links(problem)
    best, best_step = 0, _LEAST_STEP
    for at in range(1, len(links)):
        step = links[at][0] / max(links[at - 1][0], 1e-300)
        if step > best_step and at >= problem.num_devices / 2:
            best, best_step = at, step
    return join_links(problem.num_devices, links[:best]) if best else None


def solve_coarse(
    problem: MappingProblem,
    hosts: Ints,
    floors: Floats,
    bound: float,
    value: float,
    hint: Ints,
    *,
    work: float,
    most_seconds: float,
    seed: int,
) -> Coarse | None:
    """Raise a bound, and find hosts of places; None where the problem is too large for that."""
    count = int(hosts.max()) + 1
    if (problem.num_places + len(problem.wires[1])) * count > _MOST_ENTRIES or value <= 0:
        return None
    from ortools.sat.python import cp_model

    model = _HostModel(problem, hosts, floors, cp_model.CpModel(), TICKS / value)
    model.limit(int(bound * TICKS / value))
    for place, device in enumerate(hint.tolist()):
        for host, literal in enumerate(model.on_host[place]):
            model.cp.add_hint(literal, host == hosts[device])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = work
    solver.parameters.max_time_in_seconds = most_seconds
    clock = Clock()
    status = run_solver(solver, model.cp, clock)
    if clock.is_interrupted:
        raise KeyboardInterrupt
    if status == cp_model.MODEL_INVALID or status == cp_model.INFEASIBLE:
        return None
    proven = max(bound, solver.best_objective_bound * value / TICKS)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Coarse(bound_seconds=proven, device_of_place=None)
    host_of = [
        next(host for host, literal in enumerate(literals) if solver.value(literal))
        for literals in model.on_host
    ]
    free = {host: np.flatnonzero(hosts == host).tolist() for host in set(host_of)}
    return Coarse(
        bound_seconds=proven,
        device_of_place=np.array([free[host].pop(0) for host in host_of], np.int32),
    )


class _HostModel:
    """The relaxation, written down for CP-SAT."""

    def __init__(
        self, problem: MappingProblem, hosts: Ints, floors: Floats, cp: Any, ticks: float
    ) -> None:
        self.problem, self.cp = problem, cp
        self._hosts, self._floors, self._ticks = hosts, floors, ticks
        self._count = int(hosts.max()) + 1
        self.on_host = [
            [cp.new_bool_var("") for _ in range(self._count)] for _ in range(problem.num_places)
        ]
        self._leaves: dict[tuple[int, int], Any] = {}
        sizes = np.bincount(hosts)
        for literals in self.on_host:
            cp.add_exactly_one(literals)
        for host in range(self._count):
            cp.add(sum(literals[host] for literals in self.on_host) <= int(sizes[host]))

    def limit(self, bound: int) -> None:
        """Every place's time is below the latest, which is minimised."""
        problem, cp = self.problem, self.cp
        latest = cp.new_int_var(min(bound, TICKS), TICKS, "")
        cp.minimize(latest)
        out, inside = self._links()
        start, partner, wire = problem.wires
        for place in range(problem.num_places):
            slot = int(problem.slot_of_place[place])
            first, end = (int(each) for each in problem.first_place[slot : slot + 2])
            moved = [
                (float(wire[e]), self._apart(place, int(partner[e])))
                for e in range(int(start[place]), int(start[place + 1]))
            ]
            if problem.ring_bytes[slot] > 0 and end > first + 1:
                moved.append((float(problem.ring_bytes[slot]), self._ring_apart(first, end)))
            links = len(moved) + (1 if len(moved) > int(start[place + 1] - start[place]) else 0)
            for host, literal in enumerate(self.on_host[place]):
                least = float(self._floors[slot, self._hosts == host].min())
                if least * self._ticks > TICKS:
                    cp.add(literal == 0)
                    continue
                kept = inside[host, min(links, inside.shape[1]) - 1] if links else 0.0
                more = max(0.0, float(out[host] - kept))
                total = int(least * self._ticks) + sum(
                    int(size * more * self._ticks) * leaves for size, leaves in moved
                )
                cp.add(latest >= total).only_enforce_if(literal)

    def _links(self) -> tuple[Floats, Floats]:
        """Of each host the fastest link out, and the slowest of its devices' fastest, by rank."""
        slowness = np.minimum(self.problem.seconds_per_byte, self.problem.seconds_per_byte.T)
        fastest = fastest_links(self.problem)[:, :-1]
        out, inside = [], []
        for host in range(self._count):
            mine = self._hosts == host
            out.append(slowness[np.ix_(mine, ~mine)].min())
            inside.append(fastest[mine].max(axis=0))
        return np.array(out), np.array(inside)

    def _apart(self, one: int, other: int) -> Any:
        """A literal that is true where two places are on two hosts."""
        pair = (min(one, other), max(one, other))
        if pair not in self._leaves:
            leaves = self.cp.new_bool_var("")
            for here, there in zip(self.on_host[one], self.on_host[other], strict=True):
                self.cp.add_bool_or(~here, there, leaves)
                self.cp.add_bool_or(here, ~there, leaves)
            self._leaves[pair] = leaves
        return self._leaves[pair]

    def _ring_apart(self, first: int, end: int) -> Any:
        """A literal that is true where the places of a ring are on several hosts."""
        leaves = self._leaves.get((first, -1))
        if leaves is None:
            leaves = self.cp.new_bool_var("")
            for other in range(first + 1, end):
                self.cp.add_implication(self._apart(first, other), leaves)
            self._leaves[first, -1] = leaves
        return leaves
