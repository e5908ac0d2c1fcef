"""Maps stage replicas onto devices: the best assignment found, and a proven bound.

Baselines and constructed starts, local search, and a proof by depth-first search: of the whole
problem where it is small, of its slowest slots where it is not. Work is counted rather than timed,
so the same seed and budget give the same answer as long as the clock, which ends it too, does not
interfere. Ctrl-C ends it with the best so far.

A few slots alone give bounds, too: no mapping is better than the best of any part of its slots. The
part keeps what its places need on every device of all of the problem (`place_floors`), so
little is lost but that partners outside may share devices.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.map.assignment_walk import AssignmentWalk
from meshwright.search.method.pipeline.map.coarse import find_hosts, solve_coarse
from meshwright.search.method.pipeline.map.exact import TOLERANCE, Meter, Probe, dive, prove
from meshwright.search.method.pipeline.map.match import as_places, least_limit, match_slots
from meshwright.search.method.pipeline.map.pack import pack_bound, place_floors
from meshwright.search.method.pipeline.map.problem import (
    Assignment,
    MappingAnswer,
    MappingProblem,
    can_run,
    check_assignment,
    find_reason,
    slowest_seconds,
    stage_seconds,
    with_rings,
)
from meshwright.search.method.pipeline.map.start import (
    consecutive_mapping,
    greedy_mappings,
    ordered_mappings,
    p2p_first_mapping,
)
from meshwright.search.method.pipeline.map.symmetry import find_symmetry

_FIRST_SHARE = 0.02
"""The share of the budget that a first proof of the whole problem may take: small ones end here."""
_DIVE_SHARE = 0.2
"""The share of the time left that depth-first search for targets may take; it makes starts."""
_COARSE_SHARE = 0.35
"""The share of the time left that CP-SAT may take to put places on hosts rather than devices."""
_WALK_SHARE = 0.7
"""The share of the time left that local search may take."""
_LEAST_COARSE_SECONDS = 0.3
"""CP-SAT is not loaded where it would have less time than this."""
_CP_WORK = 0.3
"""CP-SAT's deterministic seconds in a second of the clock, about (a server, 2026-11-15)."""
_PART_SHARE = 0.5
"""The share of the time left that bounds from parts of the problem may take."""
_STARTS_SHARE = 0.4
"""The share of local search that goes to walks from several starts."""
_MOST_STARTS = 3
_MOST_PARTS = 4
"""How many slots have the parts around them looked at, at most."""


def solve_mapping(
    problem: MappingProblem, *, seed: int = 0, budget_seconds: float = 30.0
) -> MappingAnswer:
    """The best mapping within the budget; PROVED where it is the optimum."""
    began = perf_counter()
    reason = find_reason(problem)
    if reason:
        return MappingAnswer(
            assignment=None,
            stage_seconds=np.zeros(0),
            seconds=float("inf"),
            bound_seconds=float("inf"),
            stop=Stop.INFEASIBLE,
            reason=reason,
            search_seconds=perf_counter() - began,
        )
    search = _MappingSearch(problem, seed, Meter(budget_seconds))
    search.run()
    best = search.best
    assert best is not None, "a matching exists, so the starts hold one"
    check_assignment(problem, best)
    return MappingAnswer(
        assignment=best,
        stage_seconds=stage_seconds(problem, best),
        seconds=search.seconds,
        bound_seconds=search.seconds if search.is_proved else search.bound,
        stop=Stop.PROVED if search.is_proved else Stop.LIMIT,
        search_seconds=perf_counter() - began,
        is_interrupted=search.is_interrupted,
        statistics=search.statistics,
    )


class _MappingSearch:
    """The best assignment and the best bound so far."""

    def __init__(self, problem: MappingProblem, seed: int, meter: Meter) -> None:
        self.problem = problem
        self.best: Assignment | None = None
        self.seconds = float("inf")
        self.bound = 0.0
        self.is_interrupted = False
        self.statistics: dict[str, float] = {"nodes": 0.0, "steps": 0.0}
        self._seed, self._meter = seed, meter
        self._floors = np.zeros((0, 0))
        self._starts: list[Assignment] = []

    @property
    def is_proved(self) -> bool:
        return self.seconds * (1 - 3 * TOLERANCE) <= self.bound

    def run(self) -> None:
        """Start, then search; Ctrl-C ends it."""
        self._start()
        try:
            self._floors = place_floors(self.problem)
            self._symmetry = find_symmetry(self.problem)
            self._raise(least_limit(self._floors, self.problem.replicas_of_slot))
            self._raise(pack_bound(self.problem, self.bound, self.seconds))
            self._prove(_FIRST_SHARE)
            self._dive(_DIVE_SHARE)
            self._coarse(_COARSE_SHARE)
            self._walk(_WALK_SHARE)
            self._prove_parts(_PART_SHARE)
            self._prove(1.0)
        except KeyboardInterrupt:
            self.is_interrupted = True

    def _offer(self, assignment: Assignment | None) -> None:
        if assignment is None:
            return
        seconds = slowest_seconds(self.problem, assignment)
        if seconds < self.seconds:
            self.best, self.seconds = assignment, seconds

    def _raise(self, bound: float) -> None:
        self.bound = max(self.bound, min(bound * (1 - TOLERANCE), self.seconds))

    def _start(self) -> None:
        problem = self.problem
        slot_of, _ = match_slots(np.isfinite(problem.compute), problem.replicas_of_slot)
        self._offer(consecutive_mapping(problem))
        self._offer(p2p_first_mapping(problem))
        if self.best is None:
            self._offer(with_rings(problem, as_places(slot_of, problem.first_place)))

    def _dive(self, share: float) -> None:
        """Depth-first search that gives up early: all terms, transfers alone, all-reduce alone."""
        meter = self._meter.part(share)
        for number, name in enumerate(("", "sync_bytes", "wire_bytes")):
            if self.is_proved or self.best is None:
                return
            part, floors = self.problem, self._floors
            if name and not getattr(self.problem, name).any():
                continue
            if name:
                part = replace(part, **{name: np.zeros_like(getattr(part, name))})
                floors = place_floors(part)
            low = self.bound if not name else least_limit(floors, part.replicas_of_slot)
            evaluate = partial(_value, part)
            search = Probe(part, self._symmetry, floors)
            value = evaluate(self.best.device_of_place)
            left = meter.part((0.4, 0.7, 1.0)[number])
            devices, _, _ = dive(search, low, value, evaluate, left)
            self.statistics["nodes"] += search.nodes
            if devices is not None:
                self._starts.append(with_rings(self.problem, devices, self._seed))
                self._offer(self._starts[-1])

    def _walk(self, share: float) -> None:
        """Anneal, each time from the best so far, the target nearer to it where it was missed."""
        if self.is_proved or self.problem.num_devices < 2:
            return
        meter = self._meter.part(share)
        walk = AssignmentWalk(self.problem, self._seed)
        self._walk_starts(walk, meter.part(_STARTS_SHARE))
        left = meter.left / walk.step_seconds
        rounds = int(np.clip(left / _LEAST_STEPS, 1, _ROUNDS))
        steps = max(1000, int(left / rounds))
        for number in range(rounds):
            if self.is_proved or meter.is_over():
                break
            assert self.best is not None
            walk.begin(self.best, self.seconds)
            self._walk_once(walk, steps, *_SCHEDULE[number % len(_SCHEDULE)], meter)

    def _walk_starts(self, walk: AssignmentWalk, meter: Meter) -> None:
        """Short walks from the best of the constructed starts, and from the best so far."""
        built = [*greedy_mappings(self.problem), *ordered_mappings(self.problem)]
        built.sort(key=partial(slowest_seconds, self.problem))
        starts = [*self._starts, *built[:_MOST_STARTS]]
        steps = int(meter.left / walk.step_seconds / len(starts)) + 1
        for start in starts:
            if self.is_proved or meter.is_late():
                return
            self._offer(start)
            walk.begin(start, slowest_seconds(self.problem, start))
            self._walk_once(walk, steps, *_SCHEDULE[0], meter)

    def _walk_once(
        self, walk: AssignmentWalk, steps: int, down: float, hot: float, meter: Meter
    ) -> None:
        target = max(self.bound, walk.value * (1 - down))
        walk.run(steps, target, hot, _COLD, meter.is_late)
        meter.charge(steps * walk.step_seconds)
        self.statistics["steps"] += walk.steps
        self._offer(walk.best)
        self._offer(with_rings(self.problem, walk.best.device_of_place, self._seed))

    def _coarse(self, share: float) -> None:
        """Raise the bound by hosts, and keep where they would have places as a start."""
        meter = self._meter.part(share)
        if self.is_proved or self.best is None or meter.left < _LEAST_COARSE_SECONDS:
            return
        hosts = find_hosts(self.problem)
        if hosts is None:
            return
        seconds = meter.left
        found = solve_coarse(
            self.problem, hosts, self._floors, self.bound, self.seconds,
            self.best.device_of_place, work=_CP_WORK * seconds,
            most_seconds=min(1.25 * seconds, self._meter.clock_left), seed=self._seed,
        )  # fmt: skip
        if found is None:
            return
        meter.charge(seconds)
        self._raise(found.bound_seconds)
        devices = found.device_of_place
        if devices is not None and can_run(self.problem, devices):
            self._starts.insert(0, with_rings(self.problem, devices, self._seed))
            self._offer(self._starts[0])

    def _prove_parts(self, share: float) -> None:
        """Raise the bound by parts of the problem as long as they hold what is slowest."""
        if self.is_proved or self.best is None:
            return
        meter = self._meter.part(share)
        times = stage_seconds(self.problem, self.best)
        for slots in critical_parts(self.problem, times, _MOST_PARTS):
            if self.is_proved or meter.is_over():
                return
            problem = part_of(self.problem, slots)
            part = meter.part(0.3)
            search = Probe(problem, self._symmetry, self._floors[slots])
            value_of = partial(_value, problem)
            for value, devices in prove(search, self.bound, self.seconds, value_of, part):
                if devices is None:
                    self._raise(value)
            self.statistics["nodes"] += search.nodes

    def _prove(self, share: float) -> None:
        if self.is_proved:
            return
        meter = self._meter.part(share)
        search = Probe(self.problem, self._symmetry, self._floors)
        value_of = partial(_value, self.problem)
        for value, devices in prove(search, self.bound, self.seconds, value_of, meter):
            if devices is None:
                self._raise(value)
            else:
                self._offer(with_rings(self.problem, devices, self._seed))
        self.statistics["nodes"] += search.nodes


_SCHEDULE = ((0.3, 1.0), (0.1, 0.3), (0.03, 0.1), (0.1, 1.0), (0.02, 0.3), (0.05, 0.05))
"""Pairs that walks take in turn: by what share the target is below the best, and the first heat."""
_COLD = 5e-4
"""The last temperature; a unit is one replica that takes twice the target."""
_ROUNDS = 12
"""How many walks local search is divided into, at most."""
_LEAST_STEPS = 20_000
"""How many steps one walk takes at least."""


def _value(problem: MappingProblem, devices: Ints) -> float:
    """The time of an assignment without rings, with the best rings."""
    return slowest_seconds(problem, with_rings(problem, devices))


def part_of(problem: MappingProblem, slots: list[int]) -> MappingProblem:
    """The problem of some slots; what they exchange with others is left out."""
    names = ("seconds", "replicas_of_slot", "sync_bytes", "memory_bytes")
    rows = {name: getattr(problem, name)[slots] for name in names}
    return replace(problem, **rows, wire_bytes=problem.wire_bytes[np.ix_(slots, slots)])


def critical_parts(
    problem: MappingProblem, stage_seconds: Floats, most: int
) -> Iterator[list[int]]:
    """For each of the slowest slots: it alone, it with its partners, and theirs."""
    for slot in np.argsort(-stage_seconds, kind="stable")[:most].tolist():
        part = {slot}
        yield [slot]
        for _ in range(2):
            wider = part | set(np.flatnonzero(problem.wire_bytes[sorted(part)].any(axis=0)))
            if len(wider) == len(part) or len(wider) == problem.num_slots:
                break
            part = {int(each) for each in wider}
            yield sorted(part)


def compile_mapping() -> None:
    """Run every kernel once."""
    problem = MappingProblem(
        seconds=np.array([[1.0], [2.0]]),
        replicas_of_slot=np.array([3, 3]),
        wire_bytes=np.array([[0.0, 1.0], [1.0, 0.0]]),
        sync_bytes=np.ones(2),
        memory_bytes=np.zeros(2),
        type_of_device=np.zeros(8, np.int32),
        device_memory_bytes=np.ones(8),
        bandwidth=1.0 + np.add.outer(np.arange(8.0), np.arange(8.0)) % 5,
    )
    solve_mapping(problem)
    walk = AssignmentWalk(problem, 0)
    walk.begin(with_rings(problem, np.arange(6, dtype=np.int32)), 100.0)
    walk.run(100, 1.0, 1.0, 0.1, lambda: False)
    many = np.arange(14.0)
    loop = MappingProblem(
        seconds=np.ones((1, 1)),
        replicas_of_slot=np.array([14]),
        wire_bytes=np.zeros((1, 1)),
        sync_bytes=np.ones(1),
        memory_bytes=np.zeros(1),
        type_of_device=np.zeros(14, np.int32),
        device_memory_bytes=np.ones(14),
        bandwidth=1.0 + np.add.outer(many, many) % 5,
    )
    with_rings(loop, np.arange(14, dtype=np.int32))
