"""Prices drafts: from what stages cost by their tables to an estimate of the step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.array import Floats
from meshwright.plan.part import ScheduleKind
from meshwright.plan.stage import DraftStage, Frame
from meshwright.search.method.hybrid.option_price import LayerPrices
from meshwright.search.method.hybrid.replay import replay_seconds
from meshwright.search.method.hybrid.table import OptionTable

_BLOCKING = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B)
"""Schedules whose transfers stages wait for where a runtime has them do so."""
_ROUNDS = 4
"""Of more microbatches than so many times the runs of devices the others follow at the pace of the
slowest."""


class StagePlace(NamedTuple):
    """What tells the devices of one stage from those of another of the same size."""

    size: int
    types: tuple[str, ...]
    usable_bytes: float
    latency_seconds: float
    seconds_per_byte: float
    """The seconds of a byte on the way to the next stage."""
    parts: tuple[float, ...] = ()
    """Which part of the devices each type is; none: all are alike."""


class Piece(NamedTuple):
    """A stage of a draft where its costs are."""

    table: OptionTable
    row: int
    """Its option."""
    shape: int
    place: StagePlace

    def of(self, name: str) -> float:
        """A cost by the table."""
        return float(getattr(self.table, name)[self.row, self.shape])


def price_stages(
    prices: LayerPrices,
    frame: Frame,
    kind: ScheduleKind,
    stages: Sequence[DraftStage],
    pieces: Sequence[Piece],
) -> float:
    """An estimate of the step. Hosts run ahead of their devices, so that the longer of the two
    counts."""
    num_runs = len({stage.offset for stage in stages})
    fills, fronts, weights, tails, hosts, outputs = np.array(
        [
            [piece.of(name) for piece in pieces]
            for name in ("fill", "front", "weight", "tail", "host", "output_bytes")
        ]
    )
    latency = np.array([piece.place.latency_seconds for piece in pieces])
    carried = outputs * np.array([piece.place.seconds_per_byte for piece in pieces])
    if prices.runtime.blocks_on_transfers and kind in _BLOCKING and len(pieces) > 1:
        shifts = 2 * (latency + carried)
        shifts[-1] = 0.0  # nothing is sent on
        spent = _blocked_seconds(kind, frame.microbatches, fills, shifts, tails)
    else:
        seconds = np.column_stack((fronts, fills - fronts, np.zeros(len(pieces))))
        if kind is ScheduleKind.ZERO_BUBBLE:
            seconds[:, 1:] = np.column_stack((fills - fronts - weights, weights))
        spent = _played_seconds(
            kind, num_runs, frame.microbatches, seconds, carried, latency, tails
        )
    launched = float(hosts.reshape(-1, num_runs).sum(axis=0).max())
    return max(spent + _tie_seconds(prices, stages), frame.microbatches * launched)


def _played_seconds(
    kind: ScheduleKind,
    num_runs: int,
    microbatches: int,
    seconds: Floats,
    carried: Floats,
    latency: Floats,
    tails: Floats,
) -> float:
    """By playing the schedule of some microbatches; the others follow at the slowest's pace."""
    in_round = microbatches // max(1, microbatches // num_runs)
    few = min(microbatches, _ROUNDS * in_round)
    played = replay_seconds(kind, num_runs, few, seconds, carried, latency, tails)
    if few == microbatches:
        return played
    computes = seconds.sum(axis=1).reshape(-1, num_runs).sum(axis=0)
    ways = carried.copy()
    ways[-1] = 0.0  # nothing is sent on
    pace = max(float(computes.max()), float(ways.reshape(-1, num_runs).sum(axis=0).max()))
    return played + (microbatches - few) * pace


def _blocked_seconds(
    kind: ScheduleKind, microbatches: int, fills: Floats, shifts: Floats, tails: Floats
) -> float:
    """Where stages wait for what they send, the last one does, too: in 1F1B while a gradient is
    sent, or in both passes."""
    fronts = np.concatenate(([0.0], shifts[:-1]))
    fronts = fronts / 2 if kind is ScheduleKind.ONE_F_ONE_B else fronts
    loads = fills + np.maximum(shifts, fronts)
    return step_seconds(microbatches, (fills + shifts).tolist(), loads.tolist(), tails.tolist())


def _tie_seconds(prices: LayerPrices, stages: Sequence[DraftStage]) -> float:
    """Once a step: the first and the last stage exchange the gradients of tied weights."""
    first, last = stages[0], stages[-1]
    if prices.stack.tied_bytes <= 0 or first.offset == last.offset:
        return 0.0
    # Every context member has a copy, which it sends whole.
    sent = max(prices.stack.tied_bytes / stage.option.team.tensor for stage in (first, last))
    size = min(first.size, last.size)
    latency, per_byte = prices.tiers.shift_line(first.offset, size, last.offset - first.offset)
    return (2 if prices.runtime.adds_tied_in_one else 1) * (latency + per_byte * sent)


def step_seconds(
    microbatches: int, fills: Sequence[float], loads: Sequence[float], tails: Sequence[float]
) -> float:
    """An estimate: the first microbatch passes all stages, the others follow at the pace of the
    slowest, and what happens once a step ends it."""
    last = int(np.argmax(np.array(loads) + np.array(tails) / microbatches))
    return sum(fills) + (microbatches - 1) * loads[last] + max(tails[0], tails[last])
