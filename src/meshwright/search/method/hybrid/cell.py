"""A frame with stages of one size, and the least that a plan of it can take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from meshwright.array import Floats
from meshwright.cost.layer.team import Team
from meshwright.kernel.row import group_values
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.stage import Frame, Option
from meshwright.search.method.hybrid.frame import flights
from meshwright.search.method.hybrid.option_price import Column, LayerPrices
from meshwright.search.method.hybrid.scope import list_frames, list_sizes
from meshwright.search.method.hybrid.shape import Shapes
from meshwright.search.method.hybrid.space import HybridSpace, list_samples
from meshwright.search.method.hybrid.table import (
    OptionTable,
    make_table,
    option_fits,
    samples_of,
)

Limit = Callable[[ScheduleKind], float]
"""By schedule the estimate above which no draft is of interest."""


_UNEVEN = 1.5
"""Stages so uneven that they fit where even ones do not are taken to need so much longer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """A frame and a number of devices a stage, in a pod."""

    frame: Frame
    size: int
    bounds: Mapping[Team, tuple[float, float]]
    """The bounds of each team: no estimate of it is smaller, of one stage on each run of devices,
    and of several."""

    @cached_property
    def bound(self) -> float:
        """The bound of the best team, with one stage on each run of devices."""
        return min(one for one, _ in self.bounds.values())

    @cached_property
    def least(self) -> float:
        """The bound of the best team, with any number of stages on each run of devices."""
        return min(min(each) for each in self.bounds.values())

    def num_runs(self, space: HybridSpace) -> int:
        """The most runs of devices that can hold stages."""
        pod = space.cluster.num_devices // self.frame.pods
        return min(self.frame.pipeline or pod // self.size, space.stack.num_layers)

    def options(
        self, space: HybridSpace, limit: float, *, is_chunked: bool = False
    ) -> list[Option]:
        """Those whose team may be below the limit; with several stages on each run, too."""
        return [
            option
            for team, (one, several) in self.bounds.items()
            if (min(one, several) if is_chunked else one) < limit
            for option in space.options_of_team[team]
        ]


def list_cells(space: HybridSpace) -> list[Cell]:
    """Those that are possible, by their bounds."""
    teams = list(dict.fromkeys(option.team for option in space.options))
    num_devices = space.cluster.num_devices
    space.prices.prepare(teams, list_samples(space))
    cells = []
    for frame in list_frames(space.scope, space.batch, num_devices):
        pod = num_devices // frame.pods
        for size in list_sizes(pod):
            if 2 * size > pod and frame.pods > 1:
                continue  # one stage: replicas in one pod or in several are the same
            if frame.pipeline > min(pod // size, space.stack.num_layers):
                continue
            bounds = _work_bound(space.prices, space.shapes, frame, size, teams)
            if bounds:
                cells.append(Cell(frame=frame, size=size, bounds=bounds))
    return sorted(cells, key=lambda cell: (cell.bound, cell.frame, cell.size))


def _work_bound(
    prices: LayerPrices, shapes: Shapes, frame: Frame, size: int, teams: Sequence[Team]
) -> dict[Team, tuple[float, float]]:
    """By team that is possible: no plan of the frame with stages of that size and teams has a
    smaller estimate, with one stage on each run of devices and with several. All compute, evenly
    spread, with as much memory as one likes, on the fastest type."""
    whole = shapes.whole.counts[0]
    pod = len(prices.tiers.order) // frame.pods
    stages = min(frame.pipeline or pod // size, prices.stack.num_layers)
    bounds = {}
    for team in teams:
        option = Option(team=team, zero=0, recompute=Recompute.NONE)
        if not option_fits(prices, frame, size, option):
            continue
        samples = samples_of(prices.stack.graph.batch, frame, size, team)
        least = least_chunked = np.inf
        for name in prices.cluster.type_names:
            rows = prices.rows(team, Recompute.NONE, name, samples)
            work = float((rows[:, Column.FORWARD] + rows[:, Column.BACKWARD]) @ whole)
            weight = float(rows[:, Column.WEIGHT] @ whole) if stages > 1 else 0.0
            plain, chunked = _least_seconds(frame.microbatches, stages, work, weight)
            least, least_chunked = min(least, plain), min(least_chunked, chunked)
        bounds[team] = least, least_chunked if stages > 1 else np.inf
    return bounds


def _least_seconds(
    microbatches: int, num_runs: int, work: Any, weight: Any, chunks: int = 1
) -> tuple[Any, Any]:
    """The least that stages of so much work (and weight gradients) in all can take, a microbatch,
    by any estimate: with one stage on each run of devices, and with so many.

    The first microbatch passes all stages, the others follow. Zero-bubble hides two weight
    gradients of each stage in the first, or all but those that follow one another. Where there are
    several stages, the last run of devices waits for the first of each of the others.
    """
    rest = (microbatches - 1) / num_runs
    plain = np.maximum(work * (1 + rest) - 2 * weight, (work - weight) * (1 + rest))
    waiting = (num_runs - 1) / max(chunks, 1)
    return plain, work * np.maximum(1.0, (microbatches + waiting) / num_runs)


@dataclass(frozen=True, slots=True)
class Setting:
    """Options of a cell that get drafts of their own, under one schedule."""

    cell: Cell
    kind: ScheduleKind
    options: tuple[Option, ...]


def list_settings(
    space: HybridSpace, cell: Cell, kinds: Sequence[ScheduleKind], limit: Limit
) -> list[tuple[float, Setting]]:
    """The settings of one team and one ZeRO stage, those that may fit and be below the limit, each
    with what no estimate is much below."""
    frame, size = cell.frame, cell.size
    most = max(map(limit, kinds), default=0.0)
    options = cell.options(space, most, is_chunked=ScheduleKind.INTERLEAVED in kinds)
    options = [each for each in options if option_fits(space.prices, frame, size, each)]
    if not options:
        return []
    tables = [
        make_table(space.prices, space.shapes.whole, frame, size, options, [name])
        for name in space.cluster.type_names
    ]
    rows = group_values(((each.team, each.zero), row) for row, each in enumerate(options))
    found = []
    for kind in kinds:
        each_type = [_estimate_options(space, cell, kind, table) for table in tables]
        for own in rows.values():
            bound = min(estimates.least(own) for estimates in each_type)
            if bound < limit(kind):
                setting = Setting(cell, kind, tuple(options[row] for row in own))
                found.append((bound, setting))
    return found


@dataclass(frozen=True, eq=False)
class _Estimates:
    """What stages with each option take and hold that have all layers evenly spread."""

    seconds: Floats
    even_bytes: Floats
    """Bytes of a stage, in the mean over the stages."""
    least_bytes: Floats
    """Bytes of the stage that holds the fewest microbatches."""
    usable: float
    can_mix: bool

    def least(self, rows: Sequence[int]) -> float:
        """The least of some options; infinite where none fits."""
        seconds = self.seconds[rows]
        least = _least_mix(seconds, self.even_bytes[rows], self.usable, can_mix=self.can_mix)
        if least < inf:
            return least
        fits = self.least_bytes[rows] <= self.usable  # then a stage may have more layers
        return _UNEVEN * float(seconds[fits].min(initial=inf))


def _estimate_options(
    space: HybridSpace, cell: Cell, kind: ScheduleKind, table: OptionTable
) -> _Estimates:
    microbatches, num_runs = cell.frame.microbatches, cell.num_runs(space)
    is_chunked = kind is ScheduleKind.INTERLEAVED
    chunks = max(space.scope.interleaved_chunks(space.stack.num_layers // num_runs), default=1)
    weight = table.weight[:, 0] * (kind is ScheduleKind.ZERO_BUBBLE and num_runs > 1)
    pair = _least_seconds(microbatches, num_runs, table.fill[:, 0], weight, chunks)
    state, saved = table.fixed_bytes[:, 0] / num_runs, table.saved_bytes[:, 0] / num_runs
    return _Estimates(
        seconds=pair[is_chunked] + table.tail[:, 0] / num_runs,
        even_bytes=state + _held_at_once(kind, num_runs, microbatches, chunks) * saved,
        least_bytes=state + saved,
        usable=float(space.layouts.usable_bytes.max()),
        can_mix=not is_chunked,
    )


def _held_at_once(kind: ScheduleKind, num_runs: int, microbatches: int, chunks: int) -> float:
    """How many microbatches a run of devices holds all that it saves of, in the mean over the runs;
    of interleaved ones the first."""
    if kind is ScheduleKind.INTERLEAVED:
        in_round = microbatches // max(1, microbatches // num_runs)
        warm_up = (chunks - 1) * in_round + 2 * (num_runs - 1) + 1
        return min(warm_up / chunks, microbatches)
    return float(flights(kind, num_runs, microbatches).mean())


def _least_mix(seconds: Floats, held: Floats, usable: float, *, can_mix: bool) -> float:
    """The least seconds of shares of some options whose bytes fit together, or of one of them."""
    fits = held <= usable
    least = float(seconds[fits].min(initial=inf))
    if not can_mix or fits.all() or not fits.any():
        return least
    over, under = held[~fits, None], held[None, fits]
    share = (usable - under) / (over - under)
    mixed = share * seconds[~fits, None] + (1 - share) * seconds[None, fits]
    return min(least, float(mixed.min()))
