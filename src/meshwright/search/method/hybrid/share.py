"""Divides microbatches among replicas on devices of several types by what they take.

A replica computes as the slowest of its devices. Samples are whole, every replica has one at the
least, and the slowest replica of a stage is as fast as it can be by what layers take on each type.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from meshwright.plan.stage import DraftStage, Frame
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.option_price import Column
from meshwright.search.method.hybrid.space import HybridSpace
from meshwright.search.method.hybrid.table import samples_of
from meshwright.search.replica import divide_batch

_MAX_MOVES = 64
"""Samples that are moved one by one from the slowest replica, at the most."""


def share_samples(space: HybridSpace, draft: HybridDraft) -> HybridDraft:
    """The draft whose replicas get samples by their speed; the same where they are alike."""
    if len(space.cluster.type_names) == 1:
        return draft
    samples = tuple(divide_samples(space, draft.frame, stage) for stage in draft.stages)
    is_even = all(len(set(each)) == 1 for each in samples)
    return draft if is_even else replace(draft, samples=samples)


def divide_samples(space: HybridSpace, frame: Frame, stage: DraftStage) -> tuple[int, ...]:
    """What each replica of a stage gets of a microbatch."""
    team = stage.option.team
    each = int(samples_of(space.batch, frame, stage.size, team))
    types = _replica_types(space, frame, stage)
    kinds = [space.stack.layers[layer] for layer in range(stage.first, stage.after)]
    counts = np.bincount(kinds, minlength=len(space.stack.kinds))

    @cache
    def seconds(names: tuple[str, ...], samples: int) -> float:
        """What a replica takes for so many samples."""
        found = []
        for name in names:
            rows = space.prices.rows(team, stage.option.recompute, name, float(samples))
            found.append(float(counts @ (rows[:, Column.FORWARD] + rows[:, Column.BACKWARD])))
        return max(found)

    return level_samples(types, each * len(types), seconds)


def level_samples(
    types: Sequence[tuple[str, ...]],
    total: int,
    seconds: Callable[[tuple[str, ...], int], float],
) -> tuple[int, ...]:
    """So many samples among replicas of these types, each one at least: in proportion to speed,
    then moved one by one from the slowest as long as that helps."""
    each = total // len(types)
    speed = np.array([1 / max(seconds(kind, each), 1e-15) for kind in types])
    samples = np.round(divide_batch(total, speed) * total).astype(np.int64)
    while samples.min() < 1:
        samples[samples.argmax()] -= 1
        samples[samples.argmin()] += 1
    for _ in range(_MAX_MOVES):
        spent = [seconds(kind, int(own)) for kind, own in zip(types, samples, strict=True)]
        slowest = int(np.argmax(spent))
        more = [seconds(kind, int(own) + 1) for kind, own in zip(types, samples, strict=True)]
        taker = int(np.argmin(more))
        if samples[slowest] == 1 or more[taker] >= spent[slowest]:
            break
        samples[slowest] -= 1
        samples[taker] += 1
    return tuple(samples.tolist())


def _replica_types(space: HybridSpace, frame: Frame, stage: DraftStage) -> list[tuple[str, ...]]:
    """The types of each replica's devices, in the order of the part's replicas."""
    order, width = space.prices.tiers.order, stage.option.team.num_devices
    pod = len(order) // frame.pods
    names = [
        space.cluster.devices[number].type
        for each in range(frame.pods)
        for number in order[each * pod + stage.offset : each * pod + stage.offset + stage.size]
    ]
    return [tuple(sorted(set(names[at : at + width]))) for at in range(0, len(names), width)]
