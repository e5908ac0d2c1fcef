"""A walk over the placements of one instance that can be continued; see `move` for its steps."""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints, sum_by
from meshwright.search.instance import Instance
from meshwright.search.method.placement.move import (
    PROGRESS,
    ROOM,
    TURN,
    UNIT,
    AnnealState,
    anneal,
    trace_path,
)
from meshwright.search.order.decode import OrderDecoder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """A placement of an instance's units, and the order that its ops were timed in."""

    device_of_unit: Ints
    order: Ints
    seconds: float
    """The time of a step without link sharing."""
    lacking_bytes: float
    """What devices hold beyond their limits, together."""

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: what fits first, then what is faster."""
        return self.lacking_bytes, self.seconds


class PlacementWalk:
    """A walk on one instance under limits of memory."""

    def __init__(self, instance: Instance, limits: Floats, seed: int) -> None:
        num_units, num_turns = instance.num_units, max(1, instance.num_ops)
        self.instance = instance
        self.decoder = OrderDecoder(instance)
        self._limits = limits
        urgency = self.decoder.ops["way"][:-1] + instance.seconds.min(axis=1)
        most = np.maximum.reduceat(urgency[instance.unit_ops], instance.unit_start[:-1])
        self.sequence = np.argsort(-most, kind="stable").astype(np.int32)
        """The units by the most urgent of their ops when nothing has to be moved."""
        units = np.zeros(num_units + 1, UNIT)
        units["first"] = instance.unit_start
        units["bytes"][:-1] = instance.unit_bytes
        units["place"][self.sequence] = np.arange(num_units)
        self.state = AnnealState(
            self.decoder.state, units, self.sequence, np.zeros(num_units, np.int32),
            np.zeros(num_turns, np.int32), np.zeros(num_turns, TURN),
            np.zeros(instance.num_devices, ROOM), np.zeros(1, PROGRESS),
            np.array([seed % 2**64], np.uint64),
        )  # fmt: skip

    def time(
        self, device_of_unit: Ints, order: Ints | None = None, limit: float = np.inf
    ) -> Placed:
        """Time a placement, in the given order or by urgency; beyond the limit it is infinite."""
        device_of_op = device_of_unit[self.instance.unit_of].astype(np.int32)
        if order is None:
            order = self.decoder.rank(device_of_op)
        seconds = self.decoder.seconds(device_of_op, order, limit)
        lacking = np.maximum(self._used_bytes(device_of_unit) - self._limits, 0.0)
        return Placed(
            device_of_unit=device_of_unit.astype(np.int32),
            order=order,
            seconds=seconds,
            lacking_bytes=float(lacking.sum()),
        )

    def _used_bytes(self, device_of_unit: Ints) -> Floats:
        """What each device holds."""
        instance = self.instance
        return sum_by(device_of_unit, instance.unit_bytes, instance.num_devices)

    def longest_path(self, placed: Placed) -> Ints:
        """The ops of a placement's longest path, from the last back."""
        self.time(placed.device_of_unit, placed.order)
        trace_path(self.state)
        path: Ints = self.state.path[: self.state.progress["path_length"][0]].copy()
        return path

    def best_order(self, placed: Placed) -> Placed:
        """The same placement in the order by urgency, if that is faster."""
        return min(placed, self.time(placed.device_of_unit), key=lambda each: each.rank)

    def begin(self, placed: Placed, steps: int, hot: float, cold: float) -> None:
        """Be at a placement, to cool over so many steps; temperatures are parts of its time."""
        units, rooms, progress = self.state.units, self.state.rooms, self.state.progress
        units["device"][:-1] = units["best_device"][:-1] = placed.device_of_unit
        rooms["limit"], rooms["used"] = self._limits, self._used_bytes(placed.device_of_unit)
        progress[0] = np.zeros((), PROGRESS)
        progress["now"] = progress["best"] = placed.seconds
        progress["hot"], progress["cold"] = hot * placed.seconds, cold * placed.seconds
        progress["planned"] = steps
        self.state.turns["best"][: len(placed.order)] = placed.order
        self._best = placed
        self._enter(placed)

    def _enter(self, placed: Placed) -> None:
        decoder, instance = self.decoder, self.instance
        decoder.ops["device"][:-1] = placed.device_of_unit[instance.unit_of]
        decoder.order[:] = placed.order

    def run(self, steps: int) -> Placed:
        """Take so many steps; the best placement since `begin`."""
        instance = self.instance
        if instance.num_devices < 2 or instance.num_units == 0:
            return self._best
        anneal(self.state, steps)
        now = self.decoder.order.copy()
        best_order = self.state.turns["best"][: instance.num_ops].copy()
        found = self.time(self.state.units["best_device"][:-1].copy(), best_order)
        found = self.best_order(found)
        self.decoder.order[:] = now
        if found.rank < self._best.rank:
            self._best = found
        self._rerank()
        return self._best

    def _rerank(self) -> None:
        """Go on in the order by urgency at the present placement, if that is faster."""
        now = self.state.units["device"][:-1].copy()
        kept, ranked = self.time(now, self.decoder.order.copy()), self.time(now)
        better = min(kept, ranked, key=lambda each: each.seconds)
        progress = self.state.progress
        progress["now"] = better.seconds
        progress["best"] = min(progress["best"][0], self._best.seconds)
        self._enter(better)

    @property
    def statistics(self) -> dict[str, float]:
        """Moves tried and accepted since `begin`."""
        tried, accepted = self.state.progress[0][["tried", "accepted"]].tolist()
        return {"moves": float(tried), "accepted": float(accepted)}
