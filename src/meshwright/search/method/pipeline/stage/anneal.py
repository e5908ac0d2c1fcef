"""Looks for good splits: walks from the best split known, hot and cold, short and long moves.

Knows nothing of bounds. Work is counted, not timed: the same seed and number of steps give the same
split.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.array import Ints
from meshwright.search.method.pipeline.stage.lattice import predecessors, successors
from meshwright.search.method.pipeline.stage.problem import SplitProblem, device_loads, fits_memory
from meshwright.search.method.pipeline.stage.stage_walk import (
    DEVICE,
    NODE,
    PROGRESS,
    WIRE,
    SplitWalkState,
    anneal,
)

_WALKS = (
    (3, 1.0, 8.0, 0.1),
    (4, 0.1, 4.0, 0.1),
    (3, 3.0, 16.0, 0.2),
    (5, 0.3, 4.0, 0.3),
    (4, 0.02, 2.0, 0.2),
)
"""Walks in turn: the logarithm of the energy's power, the first temperature, the mean number of
nodes in a clump, and the share of moves that ignore the wires."""
_NONE = np.zeros(0, dtype=np.int32)
_COLD = 1e-4
"""The last temperature; a device at the scale has energy 1."""


class Annealing:
    """Splits of one problem on given devices; every round improves `best` or leaves it.

    Free ones, or, `in_order`, only those where edges never lead to an earlier device.
    """

    def __init__(
        self,
        problem: SplitProblem,
        kind_of_device: Sequence[int],
        start: Sequence[int] | Ints,
        layout: Sequence[int],
        seed: int,
        *,
        in_order: bool = False,
    ) -> None:
        self._problem = problem
        ordered = problem if in_order else replace(problem, edge_source=_NONE, edge_target=_NONE)
        after, before = successors(ordered), predecessors(ordered)
        self._kind_of_device = tuple(kind_of_device)
        wire_of_pin = np.repeat(np.arange(problem.num_wires), np.diff(problem.wire_start))
        by_node = np.argsort(problem.wire_node, kind="stable")
        self._state = SplitWalkState(
            nodes=np.zeros(problem.num_nodes + 1, dtype=NODE),
            wires=np.zeros(problem.num_wires + 1, dtype=WIRE),
            devices=np.zeros(len(kind_of_device), dtype=DEVICE),
            pins=problem.wire_node.astype(np.int64),
            node_wires=wire_of_pin[by_node].astype(np.int64),
            held=np.zeros((problem.num_wires, len(kind_of_device)), dtype=np.int64),
            seconds=np.array([kind.seconds for kind in problem.kinds]),
            after_start=after.start,
            after_node=after.index,
            before_start=before.start,
            before_node=before.index,
            layout=np.array(layout, dtype=np.int64),
            picked=np.zeros(problem.num_nodes + 1, dtype=np.int64),
            now=np.zeros(1, dtype=PROGRESS)[0],
            random=np.array([seed % 2**64], dtype=np.uint64),
        )
        self.seconds, self._round = self._state.seconds, 0
        self._fill_tables()
        self.best = np.array(start, dtype=np.int32)
        self.fits = fits_memory(problem, start, kind_of_device)
        self.best_seconds = float(device_loads(problem, start, kind_of_device).max())

    @property
    def steps(self) -> int:
        """Moves tried so far."""
        return int(self._state.now["steps"])

    def _fill_tables(self) -> None:
        problem, nodes, wires = self._problem, self._state.nodes, self._state.wires
        nodes["bytes"][:-1] = problem.bytes
        nodes["saved_bytes"][:-1] = problem.saved_bytes
        nodes["place"][self._state.layout] = np.arange(problem.num_nodes)
        nodes["mark"] = -1
        degree = np.bincount(problem.wire_node, minlength=problem.num_nodes)
        nodes["first"][1:] = np.cumsum(degree)
        wires["seconds"][:-1] = problem.wire_seconds
        wires["first"] = problem.wire_start
        for device, kind in enumerate(self._kind_of_device):
            row = self._state.devices[device]
            row["kind"] = kind
            row["limit_bytes"] = problem.kinds[kind].memory_bytes
            row["share"] = problem.kinds[kind].wire_share
            row["in_flight"] = problem.in_flight[device] if problem.in_flight else 0.0

    def run(self, steps: int) -> bool:
        """One walk from the best split; whether it found a better one."""
        squarings, hot, mean, stray = _WALKS[self._round % len(_WALKS)]
        self._round += 1
        self._set(self.best)
        now = self._state.now
        now["best"] = self.best_seconds if self.fits else np.inf
        now["scale"] = max(self.best_seconds, 1e-300)
        now["temperature"], now["stray"] = hot, stray
        now["cooling"] = (_COLD / hot) ** (1.0 / max(1, steps))
        anneal(self._state, squarings, mean, steps)
        return self.offer(self._state.nodes["best_device"][:-1])

    def offer(self, device_of_node: Ints) -> bool:
        """Keep a split if it is better than the best."""
        if not fits_memory(self._problem, device_of_node, self._kind_of_device):
            return False
        loads = device_loads(self._problem, device_of_node, self._kind_of_device)
        if self.fits and not loads.max() < self.best_seconds:
            return False
        self.best = np.array(device_of_node, dtype=np.int32)
        self.best_seconds, self.fits = float(loads.max()), True
        return True

    def _set(self, device_of_node: Ints) -> None:
        problem, devices = self._problem, self._state.devices
        self._state.nodes["device"][:-1] = device_of_node
        self._state.nodes["best_device"][:-1] = device_of_node
        devices["load"] = device_loads(problem, device_of_node, self._kind_of_device)
        for device in range(len(devices)):
            inside = device_of_node == device
            devices["held_bytes"][device] = (
                problem.bytes[inside].sum()
                + devices["in_flight"][device] * problem.saved_bytes[inside].sum()
            )
        self._state.held[:] = 0
        wire_of_pin = np.repeat(np.arange(problem.num_wires), np.diff(problem.wire_start))
        np.add.at(self._state.held, (wire_of_pin, device_of_node[problem.wire_node]), 1)
