"""Times splits: the objective of `solver.latency.problem`, as a kernel.

A search gives every op a *slot*: -1 for the CPUs, or the number of a piece, which belongs to a
device. Pieces of one device run in the order in which they can start; that order is part of what
comes out, as each op's device and the number of its piece on it.
"""

import math
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.compiled import compiled, outlined
from solver.latency.problem import Ints, Problem

OP = np.dtype(
    [
        ("cpu", np.float64),
        ("accelerator", np.float64),
        ("cost", np.float64),
        ("bytes", np.float64),
        ("ready", np.float64),
        ("slot", np.int32),
        ("best_slot", np.int32),
        ("first_in", np.int32),
        ("first_out", np.int32),
        ("first_alike", np.int32),  # where its class begins in the list of ops by class
        ("end_alike", np.int32),
        ("waits_for", np.int32),
        ("next", np.int32),  # op of the same slot, -1 at the end
        ("stamp", np.int32),
    ],
    align=True,
)
"""One op; arrays of it have one entry more than ops, to end the last one's edges."""

SLOT = np.dtype(
    [
        ("load", np.float64),
        ("ready", np.float64),
        ("device", np.int32),
        ("waits_for", np.int32),
        ("head", np.int32),  # its first op, -1 where it is empty
        ("source", np.int32),  # the last op whose transfer in was counted
        ("turn", np.int32),  # its number among the slots in the order of running
    ],
    align=True,
)

DEVICE = np.dtype([("free_at", np.float64), ("used", np.float64)], align=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where every op runs."""

    device: Ints
    """The accelerator; -1 on a CPU."""
    piece: Ints
    """The number of its piece in the order in which the accelerator runs them; -1 on a CPU."""


class Board:
    """The arrays that the kernels work on. Slot s belongs to device s // pieces."""

    def __init__(self, problem: Problem, pieces: int) -> None:
        self.problem, self.pieces = problem, pieces
        num_ops = problem.num_ops
        self.ops = np.zeros(num_ops + 1, OP)
        for name, column in (
            ("cpu", problem.cpu_ms),
            ("accelerator", problem.accelerator_ms),
            ("cost", problem.cost_ms),
            ("bytes", problem.bytes),
        ):
            self.ops[name][:-1] = column
        self.ops["first_in"], self.ops["first_out"] = problem.in_start, problem.out_start
        self.ops["slot"] = self.ops["best_slot"] = -1
        counts = np.bincount(problem.class_of, minlength=1)
        ends = np.cumsum(counts)
        self.ops["first_alike"][:-1] = (ends - counts)[problem.class_of]
        self.ops["end_alike"][:-1] = ends[problem.class_of]
        self.alike = np.argsort(problem.class_of, kind="stable").astype(np.int32)
        self.slots = np.zeros(problem.num_devices * pieces, SLOT)
        self.slots["device"] = np.arange(len(self.slots)) // max(1, pieces)
        self.devices = np.zeros(problem.num_devices, DEVICE)
        self.stack = np.zeros(num_ops + 1, np.int32)

    @property
    def arrays(self) -> Any:
        """In the order in which `time_slots` takes them."""
        return self.ops, self.slots, self.devices, self.problem.out_op, self.stack

    def milliseconds(self, slot_of: Ints) -> float:
        """The latency; infinity where pieces wait for each other or memory does not suffice."""
        self.ops["slot"][:-1] = slot_of
        latency = float(time_slots(*self.arrays))
        fits = bool((self.devices["used"] <= self.problem.memory_bytes).all())
        return latency if fits else math.inf

    def split(self, slot_of: Ints) -> Split:
        """Where every op runs, pieces numbered as they run."""
        assert self.milliseconds(slot_of) < math.inf, "only splits that are possible come out"
        device = np.where(slot_of >= 0, slot_of // self.pieces, -1)
        piece = np.full(self.problem.num_ops, -1, np.int32)
        for each in range(self.problem.num_devices):
            used = np.unique(slot_of[device == each])
            ranked = used[np.argsort(self.slots["turn"][used], kind="stable")]
            for number, slot in enumerate(ranked):
                piece[slot_of == slot] = number
        return Split(device=device.astype(np.int32), piece=piece)


def split_milliseconds(problem: Problem, split: Split) -> float:
    """The latency of a split by the definition; infinity where a rule of the problem is broken.

    Plain and slow, on purpose: what the kernel says is held against it. The pieces of a device run
    in the order of their numbers.
    """
    device, piece = split.device.tolist(), split.piece.tolist()
    if not _is_allowed(problem, device):
        return math.inf
    units: dict[tuple[int, int], list[int]] = {}
    for op in range(problem.num_ops):
        units.setdefault((device[op], piece[op]) if device[op] >= 0 else (-1, op), []).append(op)
    unit_of = {op: unit for unit, ops in units.items() for op in ops}
    before: dict[tuple[int, int], set[tuple[int, int]]] = {unit: set() for unit in units}
    for unit, ops in units.items():
        before[unit] = {unit_of[u] for op in ops for u in problem.sources(op)} - {unit}
    chain = sorted(unit for unit in units if unit[0] >= 0)
    for earlier, later in pairwise(chain):
        if earlier[0] == later[0]:
            before[later].add(earlier)
    finish: dict[tuple[int, int], float] = {}
    try:
        for unit in TopologicalSorter(before).static_order():
            start = max((finish[each] for each in before[unit]), default=0.0)
            finish[unit] = start + _unit_milliseconds(problem, unit[0] >= 0, units[unit])
    except CycleError:
        return math.inf
    return max(finish.values(), default=0.0)


def _is_allowed(problem: Problem, device: list[int]) -> bool:
    """Whether devices exist, can run and hold their ops, and classes stay together."""
    used = [0.0] * problem.num_devices
    for op, each in enumerate(device):
        if each >= problem.num_devices or (each >= 0 and problem.accelerator_ms[op] == math.inf):
            return False
        if each >= 0:
            used[each] += problem.bytes[op]
    is_together = all(len({device[op] for op in members}) <= 1 for members in problem.classes())
    return is_together and all(each <= problem.memory_bytes for each in used)


def _unit_milliseconds(problem: Problem, is_piece: bool, ops: list[int]) -> float:
    """What a piece takes with its transfers, or one op on a CPU."""
    if not is_piece:
        return float(problem.cpu_ms[ops[0]])
    inside = set(ops)
    fed_by = {u for op in ops for u in problem.sources(op)} - inside
    feeding = [op for op in ops if not inside.issuperset(problem.readers(op))]
    return float(
        sum(problem.accelerator_ms[op] for op in ops)
        + sum(problem.cost_ms[op] for op in sorted(fed_by))
        + sum(problem.cost_ms[op] for op in feeding)
    )


@compiled
def time_slots(ops: Any, slots: Any, devices: Any, out_op: Any, stack: Any) -> float:
    """The latency with each op in its slot, infinite where pieces wait for each other."""
    num_ops = len(ops) - 1
    _fill_slots(ops, slots, devices, out_op)
    top = 0
    for op in range(num_ops):
        ops[op].ready = 0.0
        if ops[op].slot < 0 and ops[op].waits_for == 0:
            stack[top] = op
            top += 1
    last, done, turn = 0.0, 0, 0
    while True:
        while top > 0:
            top -= 1
            ready_op = np.int64(stack[top])
            finish = ops[ready_op].ready + ops[ready_op].cpu
            last = max(last, finish)
            done += 1
            top = _wake_readers(ops, slots, out_op, stack, top, ready_op, finish)
        chosen, begin = -1, np.inf
        for s in range(len(slots)):
            if slots[s].waits_for == 0 and slots[s].head >= 0 and slots[s].turn < 0:
                start = max(slots[s].ready, devices[slots[s].device].free_at)
                if start < begin:
                    chosen, begin = s, start
        if chosen < 0:
            break
        finish = begin + slots[chosen].load
        last = max(last, finish)
        devices[slots[chosen].device].free_at = finish
        slots[chosen].turn = turn
        turn += 1
        member = np.int64(slots[chosen].head)
        while member >= 0:
            done += 1
            top = _wake_readers(ops, slots, out_op, stack, top, member, finish)
            member = np.int64(ops[member].next)
    return last if done == num_ops else np.inf


@outlined
def _fill_slots(ops: Any, slots: Any, devices: Any, out_op: Any) -> None:
    """Loads of pieces, bytes of devices, and how many edges each piece or op on a CPU awaits."""
    num_ops = len(ops) - 1
    for d in range(len(devices)):
        devices[d].free_at = 0.0
        devices[d].used = 0.0
    for s in range(len(slots)):
        slots[s].load = 0.0
        slots[s].ready = 0.0
        slots[s].waits_for = 0
        slots[s].head = -1
        slots[s].source = -1
        slots[s].turn = -1
    for op in range(num_ops):
        ops[op].waits_for = ops[op + 1].first_in - ops[op].first_in
        s = ops[op].slot
        if s >= 0:
            slots[s].load += ops[op].accelerator
            devices[slots[s].device].used += ops[op].bytes
            ops[op].next = slots[s].head
            slots[s].head = op
        leaves = False
        for e in range(ops[op].first_out, ops[op + 1].first_out):
            target = ops[out_op[e]].slot
            if target != s:
                leaves = True
                if target >= 0:
                    slots[target].waits_for += 1
                    if slots[target].source != op:
                        slots[target].source = op
                        slots[target].load += ops[op].cost
        if leaves and s >= 0:
            slots[s].load += ops[op].cost


@outlined
def _wake_readers(
    ops: Any, slots: Any, out_op: Any, stack: Any, top: int, op: Any, finish: float
) -> int:
    """Tell the readers of an op that it has finished; returns the new height of the stack."""
    s = ops[op].slot
    for e in range(ops[op].first_out, ops[op + 1].first_out):
        reader = np.int64(out_op[e])
        target = ops[reader].slot
        if target < 0:
            ops[reader].ready = max(ops[reader].ready, finish)
            ops[reader].waits_for -= 1
            if ops[reader].waits_for == 0:
                stack[top] = reader
                top += 1
        elif target != s:
            slots[target].ready = max(slots[target].ready, finish)
            slots[target].waits_for -= 1
    return top
