"""The linear programme that prices nodes: the most that any known set is worth, made small.

Prices sum up to the number of nodes. A device's set is worth the sum of its nodes' prices; were all
devices of all kinds together worth less than all nodes, no split would cover the nodes. The
programme finds, near a centre, the prices at which the known sets are worth least. Knows nothing of
loads.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats

_MOST_ROWS = 1200
"""Beyond these, sets that matter least at the centre are forgotten."""
_KEPT_ROWS = 700
_PARAMETERS = "use_dual_simplex: true use_preprocessing: false"
"""Sets are added between solutions: the last one stays feasible for the dual simplex."""


class Master:
    """Known sets of every kind, and the programme over them."""

    def __init__(self, num_nodes: int, counts: Sequence[int]) -> None:
        self._num_nodes = num_nodes
        self._counts = tuple(counts)
        self._sets: dict[tuple[int, bytes], None] = {}
        self._rows: list[tuple[int, npt.NDArray[np.int64]]] = []
        self._solver: Any = None

    @property
    def num_sets(self) -> int:
        """Sets that are known."""
        return len(self._rows)

    def add(self, group: int, nodes: Iterable[int]) -> bool:
        """Make a set known; whether it was not."""
        members = np.unique(np.fromiter(nodes, dtype=np.int64))
        key = (group, members.tobytes())
        if not len(members) or key in self._sets:
            return False
        self._sets[key] = None
        self._rows.append((group, members))
        if self._solver is not None:
            self._add_row(group, members)
        return True

    def keep_only(self, is_kept: Sequence[bool]) -> None:
        """Forget the sets that are not kept."""
        self._rows = [row for row, kept in zip(self._rows, is_kept, strict=True) if kept]
        self._sets = {(group, members.tobytes()): None for group, members in self._rows}
        self._solver = None

    def sets(self) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Kind and nodes of each known set."""
        return list(self._rows)

    def solve(self, centre: Floats, radius: float) -> tuple[Floats, float] | None:
        """Prices within the radius of the centre, and what the known sets are worth at them over
        what all nodes are; none where the solver fails."""
        if len(self._rows) > _MOST_ROWS:
            self._forget(centre)
        for is_fresh in (False, True):  # a warm start may end in trouble where a cold one does not
            if self._solver is None or is_fresh:
                self._build()
            for variable, middle in zip(self._prices, centre.tolist(), strict=True):
                variable.SetBounds(middle - radius, middle + radius)
            if self._solver.Solve() == self._solver.OPTIMAL:
                prices = np.array([variable.solution_value() for variable in self._prices])
                return prices, self._solver.Objective().Value() / self._num_nodes
        self._solver = None
        return None

    def _forget(self, centre: Floats) -> None:
        worth = np.array([centre[members].sum() for _, members in self._rows])
        groups = np.array([group for group, _ in self._rows])
        for group in range(len(self._counts)):
            inside = groups == group
            if inside.any():
                worth[inside] /= max(1e-9, worth[inside].max())
        order = np.argsort(-worth, kind="stable")
        kept = np.zeros(len(worth), dtype=bool)
        kept[order[:_KEPT_ROWS]] = True
        self.keep_only(kept.tolist())

    def _build(self) -> None:
        from ortools.linear_solver import pywraplp  # takes 0.2 s

        solver = pywraplp.Solver.CreateSolver("GLOP")
        assert solver is not None, "OR-Tools comes with GLOP"
        solver.SetSolverSpecificParametersAsString(_PARAMETERS)
        self._solver = solver
        self._prices = [solver.NumVar(-1.0, 1.0, "") for _ in range(self._num_nodes)]
        self._worths = [solver.NumVar(0.0, solver.infinity(), "") for _ in self._counts]
        total = solver.Constraint(self._num_nodes, self._num_nodes)
        for variable in self._prices:
            total.SetCoefficient(variable, 1)
        objective = solver.Objective()
        objective.SetMinimization()
        for variable, count in zip(self._worths, self._counts, strict=True):
            objective.SetCoefficient(variable, count)
        for group, members in self._rows:
            self._add_row(group, members)

    def _add_row(self, group: int, members: npt.NDArray[np.int64]) -> None:
        row = self._solver.Constraint(0.0, self._solver.infinity())
        row.SetCoefficient(self._worths[group], 1)
        for node in members.tolist():
            row.SetCoefficient(self._prices[node], -1)
