"""Asks the compiled dynamic programme for the most valuable sets on one kind of devices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.search.method.pipeline.stage.problem import SplitProblem
from solver.free.line import Line, make_line
from solver.free.price import LABEL, price, trace

Longs = npt.NDArray[np.int64]

_MOST_LOAD = 2.0**50
"""Units: more than any limit, and thousands add up to less than an integer holds."""
DOWN = 1.0 - 1e-15
"""Seconds over units are rounded down even where the division rounded up."""
_MOST_ORIGINS = 2**26
"""Places to remember where a label came from: 256 MB."""
_MOST_CELLS, _LEAST_CELLS, _FEW_CELLS = 2**16, 2**9, 2**6
"""With fewer than the least, labels meet so often that leaving out wires harms less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How closely sets are valued."""

    turn_cells: int
    """Turns between states times cells of a state, about: the work."""
    most_states: int
    """Beyond these, wires are left out."""
    least_step: float
    """Relative; where a target less than this above the bound was given up, look more closely."""


class Pricer:
    """The most valuable sets of nodes for devices of one kind."""

    def __init__(
        self,
        problem: SplitProblem,
        kind: int,
        line: Sequence[int],
        unit: float,
        fidelity: Fidelity,
    ) -> None:
        self.kind = kind
        self.node_load = whole_loads(problem.kinds[kind].seconds, unit)
        self.wire_load = whole_loads(problem.wire_seconds * problem.kinds[kind].wire_share, unit)
        self._line = _make_line(problem, line, self.wire_load, fidelity)
        self._loads = self.node_load[self._line.nodes]
        states = int(self._line.num_states.max())
        most = _MOST_ORIGINS // (states * len(self._loads))
        self._num_cells = max(_FEW_CELLS, min(_MOST_CELLS, most, _affordable(self._line, fidelity)))
        self.work = 0
        self._labels = np.zeros((2, states, self._num_cells), dtype=LABEL)
        self._num_labels = np.zeros((2, states), dtype=np.int64)
        self._buffers = np.zeros((2, self._num_cells), dtype=LABEL)
        self._origins = np.zeros((len(self._loads), states, self._num_cells), dtype=np.int32)

    def curve(self, prices: Longs, limit: int) -> tuple[Longs, Longs]:
        """Loads up to the limit at which the most that a set is worth rises, and to what."""
        line = self._line
        self.work += len(line.turns) + price(
            line.turns, line.first_turn, line.num_states, self._loads, prices[line.nodes], limit,
            self._labels, self._num_labels, self._buffers, self._origins,
        )  # fmt: skip
        last = len(self._loads) & 1
        self._num_last = int(self._num_labels[last, 0])
        found = self._labels[last, 0, : self._num_last]
        return found["load"].copy(), found["value"].copy()

    def best_set(self) -> Longs:
        """The nodes of the most valuable set of the last curve."""
        chosen = np.zeros(len(self._loads), dtype=np.int64)
        line = self._line
        trace(
            line.turns, line.first_turn, self._origins, self._num_cells, self._num_last - 1,
            chosen,
        )  # fmt: skip
        found: Longs = line.nodes[chosen == 1]
        return found


def whole_loads(seconds: Floats, unit: float) -> Longs:
    """Seconds in units, rounded down, also where they are beyond any limit; -1 for infinity."""
    is_finite = np.isfinite(seconds)
    loads = np.full(len(seconds), -1, dtype=np.int64)
    units = np.minimum(seconds[is_finite] / unit * DOWN, _MOST_LOAD)
    loads[is_finite] = np.floor(units).astype(np.int64)
    return loads


def _make_line(
    problem: SplitProblem, line: Sequence[int], wire_load: Longs, fidelity: Fidelity
) -> Line:
    """With as many states as leave enough cells for each."""
    states = fidelity.most_states
    while True:
        made = make_line(problem, line, wire_load, states)
        cells = _affordable(made, fidelity)
        if cells >= _LEAST_CELLS or states == 1:
            return made
        states = max(1, int(0.9 * made.num_states.max() * cells / _LEAST_CELLS))


def _affordable(line: Line, fidelity: Fidelity) -> int:
    """Cells; without wires, few turns make many of them, and a quarter will do."""
    turn_cells = fidelity.turn_cells if line.num_states.max() > 1 else fidelity.turn_cells // 4
    return turn_cells // len(line.turns)
