"""Finds the best stages within a frame by dynamic programming, for each schedule.

Exact for its model: of all ways to cut the layers into stages, to give each stage devices of one of
the sizes, and an option, the least largest load that fits in memory, and of these the least sum.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cost.memory import usable_bytes
from meshwright.plan.part import ScheduleKind
from meshwright.plan.stage import DraftStage, Frame, Option
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.option_price import LayerPrices
from meshwright.search.method.hybrid.piece import Piece, StagePlace, price_stages
from meshwright.search.method.hybrid.shape import Shapes
from meshwright.search.method.hybrid.stage_chain import least_load, pick_options, read_chain
from meshwright.search.method.hybrid.table import OptionTable, make_table

_COUNTS = 4
"""Numbers of stages that are looked at more closely, those with the least rough estimate."""
_SLACKS = (0.0, 0.03, 0.1)
"""How far above the least largest load another cut of the layers may be if its sum is less."""


class Layouts:
    """Where stages can be, on one cluster; everything that depends on places only."""

    def __init__(self, prices: LayerPrices) -> None:
        self.prices = prices
        cluster, order = prices.cluster, np.array(prices.tiers.order)
        self._types = cluster.type_of[order]
        self.usable_bytes = usable_bytes(prices.stack.graph, cluster)[order]
        self._is_alike = bool(np.ptp(self._types) == 0 and np.ptp(self.usable_bytes) == 0)

    def place(self, frame: Frame, offset: int, size: int) -> StagePlace:
        """The devices of a stage in every pod."""
        names = self.prices.cluster.type_names
        pod = len(self._types) // frame.pods
        line = self.prices.tiers.shift_line(offset, size)
        if self._is_alike:
            return StagePlace(size, (names[self._types[0]],), float(self.usable_bytes[0]), *line)
        runs = [
            slice(each * pod + offset, each * pod + offset + size) for each in range(frame.pods)
        ]
        kinds = np.concatenate([self._types[run] for run in runs])
        there, counts = np.unique(kinds, return_counts=True)
        types = tuple(names[kind] for kind in there.tolist())
        parts = tuple((counts / len(kinds)).tolist())
        usable = min(float(self.usable_bytes[run].min()) for run in runs)
        return StagePlace(size, types, usable, *line, parts)


class FrameSearch:
    """The stages of one frame with stages of some sizes (devices in a pod)."""

    def __init__(
        self,
        layouts: Layouts,
        shapes: Shapes,
        frame: Frame,
        sizes: Sequence[int],
        options: Sequence[Option],
        *,
        is_near: bool = True,
    ) -> None:
        """`is_near`: of one size only stages with about an even share of the layers."""
        self.layouts = layouts
        self.frame = frame
        self.pod = len(layouts.prices.tiers.order) // frame.pods
        num_layers = layouts.prices.stack.num_layers
        is_even = len(sizes) == 1
        most = min(frame.pipeline or self.pod // sizes[0], num_layers)
        self.shapes = shapes.near(most) if is_even and is_near else shapes
        self._options = options
        self._tables: dict[tuple[object, ...], OptionTable] = {}
        self.sizes = [size for size in sizes if self.table_at(0, size).options]
        # Of what is left: where one size is, places are counted in stages.
        self.unit = int(np.gcd.reduce(self.sizes)) if self.sizes else 1

    def table_at(self, offset: int, size: int) -> OptionTable:
        """The table of a stage at a place of the pods."""
        return self.table_of(self.layouts.place(self.frame, offset, size))

    def table_of(self, place: StagePlace) -> OptionTable:
        """The table of stages at such places; without options where none is possible."""
        key = (place.size, place.types, place.parts)
        if key not in self._tables:
            own = self.layouts.prices, self.shapes, self.frame, place.size, self._options
            self._tables[key] = make_table(*own, place.types, place.parts)
        return self._tables[key]

    def only(self, options: Collection[Option]) -> "FrameSearch":
        """The same search with some of its options."""
        part = copy(self)
        part._tables = {key: table.only(options) for key, table in self._tables.items()}
        part._options = tuple(options)
        part.sizes = [size for size in self.sizes if part.table_at(0, size).options]
        return part

    @property
    def num_units(self) -> int:
        """How many placement units a pod is divided into."""
        return self.pod // self.unit

    @cached_property
    def most_stages(self) -> int:
        """The most stages there can be: one a layer, or as the smallest size allows."""
        most = min(self.layouts.prices.stack.num_layers, self.pod // min(self.sizes))
        return min(most, self.frame.pipeline or most)

    @cached_property
    def places(self) -> tuple[list[StagePlace], Longs]:
        """Distinct places, and which one by size and units from a stage's first device to the
        pod's end."""
        known: dict[StagePlace, int] = {}
        places = np.full((len(self.sizes), self.num_units + 1), -1, dtype=np.int64)
        for row, size in enumerate(self.sizes):
            for units in range(size // self.unit, self.num_units + 1):
                place = self.layouts.place(self.frame, self.pod - units * self.unit, size)
                places[row, units] = known.setdefault(place, len(known))
        return list(known), places

    def drafts(
        self, kinds: Sequence[ScheduleKind], limit: Callable[[], float]
    ) -> Iterator[HybridDraft]:
        """The best of each schedule and number of stages that may be below the limit."""
        if not self.sizes:
            return
        if self.most_stages == 1:  # all schedules are one; this one holds fewest microbatches
            kinds = [ScheduleKind.ONE_F_ONE_B]
        for kind in kinds:
            if kind is not ScheduleKind.INTERLEAVED:
                yield from self._drafts_of(kind, limit)

    def _drafts_of(self, kind: ScheduleKind, limit: Callable[[], float]) -> Iterator[HybridDraft]:
        sizes = np.array(self.sizes) // self.unit
        for most in self._most_stages(kind):
            loads, chosen = self._loads(kind, most)
            value, *_ = least_load(
                loads, self.places[1], self.shapes.shape_of, sizes, np.inf, False
            )
            largest = value[1:, 0].min(axis=1)
            rough = largest * (self.frame.microbatches - 1 + np.arange(1, most + 1))
            if self.frame.pods > 1:
                rough[0] = np.inf  # one stage: replicas in one pod or in several are the same
            if self.frame.pipeline:
                rough[np.arange(1, most + 1) != self.frame.pipeline] = np.inf
            counts = [most - 1] if kind is ScheduleKind.ZERO_BUBBLE else np.argsort(rough)[:_COUNTS]
            for place in counts:
                # Other microbatches than the first follow at the slowest stage's pace.
                pace = largest[place] * max(self.frame.microbatches - 1, 1e-9)
                if pace < limit() and rough[place] < np.inf:
                    yield from self._cut(kind, int(place) + 1, largest[place], loads, chosen, limit)

    def _most_stages(self, kind: ScheduleKind) -> Sequence[int]:
        """Zero-bubble holds as many microbatches as there are stages on all of them, so that each
        number of stages is a case of its own."""
        if kind is not ScheduleKind.ZERO_BUBBLE:
            return [self.most_stages]
        counts = {self.frame.pipeline or self.pod // size for size in self.sizes}
        return sorted(count for count in counts if 1 < count <= self.most_stages)

    def flights(self, kind: ScheduleKind, num_stages: int) -> Floats:
        """Microbatches that a stage holds at once, by its number from the end: of inference what
        all of them return."""
        if self.layouts.prices.stack.graph.is_inference:
            kind = ScheduleKind.GPIPE
        return flights(kind, num_stages, self.frame.microbatches)

    def _hides_transfers(self, kind: ScheduleKind) -> bool:
        """Whether stages compute while what they send is on its way, in every microbatch."""
        blocks = self.layouts.prices.runtime.blocks_on_transfers
        return kind is ScheduleKind.GPIPE and not blocks

    def _loads(self, kind: ScheduleKind, num_stages: int) -> tuple[Floats, Longs]:
        """The least load and its option, by place, stage from the end and shape."""
        places, _ = self.places
        num_shapes = len(self.shapes.counts)
        shape = (len(places), num_stages, num_shapes)
        loads, chosen = np.empty(shape), np.empty(shape, dtype=np.int64)
        in_flight = self.flights(kind, num_stages)
        for number, place in enumerate(places):
            table = self.table_of(place)
            best = np.empty((num_shapes, num_stages))
            picked = np.empty((num_shapes, num_stages), dtype=np.int64)
            most = table.most_in_flight(place.usable_bytes, kind)
            pick_options(table.load, most, in_flight, best, picked)
            loads[number], chosen[number] = best.T, picked.T
            shift = _shift(place, table, picked.T[1:])
            if self._hides_transfers(kind):  # the way to the next stage takes one at a time
                np.maximum(loads[number, 1:], shift, out=loads[number, 1:])
            else:
                loads[number, 1:] += shift
        return loads, chosen

    def _cut(
        self,
        kind: ScheduleKind,
        num_stages: int,
        largest: float,
        loads: Floats,
        chosen: Longs,
        limit: Callable[[], float],
    ) -> Iterator[HybridDraft]:
        """Drafts of so many stages: the least sum of loads within limits on the largest."""
        places, sizes = self.places[1], np.array(self.sizes) // self.unit
        for slack in _SLACKS:
            most = largest * (1 + slack) + 1e-15
            total, layers, picked = least_load(
                loads[:, :num_stages], places, self.shapes.shape_of, sizes, most, True
            )
            used = int(np.argmin(total[num_stages, 0]))
            chain = read_chain(layers, picked, sizes, num_stages, used)
            draft = self._draft(kind, chain, chosen)
            yield draft
            if draft.estimate_seconds >= limit():
                break

    def _draft(
        self, kind: ScheduleKind, chain: list[tuple[int, int, int, int]], chosen: Longs
    ) -> HybridDraft:
        known, places = self.places
        pieces, stages = [], []
        for number, (first, after, size, units) in enumerate(chain):
            from_end = len(chain) - 1 - number
            place_number = places[size, units]
            place, shape = known[place_number], int(self.shapes.shape_of[first, after])
            option = int(chosen[place_number, from_end, shape])
            table = self.table_of(place)
            pieces.append(Piece(table, option, shape, place))
            stages.append(
                DraftStage(
                    first=first, after=after, offset=self.pod - units * self.unit,
                    size=self.sizes[size], option=table.options[option],
                )
            )  # fmt: skip
        seconds = price_stages(self.layouts.prices, self.frame, kind, stages, pieces)
        return HybridDraft(
            frame=self.frame, kind=kind, stages=tuple(stages), estimate_seconds=seconds
        )


def flights(kind: ScheduleKind, num_stages: int, microbatches: int) -> Floats:
    """Microbatches that a stage holds at once, by its number from the end."""
    if kind is ScheduleKind.ONE_F_ONE_B:
        held = np.arange(1, num_stages + 1)
    else:
        held = np.full(num_stages, num_stages if kind is ScheduleKind.ZERO_BUBBLE else microbatches)
    return np.minimum(held, microbatches).astype(np.float64)


def _shift(place: StagePlace, table: OptionTable, picked: Longs) -> Floats:
    """The seconds of a transfer to the next stage and back, by stage and shape, under the option
    that was picked."""
    shape = np.arange(table.output_bytes.shape[1])
    output = table.output_bytes[np.maximum(picked, 0), shape]
    return 2 * (place.latency_seconds + place.seconds_per_byte * output)
