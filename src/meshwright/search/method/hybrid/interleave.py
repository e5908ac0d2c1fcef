"""Interleaved drafts: every run of devices holds several chunks of layers, S stages apart.

Narayanan et al., 2021, section 2.2: with v chunks a device the bubble is a v-th, transfers are v
times as many, and more microbatches are in flight. All chunks have one option.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.plan.part import ScheduleKind
from meshwright.plan.stage import DraftStage, can_interleave
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.frame import FrameSearch
from meshwright.search.method.hybrid.piece import Piece, StagePlace, price_stages
from meshwright.search.method.hybrid.stage_chain import least_load, read_chain
from meshwright.search.method.hybrid.table import OptionTable, samples_of

Cuts = tuple[tuple[int, int], ...]
"""The first layer of each chunk and the one after its last."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkSearch:
    """Equal runs of devices at the end of each pod of a frame, each with several chunks."""

    search: FrameSearch
    """The frame with one size, and tables of all options."""
    num_runs: int
    known: dict[tuple[object, ...], tuple[Cuts, ...]] = field(default_factory=dict)
    """How layers are cut, by what loads depend on but for what happens once a step."""

    def drafts(self, chunks: int) -> Iterator[HybridDraft]:
        """By team and ZeRO stage the draft with so many chunks a run that computes least again."""
        search, total = self.search, chunks * self.num_runs
        if not search.sizes or self.num_runs < 2 or chunks < 2:
            return
        is_possible = total <= search.layouts.prices.stack.num_layers
        if not is_possible or not can_interleave(search.frame.microbatches, self.num_runs):
            return
        options = search.table_at(0, search.sizes[0]).options
        settings = [(option.team, option.zero) for option in options]
        for setting in dict.fromkeys(settings):
            rows = [row for row, each in enumerate(settings) if each == setting]
            made = (self._cut(row, chunks) for row in rows)
            least = min(filter(None, made), key=lambda draft: draft.estimate_seconds, default=None)
            if least is not None:
                yield least

    @cached_property
    def _places(self) -> list[StagePlace]:
        search, size = self.search, self.search.sizes[0]
        return [search.layouts.place(search.frame, offset, size) for offset in self._offsets]

    @cached_property
    def _offsets(self) -> list[int]:
        size = self.search.sizes[0]
        return [self.search.pod - (self.num_runs - run) * size for run in range(self.num_runs)]

    def _cut_layers(self, table: OptionTable, row: int, total: int) -> tuple[Cuts, ...]:
        """The first layers of so many chunks and those after their last ones: ways to cut that may
        be good."""
        search, option = self.search, table.options[row]
        samples = samples_of(
            search.layouts.prices.stack.graph.batch, search.frame, table.size, option.team
        )
        key = (total, option.team, option.recompute, samples)
        if key not in self.known:
            loads, shape_of = table.load[row], search.shapes.shape_of
            found = (_cut_evenly(loads, shape_of, total), _cut_in_turn(loads, shape_of, total))
            self.known[key] = tuple(dict.fromkeys(filter(None, found)))
        return self.known[key]

    def _cut(self, row: int, chunks: int) -> HybridDraft | None:
        """Layers spread over all chunks as evenly as can be; None: too full."""
        tables = [self.search.table_of(place) for place in self._places]
        ways = self._cut_layers(tables[0], row, chunks * self.num_runs)
        made = (self._draft(tables, row, cuts) for cuts in ways)
        return min(filter(None, made), key=lambda each: each.estimate_seconds, default=None)

    def _draft(self, tables: Sequence[OptionTable], row: int, cuts: Cuts) -> HybridDraft | None:
        search, num_runs, places = self.search, self.num_runs, self._places
        shapes = np.array([search.shapes.shape_of[first, after] for first, after in cuts])
        shapes = shapes.reshape(-1, num_runs).T
        if not _fits(search.frame.microbatches, places, tables, row, shapes):
            return None
        stages = tuple(
            DraftStage(
                first=first,
                after=after,
                offset=self._offsets[chunk % num_runs],
                size=search.sizes[0],
                option=tables[0].options[row],
            )
            for chunk, (first, after) in enumerate(cuts)
        )
        kind = ScheduleKind.INTERLEAVED
        pieces = [
            Piece(table, row, shape, place)
            for chunk in shapes.T.tolist()
            for table, shape, place in zip(tables, chunk, places, strict=True)
        ]
        seconds = price_stages(search.layouts.prices, search.frame, kind, stages, pieces)
        return HybridDraft(frame=search.frame, kind=kind, stages=stages, estimate_seconds=seconds)


def _cut_evenly(loads: Floats, shape_of: Longs, total: int) -> Cuts:
    """The largest chunk is as small as it can be, then chunks are as even as they can be."""
    units, one = np.zeros((1, total + 1), dtype=np.int64), np.ones(1, dtype=np.int64)
    every = loads[None, None].repeat(total, axis=1)
    value, *_ = least_load(every, units, shape_of, one, np.inf, False)
    limit = float(value[total, 0, 0]) * (1 + 1e-12)
    if not limit < np.inf:
        return ()
    _, layers, picked = least_load(every * every, units, shape_of, one, limit * limit, True)
    chain = read_chain(layers, picked, one, total, total)
    return tuple((first, after) for first, after, *_ in chain)


def _cut_in_turn(loads: Floats, shape_of: Longs, total: int) -> Cuts:
    """Larger and smaller chunks take turns: each ends where its part of all the work does."""
    num_layers = len(shape_of) - 1
    places = np.arange(num_layers)
    done = np.concatenate(([0.0], np.cumsum(loads[shape_of[places, places + 1]])))
    ends = [0]
    for number in range(1, total):
        wanted = int(np.argmin(np.abs(done - done[-1] * number / total)))
        ends.append(min(max(wanted, ends[-1] + 1), num_layers - total + number))
    return tuple(pairwise([*ends, num_layers]))


def _fits(
    microbatches: int, places: Sequence[StagePlace], tables: Sequence[OptionTable], row: int,
    shapes: Longs,
) -> bool:  # fmt: skip
    """Whether every device holds its chunks (columns of `shapes`) and what is in flight."""
    num_runs, chunks = shapes.shape
    in_round = microbatches // max(1, microbatches // num_runs)
    for run, (place, table) in enumerate(zip(places, tables, strict=True)):
        own = shapes[run]
        warm_up = (chunks - 1) * in_round + 2 * (num_runs - 1 - run) + 1
        saved = min(warm_up, chunks * microbatches) * float(table.saved_bytes[row, own].max())
        passing = float(table.passing_bytes[row, own].max())
        fixed = float(table.fixed_bytes[row, own].sum())
        if fixed + passing + saved > place.usable_bytes:
            return False
    return True
