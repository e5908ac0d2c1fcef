"""Looks for good contiguous splits of graphs with many downsets. Proves nothing.

Along whole orders of the nodes first; then by annealing, with stages for devices, and by windows
around the borders, in turns. Neither is as good alone (random graphs of 300 to 2,000 nodes).
"""

import math
from dataclasses import replace
from time import perf_counter

from meshwright.search.method.pipeline.stage.anneal import Annealing
from meshwright.search.method.pipeline.stage.downset import Stages
from meshwright.search.method.pipeline.stage.problem import SplitProblem
from meshwright.search.method.pipeline.stage.window import BorderWindows

_STEP_SECONDS, _STAGE_SECONDS = 2.5e-7, 3.5e-7
"""A step of a walk, and a stage that the dynamic programme looks at (one core of a server,
2026-11-15)."""
_FIRST_ORDERS = 8
_STEPS_PER_NODE = 4000
_MOST_STEPS = 1_000_000
"""How many steps one walk takes, at most."""
_WALKS, _ROUNDS = 5, 12
"""Walks, and rounds of windows, in a turn."""
_PATIENCE, _RESTARTS = 4, 20
"""Turns without a better split until another order is begun with, and how often that is done."""


class Improvement:
    """Splits of one problem; the best only gets better, and stays when it is interrupted."""

    def __init__(self, problem: SplitProblem, until: float, seed: int) -> None:
        self._problem, self._until, self._seed = problem, until, seed
        self._windows = BorderWindows(problem, until, seed)
        self._champion: Stages | None = None
        self._steps, self._turns, self._restarts = 0, 0, 0

    @property
    def best(self) -> Stages | None:
        """The best split; none where none that fits was found."""
        found = [each for each in (self._champion, self._windows.best) if each is not None]
        return min(found, key=lambda each: each.seconds, default=None)

    @property
    def stages_seen(self) -> int:
        """Stages that the dynamic programme looked at."""
        return self._windows.stages_seen

    def run(self, seconds: float, goal_seconds: float) -> None:
        """Search for about so many seconds, or until the goal is reached or nothing improves;
        without any time, along one order."""
        end = self._work_seconds + seconds
        idle = 0
        while self._restarts <= _RESTARTS and not self._is_over(end, goal_seconds):
            now = self._windows.best
            if self._windows.num_orders < _FIRST_ORDERS:
                self._windows.try_order()
            elif now is None or idle == _PATIENCE:
                self._champion, self._windows.best = self.best, None
                self._restarts += 1
                self._windows.try_order()
                idle = 0
            else:
                self._anneal(now, end, goal_seconds)
                for _ in range(_ROUNDS):
                    if not self._is_over(end, goal_seconds):
                        self._windows.improve()
                idle = 0 if self._windows.best is not now else idle + 1

    @property
    def _seconds(self) -> float:
        return math.inf if self.best is None else self.best.seconds

    @property
    def _work_seconds(self) -> float:
        """What all work took, about; counted, so that the same seed gives the same split."""
        return self._steps * _STEP_SECONDS + self.stages_seen * _STAGE_SECONDS

    def _is_over(self, end: float, goal_seconds: float) -> bool:
        if not self._windows.num_orders:
            return False
        is_late = self._work_seconds >= end or perf_counter() > self._until
        return is_late or self._seconds <= goal_seconds

    def _anneal(self, now: Stages, end: float, goal_seconds: float) -> None:
        """Some walks on the stages of a split."""
        problem = self._problem
        if len(problem.in_flight) not in (0, len(now.kind_of_stage)):
            return  # stages are numbered from the last one, devices from the first
        self._turns += 1
        seed = self._seed + 1_000_003 * self._turns
        line = range(problem.num_nodes)
        walks = Annealing(problem, now.kind_of_stage, now.stage_of_node, line, seed, in_order=True)
        for _ in range(_WALKS):
            if not self._is_over(end, goal_seconds):
                walks.run(min(_MOST_STEPS, _STEPS_PER_NODE * problem.num_nodes))
        self._steps += walks.steps
        if walks.best_seconds < now.seconds:
            self._windows.best = replace(now, stage_of_node=walks.best, seconds=walks.best_seconds)
