"""A relaxation of the latency problem for CP-SAT: its bound holds for any number of pieces.

An edge is *cut* when its two ops are not in one piece. What the model keeps of the problem:

- devices, classes and memory;
- pieces by levels: ops joined by an edge that is not cut have one level, a cut edge goes up. In
  every split pieces can be numbered so that all are different, hence two ops on accelerators with
  one level are in one piece;
- times: `finish` of an op is that of its piece; `done` is when the op itself is, if its piece runs
  its ops one after the other in a fixed order of the graph, fetching what is outside before its
  first reader and sending what is read outside after its op. A piece takes the same in any order.
  So `done` grows along edges, cut or not, and along one path, the trunk, also by what else of the
  piece lies between two of its ops in the order. Two orders (ops off the trunk as soon as possible,
  as late as possible) miss different loads; both are in the model, with one `finish`.

What it leaves out: that pieces of one device wait for each other, and loads of a piece's ops that
no order puts beside its trunk. Times and bytes are rounded down, so the bound stays one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from solver.latency.chain import longest_trunk, trunk_places
from solver.latency.problem import Ints, Problem

TICKS = 1 << 30
"""The best known latency in ticks. Rounding takes less than one an op: a
hundred-thousandth of a graph of 200 ops."""
_MEMORY_TICKS = 1 << 40
"""An accelerator's memory in whole numbers, at most: bytes, where it is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """What CP-SAT says."""

    bound_ms: float
    """No split is faster."""
    device: Ints | None
    """By op, of the last solution: -1 on CPUs. None where there is none."""
    level: Ints | None


def solve_relaxation(
    problem: Problem,
    *,
    best_ms: float,
    bound_ms: float,
    hint: Ints,
    work: float,
    most_seconds: float,
    seed: int,
) -> Relaxed:
    """Search for splits no slower than `best_ms`, for `work` deterministic seconds of CP-SAT.

    `hint` is the device of each op in the best split so far, -1 on CPUs; `bound_ms` is proven.
    """
    from ortools.sat.python import cp_model

    model = Model(problem, cp_model.CpModel(), TICKS / best_ms, int(bound_ms * TICKS / best_ms))
    for op, device in enumerate(hint.tolist()):
        model.cp.add_hint(model.on_cpu[op], device < 0)
        for each, literal in enumerate(model.on_device[op]):
            model.cp.add_hint(literal, each == device)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = work
    solver.parameters.max_time_in_seconds = most_seconds
    status = solver.solve(model.cp)
    proven = max(bound_ms, solver.best_objective_bound * best_ms / TICKS)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Relaxed(bound_ms=proven, device=None, level=None)
    device = [
        next((d for d, literal in enumerate(literals) if solver.value(literal)), -1)
        for literals in model.on_device
    ]
    return Relaxed(
        bound_ms=proven,
        device=np.array(device, dtype=np.int32),
        level=np.array([solver.value(each) for each in model.level], dtype=np.int32),
    )


class Model:
    """The relaxation, written down for CP-SAT."""

    def __init__(self, problem: Problem, cp: Any, ticks_a_ms: float, bound: int) -> None:
        self.problem, self.cp = problem, cp
        self._most = TICKS
        count = problem.num_ops
        self._cpu = _whole(problem.cpu_ms, ticks_a_ms)
        self._work = _whole(problem.accelerator_ms, ticks_a_ms)
        self._cost = _whole(problem.cost_ms, ticks_a_ms)
        self.on_cpu = [cp.new_bool_var("") for _ in range(count)]
        self.on_device = [
            [cp.new_bool_var("") for _ in range(problem.num_devices)] for _ in range(count)
        ]
        self.level = [cp.new_int_var(0, count, "") for _ in range(count)]
        self._finish = [cp.new_int_var(0, self._most, "") for _ in range(count)]
        self._sends = [cp.new_bool_var("") for _ in range(count)]
        self._cut: dict[tuple[int, int], Any] = {}
        self._fetches: dict[tuple[int, int], Any] = {}
        self._shared: dict[tuple[int, int], Any] = {}
        latency = cp.new_int_var(bound, self._most, "")
        cp.add_max_equality(latency, self._finish)
        cp.minimize(latency)
        self._place()
        self._cut_edges()
        trunk = longest_trunk(
            problem, np.minimum(problem.cpu_ms, problem.accelerator_ms) + 1e-3 * problem.cost_ms
        )
        for is_late in (False, True):
            self._time(trunk, is_late)

    def _place(self) -> None:
        """Each op somewhere, classes together, memory kept."""
        problem, cp = self.problem, self.cp
        scale = min(1.0, _MEMORY_TICKS / max(1.0, problem.memory_bytes))
        size = [int(each * scale) for each in problem.bytes.tolist()]
        for op in range(problem.num_ops):
            cp.add_exactly_one([self.on_cpu[op], *self.on_device[op]])
            if self._work[op] > self._most:
                cp.add(self.on_cpu[op] == 1)
        for each in range(problem.num_devices):
            held = [size[op] * self.on_device[op][each] for op in range(problem.num_ops)]
            cp.add(sum(held) <= int(problem.memory_bytes * scale))
        for members in problem.classes():
            for first, second in pairwise(members):
                for each in range(problem.num_devices):
                    cp.add(self.on_device[first][each] == self.on_device[second][each])

    def _cut_edges(self) -> None:
        """What cuts an edge, and what a cut edge means."""
        cp = self.cp
        for source in range(self.problem.num_ops):
            for target in self.problem.readers(source):
                cut, fetches = cp.new_bool_var(""), cp.new_bool_var("")
                self._cut[source, target], self._fetches[source, target] = cut, fetches
                for here, there in zip(self.on_device[source], self.on_device[target], strict=True):
                    cp.add_bool_or(~here, there, cut)
                    cp.add_bool_or(here, ~there, cut)
                cp.add_implication(self.on_cpu[source], cut)
                cp.add_implication(self.on_cpu[target], cut)
                cp.add_bool_or(~cut, self.on_cpu[source], self._sends[source])
                cp.add_bool_or(~cut, self.on_cpu[target], fetches)
                cp.add_implication(fetches, cut)
                cp.add(self.level[target] >= self.level[source] + cut)
                cp.add(self.level[target] == self.level[source]).only_enforce_if(~cut)
                cp.add(self._finish[target] == self._finish[source]).only_enforce_if(~cut)

    def _time(self, trunk: list[int], is_late: bool) -> None:
        """`done` in one order of the graph."""
        problem, cp = self.problem, self.cp
        interval, place = _order(problem, trunk, is_late)
        first = [
            min(problem.readers(op), key=lambda reader: place[reader], default=-1)
            for op in range(problem.num_ops)
        ]
        beside, behind = self._side_loads(trunk, interval, first, is_late)
        done = [cp.new_int_var(0, self._most, "") for _ in range(problem.num_ops)]
        previous = dict(zip(trunk[1:], trunk, strict=False))
        for op in range(problem.num_ops):
            own = self._cpu[op] * self.on_cpu[op] + self._capped(op) * ~self.on_cpu[op]
            fetched = self._fetched(op, (u for u in problem.sources(op) if first[u] == op))
            cp.add(done[op] >= own + fetched + beside[op])
            cp.add(self._finish[op] >= done[op] + self._cost[op] * self._sends[op] + behind[op])
            for source in problem.sources(op):
                side = beside[op] if previous.get(op) == source else 0
                sent = self._cost[source] * self._sends[source]
                also = 0 if first[source] == op else self._fetched(op, [source])
                cp.add(done[op] >= done[source] + sent + own + side + fetched + also)
                cp.add(
                    done[op]
                    >= self._finish[source] + own + beside[op]
                    + self._fetched(op, problem.sources(op))
                ).only_enforce_if(self._cut[source, op])  # fmt: skip

    def _side_loads(
        self, trunk: list[int], interval: list[int], first: list[int], is_late: bool
    ) -> tuple[list[Any], list[Any]]:
        """By op of the trunk, what its piece also does just before it, and at the end after it."""
        count = self.problem.num_ops
        beside: list[Any] = [0] * count
        behind: list[Any] = [0] * count
        after, _ = trunk_places(self.problem, trunk)
        on_trunk = set(trunk)
        for op in range(count):
            if op in on_trunk:
                continue
            at = interval[op]
            if at < len(trunk):
                beside[trunk[at]] += self._load_if_shared(op, trunk[at], first)
            if at > 0 and after[op] == at - 1 and not is_late:
                behind[trunk[at - 1]] += self._load_if_shared(op, trunk[at - 1], first)
        return beside, behind

    def _load_if_shared(self, op: int, other: int, first: list[int]) -> Any:
        """What an op adds to its piece if that is also the other's, else nothing."""
        cp = self.cp
        shared = self._share(op, other)
        load = self._capped(op) * shared
        parts = [(self._cost[op], self._sends[op])]
        parts += [
            (self._cost[source], self._fetches[source, op])
            for source in self.problem.sources(op)
            if first[source] == op
        ]
        for cost, moves in parts:
            if cost:
                both = cp.new_bool_var("")
                cp.add_bool_or(~shared, ~moves, both)
                load += cost * both
        return load

    def _share(self, op: int, other: int) -> Any:
        """A literal that is true where two ops are in one piece."""
        pair = (min(op, other), max(op, other))
        if pair in self._cut:
            return ~self._cut[pair]
        if pair not in self._shared:
            low, high = pair
            shared, below, above = (self.cp.new_bool_var("") for _ in range(3))
            self.cp.add_bool_or(shared, below, above, self.on_cpu[low], self.on_cpu[high])
            self.cp.add(self.level[low] < self.level[high]).only_enforce_if(below)
            self.cp.add(self.level[low] > self.level[high]).only_enforce_if(above)
            self._shared[pair] = shared
        return self._shared[pair]

    def _fetched(self, op: int, sources: Iterable[int]) -> Any:
        return sum(self._cost[source] * self._fetches[source, op] for source in sources)

    def _capped(self, op: int) -> int:
        return min(self._work[op], self._most + 1)


def _whole(milliseconds: Any, ticks_a_ms: float) -> list[int]:
    return [int(min(each * ticks_a_ms, 4 * TICKS)) for each in milliseconds.tolist()]


def _order(problem: Problem, trunk: list[int], is_late: bool) -> tuple[list[int], list[int]]:
    """A topological order around the trunk: by op the next place of the trunk, and its own place.

    Ops off the trunk come as late as what they feed allows, or as soon as what they read does.
    """
    place = {op: i for i, op in enumerate(trunk)}
    interval = [0] * problem.num_ops
    if is_late:
        _, before = trunk_places(problem, trunk)
        interval = before
    else:
        for op in range(problem.num_ops):
            found = max((interval[u] + (u in place) for u in problem.sources(op)), default=0)
            interval[op] = place.get(op, found)
    ranked = sorted(range(problem.num_ops), key=lambda op: (interval[op], op in place, op))
    places = [0] * problem.num_ops
    for number, op in enumerate(ranked):
        places[op] = number
    return interval, places
