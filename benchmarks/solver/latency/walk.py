"""The compiled annealing of a split: moves ops, and parts of pieces, between slots.

Knows the board of `solver.latency.evaluate`; when to stop and where to start is
`solver.latency.minimise`'s.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined, outlined
from solver.latency.evaluate import Board, time_slots
from solver.latency.problem import Ints

NOW, BEST, SCALE, COOLING, OVER = range(5)
"""Places in the array of times: penalised time now, best latency, temperature, its factor a step,
milliseconds a byte that is too much."""

DRAWS = 6
"""Random numbers a step."""

_SPREAD = 1e-3
"""Weight of all pieces' time beside the latency: of two equally long splits the one that does less
leaves more room to move. Too small to prefer a split that is longer by a thousandth."""


class Walk:
    """An annealing that can be restarted."""

    def __init__(self, board: Board, seed: Sequence[int]) -> None:
        self.board = board
        self.best = np.inf
        self._times = np.zeros(5)
        self._random = np.random.default_rng(seed)
        num_ops = board.problem.num_ops
        self._undo = np.zeros((num_ops + 1, 2), np.int32)
        self._edges = np.stack(
            [np.repeat(np.arange(num_ops), np.diff(board.problem.out_start)), board.problem.out_op],
            axis=1,
        ).astype(np.int32)

    def anneal(self, slot_of: Ints, steps: int, hot: float, cold: float) -> Ints:
        """The best split of so many steps; temperatures are shares of the start's latency."""
        board = self.board
        first = board.milliseconds(slot_of)
        assert first < np.inf, "a walk starts at a split that is possible"
        self._times[:] = (
            np.inf, first, hot * first, (cold / hot) ** (1 / max(1, steps)),
            20.0 * first / max(1.0, board.problem.memory_bytes),
        )  # fmt: skip
        board.ops["best_slot"] = board.ops["slot"]
        left = steps if len(board.slots) else 0
        while left > 0:
            size = min(left, 20_000)
            draws = self._random.random((size, DRAWS))
            arguments: Any = (
                *board.arrays, board.problem.in_op, board.alike, self._edges, self._undo,
                self._times, board.problem.memory_bytes, draws,
            )  # fmt: skip
            walk_slots(*arguments)
            left -= size
        self.best = float(self._times[BEST])
        found: Ints = board.ops["best_slot"][:-1].copy()
        return found


@compiled
def walk_slots(
    ops: Any, slots: Any, devices: Any, out_op: Any, stack: Any, in_op: Any, alike: Any,
    edges: Any, undo: Any, times: Any, memory: float, draws: Any,
) -> None:  # fmt: skip
    """One step a row of `draws`: change, time, keep or undo."""
    if times[NOW] == np.inf:
        latency = time_slots(ops, slots, devices, out_op, stack)
        times[NOW] = latency + _penalty(slots, devices, times[OVER], memory)
    for row in range(len(draws)):
        times[SCALE] *= times[COOLING]
        count = _change(ops, slots, out_op, in_op, edges, undo, draws[row])
        count = _keep_classes(ops, slots, alike, undo, count, draws[row, 4])
        if count == 0:
            continue
        limit = times[NOW] - np.log(1.0 - draws[row, 5]) * times[SCALE]
        latency = time_slots(ops, slots, devices, out_op, stack)
        penalty = _penalty(slots, devices, times[OVER], memory)
        if not latency + penalty <= limit:
            for k in range(count - 1, -1, -1):
                ops[undo[k, 0]].slot = undo[k, 1]
            continue
        times[NOW] = latency + penalty
        if latency < times[BEST] and _fits(devices, memory):
            times[BEST] = latency
            for op in range(len(ops)):
                ops[op].best_slot = ops[op].slot


@inlined
def _penalty(slots: Any, devices: Any, over: float, memory: float) -> float:
    total = 0.0
    for s in range(len(slots)):
        total += _SPREAD * slots[s].load
    for d in range(len(devices)):
        total += over * max(0.0, devices[d].used - memory)
    return total


@inlined
def _fits(devices: Any, memory: float) -> bool:
    fits = True
    for d in range(len(devices)):
        fits = fits and devices[d].used <= memory
    return fits


@outlined
def _change(ops: Any, slots: Any, out_op: Any, in_op: Any, edges: Any, undo: Any, draw: Any) -> int:
    """Put some ops into another slot; returns how many, noted with their old slots in `undo`.

    An op goes to a neighbour's slot or to any; alone, or with all of its piece that follow it, or
    precede it, in the graph or in the graph's order.
    """
    num_ops, num_slots = len(ops) - 1, len(slots)
    op = np.int64(draw[0] * num_ops)
    target = np.int64(draw[1] * (num_slots + 1)) - 1
    if draw[2] < 0.7 and len(edges) > 0:
        e = np.int64(draw[0] * len(edges))
        near = np.int64(edges[e, 1])
        op = np.int64(edges[e, 0])
        if draw[2] < 0.35:
            op, near = near, op
        if ops[op].slot != ops[near].slot:
            target = np.int64(ops[near].slot)
    own = ops[op].slot
    if target == own:
        return 0
    kind = np.int64(draw[3] * 6)
    if kind < 2:
        return _put(ops, undo, 0, op, target)
    if kind < 4:
        return _flood(ops, out_op, in_op, undo, op, target, kind == 2)
    count, reach = 0, np.int64(num_ops)
    if own < 0:  # the CPUs' ops are no piece: only some neighbours in the order go along
        reach = np.int64(1 + draw[4] * draw[4] * num_ops)
    low: Any = max(0, op if kind == 4 else op - reach + 1)
    high: Any = min(num_ops, op + reach if kind == 4 else op + 1)
    for each in range(low, high):
        if ops[each].slot == own:
            count = _put(ops, undo, count, each, target)
    return count


@inlined
def _put(ops: Any, undo: Any, count: int, op: Any, target: Any) -> int:
    undo[count, 0] = op
    undo[count, 1] = ops[op].slot
    ops[op].slot = target
    return count + 1


@outlined
def _flood(
    ops: Any, out_op: Any, in_op: Any, undo: Any, op: Any, target: Any, is_down: bool
) -> int:
    """Put an op, and all that is reached from it within its slot, into another slot."""
    own = ops[op].slot
    count = _put(ops, undo, 0, op, target)
    done = 0
    while done < count:
        at = np.int64(undo[done, 0])
        done += 1
        first = ops[at].first_out if is_down else ops[at].first_in
        end = ops[at + 1].first_out if is_down else ops[at + 1].first_in
        for e in range(first, end):
            each = np.int64(out_op[e] if is_down else in_op[e])
            if ops[each].slot == own:
                count = _put(ops, undo, count, each, target)
    return count


@outlined
def _keep_classes(ops: Any, slots: Any, alike: Any, undo: Any, count: int, draw: float) -> int:
    """Take along what must be on the same device; refuse what accelerators cannot run.

    Into the same slot, or, as two ops of a class may have an op on a CPU between them, those that
    come later in the graph's order (or earlier) into another slot of the device.
    """
    done = 0
    is_later, shift = draw < 0.5, 2.0 * draw % 1.0
    while done < count:
        op = np.int64(undo[done, 0])
        done += 1
        s = np.int64(ops[op].slot)
        if s >= 0 and ops[op].accelerator == np.inf:
            for k in range(count - 1, -1, -1):
                ops[undo[k, 0]].slot = undo[k, 1]
            return 0
        for a in range(ops[op].first_alike, ops[op].end_alike):
            each = np.int64(alike[a])
            other = np.int64(ops[each].slot)
            is_apart = (other < 0) != (s < 0)
            if not is_apart and s >= 0:
                is_apart = slots[other].device != slots[s].device
            if is_apart:
                target = s
                if s >= 0 and (each > op) == is_later:
                    target = _another_slot(slots, s, shift)
                count = _put(ops, undo, count, each, target)
    return count


@inlined
def _another_slot(slots: Any, s: Any, share: float) -> Any:
    """A slot of the same device; devices have equally many, one after the other."""
    pieces = len(slots) // (slots[len(slots) - 1].device + 1)
    first = s - s % pieces
    return first + np.int64(s - first + share * pieces) % pieces
