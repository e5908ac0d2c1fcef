"""Interleaved drafts: every run of devices holds several chunks of layers, S stages apart.

Narayanan et al., 2021, section 2.2: with v chunks a device the bubble is a v-th, transfers are v
times as many, and more microbatches are in flight. All chunks have the option of the draft that is
interleaved, which may not fit any more; then other recomputation and ZeRO stages are tried.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from meshwright.plan.part import ScheduleKind
from meshwright.plan.stage import DraftStage, Option, can_interleave
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.frame import FrameSearch, Layouts, StagePlace, tie_seconds
from meshwright.search.method.hybrid.scope import CHUNKS
from meshwright.search.method.hybrid.shape import Shapes
from meshwright.search.method.hybrid.stage_chain import least_load, read_chain
from meshwright.search.method.hybrid.table import OptionTable


def interleave(
    layouts: Layouts,
    shapes: Shapes,
    options: Sequence[Option],
    draft: HybridDraft,
    several: Sequence[int] = CHUNKS,
) -> Iterator[HybridDraft]:
    """Drafts with several chunks a device on the devices of a draft whose stages are alike;
    `several` are the numbers of chunks to try."""
    sizes = {stage.size for stage in draft.stages}
    teams = {stage.option.team for stage in draft.stages}
    num_stages, microbatches = len(draft.stages), draft.frame.microbatches
    if num_stages < 2 or len(sizes) > 1 or len(teams) > 1:
        return
    if not can_interleave(microbatches, num_stages):
        return
    wanted = [option for option in options if option.team in teams]
    num_layers = len(shapes.shape_of) - 1
    for chunks in several:
        if chunks * num_stages <= num_layers:
            search = FrameSearch(layouts, shapes, draft.frame, sorted(sizes), wanted, chunks)
            best: HybridDraft | None = None
            for number in range(len(search.table_at(0, search.sizes[0]).options)):
                made = _cut(search, draft, number, chunks)
                if made and (best is None or made.estimate_seconds < best.estimate_seconds):
                    best = made
            if best is not None:
                yield best


def _cut(search: FrameSearch, draft: HybridDraft, number: int, chunks: int) -> HybridDraft | None:
    """Layers spread over all chunks as evenly as can be, one option everywhere; None: too full."""
    num_stages = len(draft.stages)
    total = chunks * num_stages
    places = [search.layouts.place(draft.frame, stage.offset, stage.size) for stage in draft.stages]
    tables = [search.table_of(place) for place in places]
    if any(number >= len(table.options) for table in tables):
        return None
    loads = np.stack([tables[0].load[number][None].repeat(total, axis=0)])
    units = np.zeros((1, total + 1), dtype=np.int64)
    one = np.ones(1, dtype=np.int64)
    value, *_ = least_load(loads, units, search.shapes.shape_of, one, np.inf, False)
    if not value[total, 0, 0] < np.inf:
        return None
    limit = float(value[total, 0, 0]) * (1 + 1e-12)
    _, layers, picked = least_load(loads, units, search.shapes.shape_of, one, limit, True)
    chain = read_chain(layers, picked, one, total, total)
    cuts = [(first, after) for first, after, *_ in chain]
    shape = [int(search.shapes.shape_of[first, after]) for first, after in cuts]
    if not _fits(draft, places, tables, number, shape, chunks):
        return None
    stages = tuple(
        DraftStage(
            first=first,
            after=after,
            offset=draft.stages[chunk % num_stages].offset,
            size=draft.stages[chunk % num_stages].size,
            option=tables[0].options[number],
        )
        for chunk, (first, after) in enumerate(cuts)
    )
    return HybridDraft(
        frame=draft.frame,
        kind=ScheduleKind.INTERLEAVED,
        stages=stages,
        estimate_seconds=_estimate(draft, places, tables, number, shape, chunks)
        + tie_seconds(search.layouts.prices, draft.frame, stages),
    )


def _fits(
    draft: HybridDraft, places: Sequence[StagePlace], tables: Sequence[OptionTable], number: int,
    shape: Sequence[int], chunks: int,
) -> bool:  # fmt: skip
    """Whether every device holds its chunks and what is in flight of them."""
    num_stages, microbatches = len(draft.stages), draft.frame.microbatches
    in_round = microbatches // max(1, microbatches // num_stages)
    for stage, (place, table) in enumerate(zip(places, tables, strict=True)):
        own = [shape[chunk * num_stages + stage] for chunk in range(chunks)]
        warm_up = (chunks - 1) * in_round + 2 * (num_stages - 1 - stage) + 1
        held = min(warm_up, chunks * microbatches)
        saved = held * max(float(table.saved_bytes[number, each]) for each in own)
        passing = max(float(table.passing_bytes[number, each]) for each in own)
        fixed = sum(float(table.fixed_bytes[number, each]) for each in own)
        if fixed + passing + saved > place.usable_bytes:
            return False
    return True


def _estimate(
    draft: HybridDraft, places: Sequence[StagePlace], tables: Sequence[OptionTable], number: int,
    shape: Sequence[int], chunks: int,
) -> float:  # fmt: skip
    num_stages, microbatches = len(draft.stages), draft.frame.microbatches
    fills, loads, tails, hosts, firsts = [], [], [], [], []
    for stage, (place, table) in enumerate(zip(places, tables, strict=True)):
        own = [shape[chunk * num_stages + stage] for chunk in range(chunks)]
        sent = [float(table.output_bytes[number, each]) for each in own]
        shifts = [2 * (place.latency_seconds + place.seconds_per_byte * each) for each in sent]
        loads.append(sum(float(table.fill[number, each]) for each in own))
        fills.append(sum(shifts) + loads[-1])
        firsts.append(shifts[0] + float(table.fill[number, own[0]]))
        hosts.append(sum(float(table.host[number, each]) for each in own))
        tails.append(sum(float(table.tail[number, each]) for each in own))
    # Transfers hide behind other chunks' work but while the first chunks fill the pipeline. Few
    # microbatches do not fill it: each passes all chunks, the next a chunk behind.
    before = [0.0, *accumulate(firsts[:-1])]
    steady = max(a + microbatches * b for a, b in zip(before, loads, strict=True))
    passing = sum(fills) + (microbatches - 1) * max(loads) / chunks
    return max(max(steady, passing) + max(tails), microbatches * max(hosts))
