"""Proposes drafts: the best stages of every frame, and then every setting by itself.

A setting is a frame, a number of devices a stage, a team and a ZeRO stage. Dynamic programmes over
all options choose for each stage what looks best to a model, so that a scope in which some of these
may not be used could lead to a plan that is faster than the model says. Hence every setting whose
bound is below what is known gets drafts of its own.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import partial

from meshwright.plan.part import ScheduleKind
from meshwright.plan.stage import Option
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.cell import (
    Cell,
    Limit,
    Setting,
    list_cells,
    list_settings,
)
from meshwright.search.method.hybrid.draft import HybridDraft, Pool
from meshwright.search.method.hybrid.frame import FrameSearch
from meshwright.search.method.hybrid.interleave import ChunkSearch, Cuts
from meshwright.search.method.hybrid.space import HybridSpace, list_mixed

_ALIKE = 0.1
"""The logarithm of the ratio below which two bounds are about the same."""
_INTERLEAVED = 8
"""Drafts of the first round that are also tried with several chunks a device."""
_FIRST_CHUNKS = (2, 3, 4, 6, 8)
"""Chunks of the first round."""


def find_drafts(space: HybridSpace, pool: Pool, clock: Clock, *, is_near: bool = False) -> None:
    """Stages of one size in every frame whose bound is below what the pool keeps, stages of
    different sizes in the best frames, and chunks on the devices of the best drafts.

    `is_near`: a plan is there already, and stages of different sizes are not looked for."""
    kinds = plain_kinds(space)
    # Interleaved drafts begin from others, which are dropped where they may not be used.
    seeds = pool if kinds else Pool()
    kinds = kinds or [ScheduleKind.ONE_F_ONE_B]

    def limit() -> float:
        return seeds.limit

    for cell in _simplest_first(space, list_cells(space)):
        if seeds.kept and clock.is_over:
            break
        if cell.bound >= seeds.limit:
            continue
        settings = list_settings(space, cell, kinds, lambda _: seeds.limit)
        below = {option for _, each in settings for option in each.options}
        options = [option for option in space.options if option in below]
        if not options:
            continue
        search = FrameSearch(space.layouts, space.shapes, cell.frame, [cell.size], options)
        found = list(search.drafts(kinds, limit))
        if not all(map(space.allows, found)):
            legal = [each for each in options if not each.is_plain]
            search = FrameSearch(space.layouts, space.shapes, cell.frame, [cell.size], legal)
            found += search.drafts(kinds, limit)
        for draft in found:
            seeds.offer(draft)
    has_mixed = space.scope.mixed and not is_near
    for frame, sizes in list_mixed(space, seeds.drafts()) if has_mixed else ():
        if clock.is_over:
            break
        search = FrameSearch(space.layouts, space.shapes, frame, sizes, space.options)
        for draft in search.drafts(_cheapest(kinds), limit):
            seeds.offer(draft)
    if ScheduleKind.INTERLEAVED in space.scope.schedules:
        _interleave_best(space, seeds.drafts()[:_INTERLEAVED], pool, clock)
    if seeds is not pool and space.scope.allows_one_chunk:
        for draft in seeds.drafts():
            if len(draft.stages) == 1:  # which all schedules run alike
                pool.offer(draft)


def _simplest_first(space: HybridSpace, cells: Sequence[Cell]) -> list[Cell]:
    """By bound, and of those with about the same those with few stages, which take least to cut."""
    least = min((cell.bound for cell in cells), default=1.0)

    def rank(cell: Cell) -> tuple[int, int]:
        ratio = cell.bound / least if 0 < least < math.inf else 1.0
        return int(min(math.log(max(ratio, 1.0)), 1e3) / _ALIKE), cell.num_runs(space)

    return sorted(cells, key=rank)


def plain_kinds(space: HybridSpace) -> list[ScheduleKind]:
    """The schedules of one stage on each run of devices."""
    return [each for each in space.scope.schedules if each is not ScheduleKind.INTERLEAVED]


def _cheapest(kinds: Sequence[ScheduleKind]) -> Sequence[ScheduleKind]:
    """One schedule for stages of different sizes, whose dynamic programme takes a while: 1F1B,
    which holds fewest microbatches, where it may be used."""
    return [ScheduleKind.ONE_F_ONE_B] if ScheduleKind.ONE_F_ONE_B in kinds else kinds[:1]


def _interleave_best(
    space: HybridSpace, drafts: Sequence[HybridDraft], pool: Pool, clock: Clock
) -> None:
    """On the devices of drafts whose stages have one size and one team, all of the options."""
    for draft in drafts:
        sizes = {stage.size for stage in draft.stages}
        teams = {stage.option.team for stage in draft.stages}
        num_runs = len(draft.stages)
        if num_runs < 2 or len(sizes) > 1 or len(teams) > 1:
            continue
        options = [each for each in _legal(space) if each.team in teams]
        most = space.stack.num_layers // num_runs
        chunks = space.scope.interleaved_chunks(most)
        first = [each for each in chunks if each in _FIRST_CHUNKS] or chunks[:1]
        search = FrameSearch(
            space.layouts, space.shapes, draft.frame, sorted(sizes), options, is_near=False
        )
        for count in first:
            if pool.kept and clock.is_over:
                return
            for each in ChunkSearch(search=search, num_runs=num_runs).drafts(count):
                pool.offer(each)


def _legal(space: HybridSpace) -> list[Option]:
    """The options that plans of several stages may have throughout."""
    return [each for each in space.options if not (space.stack.shares_groups and each.is_plain)]


class Proposals:
    """Settings from the least bound on, and their drafts."""

    def __init__(self, space: HybridSpace, limit: Limit, clock: Clock) -> None:
        """`limit`: see `Limit`; it may fall in the meantime."""
        self.space = space
        self.limit = limit
        self.clock = clock
        self._legal = set(_legal(space))
        self._known: dict[tuple[object, ...], tuple[Cuts, ...]] = {}
        self._queue: list[tuple[float, int, Cell | Setting]] = []
        self._count = 0
        self._has_drafts = False
        for cell in list_cells(space):
            self._push(cell.least if _is_chunked(space) else cell.bound, cell)

    def _push(self, bound: float, wanted: Cell | Setting) -> None:
        self._count += 1
        heapq.heappush(self._queue, (bound, self._count, wanted))

    def drafts(self) -> Iterator[list[HybridDraft]]:
        """Those of one setting after the other, until none that is left may be below the limit, or
        there are some and the time is over."""
        highest = self.space.scope.schedules
        while self._queue and self._queue[0][0] < max(map(self.limit, highest)):
            if self._has_drafts and self.clock.is_over:
                return
            bound, _, wanted = heapq.heappop(self._queue)
            if isinstance(wanted, Cell):
                self._open(wanted)
            elif bound < self.limit(wanted.kind):
                drafts = list(filter(self.space.allows, self._drafts_of(wanted)))
                self._has_drafts = self._has_drafts or bool(drafts)
                yield drafts

    def _open(self, cell: Cell) -> None:
        """Queue the settings of a cell: by schedule all options, and those of each team and ZeRO
        stage."""
        kinds: Sequence[ScheduleKind] = self.space.scope.schedules
        if cell.num_runs(self.space) == 1:  # all schedules run it alike
            kinds = [ScheduleKind.ONE_F_ONE_B] if self.space.scope.allows_one_chunk else []
        settings = list_settings(self.space, cell, kinds, self.limit)
        for bound, setting in settings:
            self._push(bound, setting)
        for kind in (each for each in kinds if each is not ScheduleKind.INTERLEAVED):
            own = [(bound, each) for bound, each in settings if each.kind is kind]
            if len(own) > 1:
                options = tuple(option for _, each in own for option in each.options)
                self._push(min(bound for bound, _ in own), Setting(cell, kind, options))

    def _drafts_of(self, setting: Setting) -> Iterator[HybridDraft]:
        frame, size = setting.cell.frame, setting.cell.size
        is_chunked = setting.kind is ScheduleKind.INTERLEAVED
        options = [each for each in setting.options if not is_chunked or each in self._legal]
        search = FrameSearch(
            self.space.layouts, self.space.shapes, frame, [size], options,
            is_near=not is_chunked,
        )  # fmt: skip
        if not search.sizes:
            return
        if is_chunked:
            yield from self._interleaved(setting, search)
        else:
            yield from self._plain(setting, search)

    def _plain(self, setting: Setting, search: FrameSearch) -> Iterator[HybridDraft]:
        """What looks best for each stage; where that differs and there are few options, each of
        them everywhere, too: what is least for every stage by itself need not be for all."""

        def limit() -> float:
            return self.limit(setting.kind)

        found = list(search.drafts([setting.kind], limit))
        if not all(map(self.space.allows, found)):
            legal = search.only([each for each in setting.options if each in self._legal])
            found += legal.drafts([setting.kind], limit)
        yield from found
        used = {stage.option for draft in found for stage in draft.stages}
        is_one = len({(option.team, option.zero) for option in setting.options}) == 1
        for option in setting.options if len(used) > 1 and is_one else ():
            yield from search.only([option]).drafts([setting.kind], limit)

    def _interleaved(self, setting: Setting, search: FrameSearch) -> Iterator[HybridDraft]:
        """Every number of chunks, on as many runs of devices as there are."""
        num_runs = setting.cell.num_runs(self.space)
        chunks = ChunkSearch(search=search, num_runs=num_runs, known=self._known)
        most = self.space.stack.num_layers // num_runs
        for count in self.space.scope.interleaved_chunks(most):
            if self._has_drafts and self.clock.is_over:
                return
            yield from chunks.drafts(count)


def propose_mixed(
    space: HybridSpace, drafts: Sequence[HybridDraft], limit: Limit, clock: Clock
) -> Iterator[HybridDraft]:
    """Stages of different sizes in the frames of drafts, from the first on."""
    kinds = _cheapest(plain_kinds(space))
    for frame, sizes in list_mixed(space, drafts) if space.scope.mixed else ():
        for kind in kinds:
            if clock.is_over:
                return
            search = FrameSearch(space.layouts, space.shapes, frame, sizes, space.options)
            yield from search.drafts([kind], partial(limit, kind))


def _is_chunked(space: HybridSpace) -> bool:
    return ScheduleKind.INTERLEAVED in space.scope.schedules
