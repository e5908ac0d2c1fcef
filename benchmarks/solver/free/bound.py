"""Proves how low the largest load of a free split can be.

Give every node a price. A device whose load is at most L holds nodes that are worth at most P(L),
the most valuable set of that load. If all devices together hold less than all nodes are worth, no
split has a largest load of L. The dynamic programme of `price` finds P for all loads at once,
the linear programme of `master` looks for the prices that prove most: this is column
generation (Gilmore and Gomory, 1961) for the covering of the nodes by sets, whose bounds are far
above those of programmes that say which device takes which node, as equal devices do not blur them.

Loads are rounded down to whole units and prices are whole numbers, so that the proof is exact
whatever the linear programme's rounding. Memory is left out, which only lowers the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.method.pipeline.stage.problem import SplitProblem
from solver.free.curve import DOWN, Fidelity, Longs, Pricer
from solver.free.fraction import fractional_bound
from solver.free.line import node_wires
from solver.free.master import Master

_UNITS = 2**46
"""In the largest load of the split that is to be proved best."""
_PRICE_UNITS = 2.0**32
_FIDELITIES = (
    Fidelity(turn_cells=4_000_000, most_states=256, least_step=1.0),
    Fidelity(turn_cells=16_000_000, most_states=512, least_step=1.0),
    Fidelity(turn_cells=64_000_000, most_states=2048, least_step=1e-5),
)
"""From quick to close: prices that are good at one are nearly so at the next."""
_FIRST_STEP = 0.01
"""Targets are at most this far above the bound, relative."""
_FIRST_RADIUS = 0.2
_PATIENCE, _PROGRESS = 40, 0.7
"""Prices tried at a target until what is missing for a proof has to have shrunk to this share."""
_LEAST_RADIUS, _MOST_RADIUS = 1e-4, 30.0
"""Of the search around the best prices, whose mean is 1."""
_MOST_RUNS = 256
"""Runs of the line that are made known to begin with."""
_FLAT = 1e-5
"""Worths that differ by less are equal."""
_SOLVE_WORK = 10
"""A set and node in a linear programme, in labels of the dynamic programme (measured)."""


@dataclass(slots=True, kw_only=True)
class _Target:
    """A load that is to be proved impossible."""

    load: int
    worth: float
    """What all devices can hold over all nodes, at the centre: below 1 is a proof."""
    asked: float
    """What the worth has to be below when patience ends."""
    tries: int = 0


class Bounding:
    """A lower bound that rises as `run` goes on."""

    def __init__(self, problem: SplitProblem, line: Sequence[int], seconds: float) -> None:
        self._problem = problem
        self._unit = seconds / _UNITS
        self._kinds = [k for k, kind in enumerate(problem.kinds) if kind.count > 0]
        self._counts = [problem.kinds[k].count for k in self._kinds]
        self._line = list(line)
        self._wires_of = node_wires(problem)
        self._master = Master(problem.num_nodes, self._counts)
        fastest = np.min([problem.kinds[k].seconds for k in self._kinds], axis=0)
        assert np.isfinite(fastest).all(), "every node runs somewhere"
        mean = fastest.mean()
        self._centre: Floats = fastest / mean if mean > 0 else np.ones(problem.num_nodes)
        self._radius = _FIRST_RADIUS
        self._low, self._lined_up = 0, 0
        self._target: _Target | None = None
        self.work = 0
        self.is_finished = False
        self._level = -1
        self._refine()

    @property
    def seconds(self) -> float:
        """No split has a lower largest load."""
        return self._low * self._unit * DOWN

    @property
    def num_sets(self) -> int:
        """Sets that are known."""
        return self._master.num_sets

    def run(self, device_of_node: Ints, kind_of_device: Sequence[int], work: int) -> None:
        """Raise the bound towards a split's largest load until it is reached or work is done."""
        goal = self._whole_load(device_of_node, kind_of_device)
        end = self.work + work
        if self._low == 0:
            self._evaluate(self._centre, goal - 1)
            self._master.keep_only([False] * self.num_sets)  # they are beyond the first target
            least = int(fractional_bound(self._problem) / self._unit * DOWN)
            self._low = max(self._low, least)
        while self._low < goal and self.work < end and not self.is_finished:
            if self._target is None or self._target.load >= goal:
                self._target = self._aim(goal)
            if self._pursue(self._target, end):
                self._target = None

    def _refine(self) -> None:
        """Value sets more closely from now on; finished where that is not possible."""
        self._level += 1
        self.is_finished = self._level == len(_FIDELITIES)
        if self.is_finished:
            return
        self._fidelity = _FIDELITIES[self._level]
        self._pricers = [
            Pricer(self._problem, k, self._line, self._unit, self._fidelity) for k in self._kinds
        ]
        self._step, self._failed = _FIRST_STEP, 2 * _UNITS

    def _aim(self, goal: int) -> _Target:
        """The next load above the bound."""
        if self._low >= self._failed:  # it was given up too early
            self._failed = 2 * _UNITS
        load = min(int(self._low * (1 + self._step)), (self._low + self._failed) // 2, goal - 1)
        load = max(load, self._low)
        if load > 1.03 * self._lined_up:
            self._lined_up = load
            self._add_runs(load)
        worth = self._evaluate(self._centre, load)
        return _Target(load=load, worth=worth, asked=1 + _PROGRESS * (worth - 1))

    def _pursue(self, target: _Target, end: int) -> bool:
        """Look for prices that prove the target impossible; whether it was settled, which may be
        by giving it up."""
        while self._low <= target.load:
            if self.work >= end:
                return False
            solved = self._master.solve(self._centre, self._radius)
            self.work += _SOLVE_WORK * self.num_sets * self._problem.num_nodes
            if solved is None or not self._try(target, *solved):
                self._give_up(target)
                return True
        self._step = min(_FIRST_STEP, 1.5 * self._step)
        return True

    def _try(self, target: _Target, prices: Floats, hoped: float) -> bool:
        """Whether the target is still promising after these prices."""
        if hoped > target.worth + _FLAT:
            return self._drop_heavy(target.load)
        is_inside = bool(np.abs(prices - self._centre).max() < 0.999 * self._radius)
        worth = self._evaluate(prices, target.load)
        self._adjust(target, prices, hoped, worth)
        return self._low > target.load or self._is_promising(target, hoped, is_inside)

    def _adjust(self, target: _Target, prices: Floats, hoped: float, worth: float) -> None:
        """Move the centre to better prices; search near it as far as the programme is right."""
        gain, hope = target.worth - worth, max(target.worth - hoped, 1e-12)
        if gain > 0.3 * hope:
            self._radius = min(_MOST_RADIUS, 1.5 * self._radius)
        elif gain < -0.5 * hope:
            self._radius = max(_LEAST_RADIUS, 0.8 * self._radius)
        if gain > 0:
            self._centre, target.worth = prices, worth

    def _is_promising(self, target: _Target, hoped: float, is_inside: bool) -> bool:
        target.tries += 1
        if hoped >= 1.0 - 1e-9 and (is_inside or target.worth - hoped < _FLAT):
            # Near the centre there is no proof; where the radius does not bind, there is none.
            if is_inside or self._radius > 1.0:
                return False
            self._radius *= 4.0
        if target.tries % _PATIENCE == 0:
            if target.worth > target.asked:
                return False
            target.asked = 1 + _PROGRESS * (target.worth - 1)
        return True

    def _give_up(self, target: _Target) -> None:
        self._failed = min(self._failed, target.load)
        self._step *= 0.5
        self._radius = max(self._radius, _FIRST_RADIUS / 2)
        self._drop_heavy(target.load)
        if self._failed - self._low <= self._fidelity.least_step * self._low:
            self._refine()

    def _drop_heavy(self, load: int) -> bool:
        """Forget sets that no device of this load can hold: some were found for another target,
        some because labels met in a cell; whether there were any."""
        is_light = [self._set_load(*each) <= load for each in self._master.sets()]
        self._master.keep_only(is_light)
        return not all(is_light)

    def _evaluate(self, prices: Floats, limit: int) -> float:
        """What devices of loads up to the limit hold at most over all nodes, at these prices;
        raises the bound, and makes the most valuable sets known."""
        whole = np.round(prices * _PRICE_UNITS).astype(np.int64)
        curves = []
        before = sum(pricer.work for pricer in self._pricers)
        for group, pricer in enumerate(self._pricers):
            curves.append(pricer.curve(whole, limit))
            self._master.add(group, pricer.best_set().tolist())
        self.work += sum(pricer.work for pricer in self._pricers) - before
        loads = np.unique(np.concatenate([loads for loads, _ in curves]))
        held = np.zeros(len(loads), dtype=np.int64)
        for count, (steps, worths) in zip(self._counts, curves, strict=True):
            held += count * worths[np.searchsorted(steps, loads, side="right") - 1]
        total = int(whole.sum())
        enough = np.flatnonzero(held >= total)
        self._low = max(self._low, int(loads[enough[0]]) if len(enough) else limit + 1)
        return float(held[-1]) / total

    def _whole_load(self, device_of_node: Ints, kind_of_device: Sequence[int]) -> int:
        """The largest load of a split in units, rounded as the bound's are."""
        group_of = {pricer.kind: group for group, pricer in enumerate(self._pricers)}
        return max(
            self._set_load(group_of[kind], np.flatnonzero(device_of_node == device))
            for device, kind in enumerate(kind_of_device)
        )

    def _set_load(self, group: int, nodes: Longs) -> int:
        pricer, problem = self._pricers[group], self._problem
        load = int(pricer.node_load[nodes].sum())
        if problem.num_wires:
            inside = np.zeros(problem.num_nodes, dtype=np.int64)
            inside[nodes] = 1
            held = np.add.reduceat(inside[problem.wire_node], problem.wire_start[:-1])
            is_cut = (held > 0) & (held < np.diff(problem.wire_start))
            load += int(pricer.wire_load[is_cut].sum())
        return load

    def _add_runs(self, limit: int) -> None:
        """Make known, from every place of the line on, the longest run that a load allows."""
        for group, pricer in enumerate(self._pricers):
            if not pricer.wire_load.any():
                continue
            for place in range(0, len(self._line), 1 + len(self._line) // _MOST_RUNS):
                length = self._longest_run(pricer, place, limit)
                self._master.add(group, self._line[place : place + length])

    def _longest_run(self, pricer: Pricer, place: int, limit: int) -> int:
        sizes = np.diff(self._problem.wire_start)
        held: dict[int, int] = {}
        computed, cut, longest = 0, 0, 0
        for length, node in enumerate(self._line[place:], 1):
            computed += int(pricer.node_load[node])
            if pricer.node_load[node] < 0 or computed > limit:
                break
            for wire in self._wires_of[node]:
                held[wire] = held.get(wire, 0) + 1
                if held[wire] == 1:
                    cut += int(pricer.wire_load[wire])
                if held[wire] == sizes[wire]:
                    cut -= int(pricer.wire_load[wire])
            if computed + cut <= limit:
                longest = length
        return longest
