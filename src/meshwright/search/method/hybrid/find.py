"""Fills a pool with the drafts of all frames, the most promising frames first."""

from collections.abc import Sequence

from meshwright.plan.part import ScheduleKind
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.draft import Pool
from meshwright.search.method.hybrid.frame import FrameSearch
from meshwright.search.method.hybrid.interleave import interleave
from meshwright.search.method.hybrid.space import HybridSpace, list_cells, list_mixed
from meshwright.search.method.hybrid.table import option_fits

_INTERLEAVED = 8
"""Drafts that are also tried with several chunks a device."""
_FEW_DEVICES, _UNIFORM_CELLS = 256, 6
"""Up to so many devices, frames and sizes that are also tried with one option for all stages; on
more, simulations take too long to make use of that."""


def find_drafts(space: HybridSpace, pool: Pool, clock: Clock) -> None:
    """Stages of one size in every frame whose bound is below what the pool keeps, stages of
    different sizes in the best frames, and chunks on the devices of the best drafts."""
    kinds = [each for each in space.scope.schedules if each is not ScheduleKind.INTERLEAVED]
    # Interleaved drafts begin from others, which are dropped where they may not be used.
    seeds = pool if kinds else Pool()
    kinds = kinds or [ScheduleKind.ONE_F_ONE_B]

    def limit() -> float:
        return seeds.limit

    for cell in list_cells(space):
        if cell.bound >= seeds.limit or (seeds.kept and clock.is_over):
            break
        options = cell.options(space, seeds.limit)
        search = FrameSearch(space.layouts, space.shapes, cell.frame, [cell.size], options)
        found = list(search.drafts(kinds, limit))
        if not all(map(space.allows, found)):
            legal = [each for each in options if not each.is_plain]
            search = FrameSearch(space.layouts, space.shapes, cell.frame, [cell.size], legal)
            found += search.drafts(kinds, limit)
        for draft in found:
            seeds.offer(draft)
    _add_uniform(space, seeds, kinds, clock)
    for frame, sizes in list_mixed(space, seeds.drafts()) if space.scope.mixed else ():
        if clock.is_over:
            break
        search = FrameSearch(space.layouts, space.shapes, frame, sizes, space.options)
        for draft in search.drafts(_cheapest(kinds), limit):
            seeds.offer(draft)
    if ScheduleKind.INTERLEAVED in space.scope.schedules:
        is_tied = space.stack.shares_groups
        legal = [each for each in space.options if not (is_tied and each.is_plain)]
        for draft in seeds.drafts()[:_INTERLEAVED]:
            for each in interleave(
                space.layouts, space.shapes, legal, draft, space.scope.interleaved_chunks
            ):
                pool.offer(each)
    if seeds is not pool and space.scope.allows_one_chunk:
        for draft in seeds.drafts():
            if len(draft.stages) == 1:  # which all schedules run alike
                pool.offer(draft)


def _add_uniform(
    space: HybridSpace, pool: Pool, kinds: Sequence[ScheduleKind], clock: Clock
) -> None:
    """In the best frames, all stages with one option each: what is least for every stage by itself
    need not be for all together, which only the simulator can tell."""
    if space.cluster.num_devices > _FEW_DEVICES:
        return
    best = dict.fromkeys((each.frame, each.stages[0].size) for each in pool.drafts())
    for frame, size in list(best)[:_UNIFORM_CELLS]:
        for option in space.options:
            if clock.is_over:
                return
            if option_fits(space.prices, frame, size, option):
                search = FrameSearch(space.layouts, space.shapes, frame, [size], [option])
                for draft in search.drafts(kinds, lambda: pool.limit):
                    pool.offer(draft)


def _cheapest(kinds: Sequence[ScheduleKind]) -> Sequence[ScheduleKind]:
    """One schedule for stages of different sizes, whose dynamic programme takes a while: 1F1B,
    which holds fewest microbatches, where it may be used."""
    return [ScheduleKind.ONE_F_ONE_B] if ScheduleKind.ONE_F_ONE_B in kinds else kinds[:1]
