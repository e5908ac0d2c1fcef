"""A walk over the placements of one instance that can be continued; see `move` for its steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints
from meshwright.search.instance import Instance
from meshwright.search.method.placement.move import (
    ACCEPTED,
    BEST,
    COLD,
    HOT,
    NOW,
    PATH,
    PLANNED,
    ROOM,
    TRIED,
    TURN,
    UNIT,
    trace,
    walk,
)
from meshwright.search.order.decode import Decoder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """A placement of an instance's units, and the order that its ops were timed in."""

    device_of_unit: Ints
    order: Ints
    seconds: float
    """Without link sharing."""
    lacking_bytes: float
    """What devices hold beyond their limits, together."""

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: what fits first, then what is faster."""
        return self.lacking_bytes, self.seconds


class Walk:
    """A walk on one instance under limits of memory."""

    def __init__(self, instance: Instance, limits: Floats, seed: int) -> None:
        num_units = instance.num_units
        self.instance = instance
        self.decoder = Decoder(instance)
        self._limits = limits
        self._units = np.zeros(num_units + 1, UNIT)
        self._units["first"] = instance.unit_start
        self._units["bytes"][:-1] = instance.unit_bytes
        self.sequence = _sequence(instance, self.decoder)
        """The units by how early their first op is urgent."""
        self._units["place"][self.sequence] = np.arange(num_units)
        self._moved = np.zeros(num_units, np.int32)
        self._path = np.zeros(max(1, instance.num_ops), np.int32)
        self._turns = np.zeros(max(1, instance.num_ops), TURN)
        self._rooms = np.zeros(instance.num_devices, ROOM)
        self._random: npt.NDArray[np.uint64] = np.array([seed % 2**64], np.uint64)
        self._times = np.zeros(4)
        self._counts = np.zeros(5, np.int64)

    def time(
        self, device_of_unit: Ints, order: Ints | None = None, limit: float = np.inf
    ) -> Placed:
        """Time a placement, in the given order or by urgency; beyond the limit it is infinite."""
        device_of_op = device_of_unit[self.instance.unit_of].astype(np.int32)
        if order is None:
            order = self.decoder.rank(device_of_op)
        seconds = self.decoder.seconds(device_of_op, order, limit)
        used = np.bincount(
            device_of_unit,
            weights=self.instance.unit_bytes,
            minlength=self.instance.num_devices,
        )
        return Placed(
            device_of_unit=device_of_unit.astype(np.int32),
            order=order,
            seconds=seconds,
            lacking_bytes=float(np.maximum(used - self._limits, 0.0).sum()),
        )

    def longest_path(self, placed: Placed) -> Ints:
        """The ops of a placement's longest path, from the last back."""
        self.time(placed.device_of_unit, placed.order)
        trace(self.decoder.ops, self._path, self._counts)
        return self._path[: self._counts[PATH]].copy()

    def best_order(self, placed: Placed) -> Placed:
        """The same placement in the order by urgency, if that is faster."""
        return min(placed, self.time(placed.device_of_unit), key=lambda each: each.rank)

    def begin(self, placed: Placed, steps: int, hot: float, cold: float) -> None:
        """Be at a placement, to cool over so many steps; temperatures are parts of its time."""
        self._units["device"][:-1] = self._units["best_device"][:-1] = placed.device_of_unit
        self._rooms["limit"] = self._limits
        self._rooms["used"] = np.bincount(
            placed.device_of_unit,
            weights=self.instance.unit_bytes,
            minlength=self.instance.num_devices,
        )
        self._times[NOW] = self._times[BEST] = placed.seconds
        self._times[HOT], self._times[COLD] = hot * placed.seconds, cold * placed.seconds
        self._counts[:] = 0
        self._counts[PLANNED] = steps
        self._counts[PATH] = 0
        self._turns["best"][: len(placed.order)] = placed.order
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
        arguments: Any = (
            *self.decoder.arrays, self._units, instance.unit_of, instance.unit_ops,
            instance.unit_seconds, self.sequence, self._moved, self._path, self._turns,
            self._rooms, self._times, self._counts, self._random, steps,
        )  # fmt: skip
        walk(*arguments)
        now = self.decoder.order.copy()
        best_order = self._turns["best"][: instance.num_ops].copy()
        found = self.time(self._units["best_device"][:-1].copy(), best_order)
        found = self.best_order(found)
        self.decoder.order[:] = now
        if found.rank < self._best.rank:
            self._best = found
        self._rerank()
        return self._best

    def _rerank(self) -> None:
        """Go on in the order by urgency at the present placement, if that is faster."""
        now = self._units["device"][:-1].copy()
        kept, ranked = self.time(now, self.decoder.order.copy()), self.time(now)
        better = min(kept, ranked, key=lambda each: each.seconds)
        self._times[NOW] = better.seconds
        self._times[BEST] = min(self._times[BEST], self._best.seconds)
        self._enter(better)

    @property
    def statistics(self) -> dict[str, float]:
        """Moves tried and accepted since `begin`."""
        return {"moves": float(self._counts[TRIED]), "accepted": float(self._counts[ACCEPTED])}


def _sequence(instance: Instance, decoder: Decoder) -> Ints:
    """Units by the most urgent of their ops when nothing has to be moved."""
    fastest = instance.seconds.min(axis=1)
    urgency = decoder.ops["way"][:-1] + fastest
    most = np.maximum.reduceat(urgency[instance.unit_ops], instance.unit_start[:-1])
    ranked: Ints = np.argsort(-most, kind="stable").astype(np.int32)
    return ranked
