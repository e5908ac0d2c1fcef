"""The constraints of QuickP's integer programme, as CP-SAT takes them. See `programme`.

Decides how assignment, memory, transfers and the order on devices are written down, and which of
several placements that differ by a swap of equal devices is kept. Does not solve.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.instance import Instance
from meshwright.search.method.quickp.programme.data import (
    Bits,
    device_swaps,
    link_kinds,
    neighbours,
    reached_by,
    saved_edges,
    widest_edges,
    windows,
)

Order = Literal["fixed", "free"]

MEMORY_TOLERANCE = 1e-9
"""Relative. Sums of bytes in another order differ in the last bits."""
_TICK_BITS = 30
_MAX_TICKS = 2.0**46
"""Of an op or a transfer: thousands of times the whole of the start, and short enough for sums of
thousands in the solver's integers. Rounding times down leaves bounds proven."""
_BYTE_BITS = 40
_BROKEN_UNITS = 30
"""Symmetry of devices is broken on so many of the largest units: later ones rarely decide."""


OPTIMAL_GAP = 1e-6
"""Relative. What rounding to ticks can hide: at most two ticks an op."""


class Status(StrEnum):
    """What the solver claims."""

    OPTIMAL = "OPTIMAL"
    """No schedule is faster, to within rounding."""
    FEASIBLE = "FEASIBLE"
    """The time ended; the schedule fits and the bound holds."""
    INFEASIBLE = "INFEASIBLE"
    """Proved: no placement keeps to the limits. The schedule is the start."""
    UNKNOWN = "UNKNOWN"
    """The time ended and nothing that keeps to the limits was found, the start included."""
    TOO_LARGE = "TOO_LARGE"
    """Not even built; the schedule is the start and the bound the instance's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgrammeResult:
    """A schedule, and how much faster one could be."""

    device_of_op: Ints
    order: Ints
    """The topological order in which devices run their ops."""
    seconds: float
    """The time of this schedule with each transfer alone; not rounded."""
    bound_seconds: float
    """No schedule of the programme is faster (with a fixed order: none in that order)."""
    status: Status
    fits: bool
    """Whether it keeps to the limits on memory."""
    statistics: dict[str, float]

    @property
    def is_optimal(self) -> bool:
        """Whether nothing that fits is faster, by more than a millionth."""
        return self.is_within(OPTIMAL_GAP)

    def is_within(self, gap: float) -> bool:
        """Whether nothing that fits is faster by more than this part, or a millionth."""
        return self.fits and self.seconds <= self.bound_seconds * (1 + max(gap, OPTIMAL_GAP))


class Model:
    """The programme of one instance. Every variable gets its value in the start as a hint.

    The hint is complete, so that the solver begins with the start as its incumbent.
    """

    def __init__(
        self,
        instance: Instance,
        first: ProgrammeResult,
        limits: Floats,
        reach: Bits,
        order: Order,
    ) -> None:
        from ortools.sat.python import cp_model  # takes 0.4 s

        self.model: Any = cp_model.CpModel()
        self.instance = instance
        # A start of no time at all that does not fit says nothing of what takes its place.
        self.tick = 2.0 ** (math.floor(math.log2(first.seconds or 1.0)) - _TICK_BITS)
        self._reach = reach
        self._sort = first.order
        devices = instance.type_of
        self._ticks = np.where(
            np.isfinite(instance.seconds),
            np.minimum(np.floor(instance.seconds / self.tick), _MAX_TICKS),
            -1.0,
        ).astype(np.int64)[:, devices]
        self._links = link_kinds(instance)
        self._swaps = list(device_swaps(instance, limits))
        self._by_size = np.argsort(-instance.unit_seconds.min(axis=1), kind="stable")
        self._unit_device = self._canonical(first.device_of_op)
        self._edge_bytes = widest_edges(instance)
        self._starts, self._ends = self._hinted_times()
        self._apart: dict[tuple[int, int], tuple[Any, list[Any]]] = {}
        self._together: dict[tuple[int, int], Any] = {}
        self._add_units(limits)
        self._add_times(first)
        self._add_transfers()
        self._add_saved()
        if order == "fixed":
            self._fix_order()
        else:
            self._free_order()
        self._break_symmetry()
        self.model.minimize(self.makespan)

    def _bool(self, value: bool | np.bool_) -> Any:
        literal = self.model.new_bool_var("")
        self.model.add_hint(literal, bool(value))
        return literal

    def _int(self, low: int, high: int, value: int) -> Any:
        variable = self.model.new_int_var(int(low), int(high), "")
        self.model.add_hint(variable, int(value))
        return variable

    def _canonical(self, device_of_op: Ints) -> Ints:
        """The start with devices swapped as `_break_symmetry` wants; each swap lowers it."""
        instance = self.instance
        placed = device_of_op[instance.unit_ops[instance.unit_start[:-1]]]
        is_changed = True
        while is_changed:
            is_changed = False
            for low, high, swapped in self._swaps:
                touched = placed[self._by_size]
                touched = touched[np.isin(touched, low + high)]
                if len(touched) and touched[0] in high:
                    placed, is_changed = swapped[placed].astype(np.int32), True
        return placed

    def _hinted_times(self) -> tuple[list[int], list[int]]:
        """The start's schedule in ticks: all of it in whole numbers, so it is feasible exactly."""
        instance, device = self.instance, self._unit_device[self.instance.unit_of]
        starts, ends = [0] * instance.num_ops, [0] * instance.num_ops
        free_at = [0] * instance.num_devices
        for op in self._sort.tolist():
            here = int(device[op])
            start = free_at[here]
            for source, size in self._edge_bytes[op].items():
                there = int(device[source])
                moved = 0 if there == here else self._moves(size)[self._links.kind_of[there, here]]
                start = max(start, ends[source] + moved)
            starts[op] = start
            free_at[here] = ends[op] = start + int(self._ticks[op, here])
        return starts, ends

    def _moves(self, size: float) -> list[int]:
        """Ticks of a transfer, by kind of link."""
        ticks = np.floor((self._links.latency + size / self._links.bandwidth) / self.tick)
        return [int(each) for each in np.minimum(ticks, _MAX_TICKS)]

    def _add_units(self, limits: Floats) -> None:
        """Where units are, and that what they hold fits: rounded down on both sides."""
        instance = self.instance
        self.on: list[list[Any]] = [
            [
                self._bool(here == device) if np.isfinite(seconds) else self.model.new_constant(0)
                for device, seconds in enumerate(row)
            ]
            for here, row in zip(
                self._unit_device, instance.unit_seconds[:, instance.type_of], strict=True
            )
        ]
        for places in self.on:
            self.model.add_exactly_one(places)
        total = float(instance.unit_bytes.sum())
        if total <= float(limits.min(initial=math.inf)):
            return
        grain = 2.0 ** (math.floor(math.log2(total)) - _BYTE_BITS)
        held = np.floor(instance.unit_bytes / grain).astype(np.int64)
        room = np.floor(limits * (1 + MEMORY_TOLERANCE) / grain)
        for device in range(instance.num_devices):
            terms = sum(int(held[u]) * self.on[u][device] for u in range(len(held)))
            self.model.add(terms <= int(min(room[device], 2.0**60)))

    def _add_times(self, first: ProgrammeResult) -> None:
        """Starts and ends, within the longest paths before and after on the fastest devices."""
        instance, model = self.instance, self.model
        quickest = np.where(self._ticks < 0, np.iinfo(np.int64).max, self._ticks).min(axis=1)
        head, tail = windows(self._edge_bytes, quickest)
        low = int(first.bound_seconds / self.tick)
        horizon = int(first.seconds / self.tick) if first.fits else self._longest_horizon()
        horizon = max(low, horizon, *self._ends)
        self.makespan = self._int(low, horizon, max(low, *self._ends))
        self.start: list[Any] = []
        self.end: list[Any] = []
        for op, unit in enumerate(instance.unit_of.tolist()):
            last = horizon - int(tail[op])
            start = self._int(head[op], last - int(quickest[op]), self._starts[op])
            allowed = {int(each) for each in self._ticks[op] if each >= 0}
            if len(allowed) == 1:
                end = start + allowed.pop()
            else:
                end = self._int(head[op] + quickest[op], last, self._ends[op])
                for device, ticks in enumerate(self._ticks[op].tolist()):
                    if ticks >= 0:
                        model.add(end == start + ticks).only_enforce_if(self.on[unit][device])
            model.add(end + int(tail[op]) <= self.makespan)
            self.start.append(start)
            self.end.append(end)
        self._add_loads()

    def _longest_horizon(self) -> int:
        """Where the start does not fit: everything in a row, with every transfer waited for."""
        moves = sum(
            max(self._moves(size), default=0)
            for sources in self._edge_bytes
            for size in sources.values()
        )
        return int(self._ticks.max(axis=1).sum()) + moves

    def _add_loads(self) -> None:
        """Implied, and what the solver's linear relaxation needs: devices' loads."""
        instance = self.instance
        for device in range(instance.num_devices):
            load = np.zeros(instance.num_units, np.int64)
            np.add.at(load, instance.unit_of, np.maximum(self._ticks[:, device], 0))
            terms = sum(int(load[u]) * self.on[u][device] for u in range(len(load)))
            self.model.add(terms <= self.makespan)

    def _add_transfers(self) -> None:
        """A reader starts after its sources, and later by a transfer where devices differ.

        As conditional precedences. One linear constraint with transfer times as weights of the
        literals is no better or worse: 9 proofs against 8 in 19 runs of one search with a free
        order (AlexNet, VGG-16, coarse FNet and BERT on 2 to 8 devices, 4 to 6 s, 2026-11-15).
        """
        unit_of = self.instance.unit_of
        for op, sources in enumerate(self._edge_bytes):
            for source, size in sources.items():
                self.model.add(self.start[op] >= self.end[source])
                pair = int(unit_of[source]), int(unit_of[op])
                moves = self._moves(size)
                if pair[0] == pair[1] or max(moves, default=0) == 0:
                    continue
                _, kinds = self._literals_apart(*pair)
                for literal, ticks in zip(kinds, moves, strict=True):
                    later = self.model.add(self.start[op] >= self.end[source] + ticks)
                    later.only_enforce_if(literal)

    def _add_saved(self) -> None:
        """What a forward op saves is there for a backward op of its device when it has run."""
        for source, op in saved_edges(self.instance):
            pair = int(self.instance.unit_of[source]), int(self.instance.unit_of[op])
            later = self.model.add(self.start[op] >= self.end[source])
            if pair[0] != pair[1]:
                later.only_enforce_if(self._literal_together(*pair))

    def _literals_apart(self, one: int, other: int) -> tuple[Any, list[Any]]:
        """Whether two units share a device, and if not, by which kind of link they are joined."""
        links, model = self._links, self.model
        if links.is_symmetric and one > other:
            one, other = other, one
        if (one, other) in self._apart:
            return self._apart[one, other]
        here, there = self._unit_device[one], self._unit_device[other]
        same = self._bool(here == there)
        kinds = [
            self._bool(here != there and links.kind_of[here, there] == kind)
            for kind in range(len(links.latency))
        ]
        model.add_exactly_one([same, *kinds])
        for device, (on, also) in enumerate(zip(self.on[one], self.on[other], strict=True)):
            model.add_bool_or(~on, ~also, same)
            model.add_bool_or(~on, also, ~same)
            model.add_bool_or(on, ~also, ~same)
            for kind, literal in enumerate(kinds):
                reached = np.flatnonzero(links.kind_of[device] == kind)
                if len(reached):
                    model.add(on + sum(self.on[other][e] for e in reached) - 1 <= literal)
        self._apart[one, other] = same, kinds
        return same, kinds

    def _fix_order(self) -> None:
        """Of two ops on one device the earlier one in the sort goes first.

        For two units it is enough to order neighbours in the merged sequence of their ops: from any
        op to a later one neighbours lead in steps that each hold when the units share a device.
        A variable for when each device is free after each op is smaller and was worse, no proof in
        four runs against four (VGG-16 on 4 devices, 6 s, 2026-11-15).
        """
        for op, following in neighbours(self.instance, self._sort, self._reach):
            unit, other = self.instance.unit_of[op], self.instance.unit_of[following]
            later = self.model.add(self.start[following] >= self.end[op])
            if unit != other:
                later.only_enforce_if(self._literal_together(int(unit), int(other)))

    def _literal_together(self, one: int, other: int) -> Any:
        """True when two units share a device; otherwise either."""
        for pair in ((one, other), (other, one)):
            if pair in self._apart:
                return self._apart[pair][0]
        pair = min(one, other), max(one, other)
        if pair not in self._together:
            literal = self._bool(self._unit_device[one] == self._unit_device[other])
            for on, also in zip(self.on[one], self.on[other], strict=True):
                self.model.add_bool_or(~on, ~also, literal)
            self._together[pair] = literal
        return self._together[pair]

    def _free_order(self) -> None:
        """No two ops of a device overlap. What is parallel to nothing, or takes no tick, may."""
        instance, reach = self.instance, self._reach
        related = np.bitwise_count(reach).sum(axis=1, dtype=np.int64)
        for op in range(instance.num_ops):
            related += reached_by(reach, op)
        for device in range(instance.num_devices):
            self.model.add_no_overlap(
                [
                    self.model.new_optional_fixed_size_interval_var(
                        self.start[op], ticks, self.on[instance.unit_of[op]][device], ""
                    )
                    for op, ticks in enumerate(self._ticks[:, device].tolist())
                    if ticks > 0 and related[op] < instance.num_ops - 1
                ]
            )

    def _break_symmetry(self) -> None:
        """Of two placements that a swap of devices turns into each other keep the smaller one.

        Units by falling size, devices by number: the lexicographic minimum of all placements that
        are the same up to swaps keeps to all of these rules at once. A swap of devices `low`
        with `high` (each number below its partner's): the first unit on any of them is on a low
        one.
        """
        units = self._by_size[:_BROKEN_UNITS].tolist()
        for low, high, _ in self._swaps:
            before: list[Any] = []
            for unit in units:
                for device in high:
                    self.model.add_bool_or(~self.on[unit][device], *before)
                before += [self.on[unit][device] for device in low]
