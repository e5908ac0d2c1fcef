"""Neighbours of a pipeline: other boundaries, replicas, microbatches, schedules and devices.

What the sums over stages cannot see, such as transfers that share a link or hide behind compute, is
found by simulating small changes of the best pipeline so far. Every neighbour is a legal pipeline
where the pipeline is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from meshwright.array import Ints
from meshwright.plan.plan import ScheduleKind
from meshwright.search.instance import Instance
from meshwright.search.method.pipeline.block import Blocks
from meshwright.search.method.pipeline.candidate import (
    Candidate,
    Homes,
    StageCut,
    scheduled,
    suited_kinds,
)

_SIZES = (1, 2, 4, 8, 16, 32)
"""Blocks that move over a boundary at once."""
_MAX_SHARED = 8
"""Stages, where each is tried on the devices of each other."""


def neighbours(
    instance: Instance, blocks: Blocks, candidate: Candidate, choices: Sequence[int]
) -> Iterator[Candidate]:
    """Small changes first; `choices`: numbers of microbatches that may be used."""
    nearest = sorted(choices, key=lambda count: abs(np.log(count / candidate.microbatches)))
    yield from scheduled(candidate.cut, candidate.homes, nearest[:5], "schedule")
    stage = _stage_of_block(blocks, candidate.cut)
    if stage is not None:
        yield from _moved_boundaries(blocks, candidate, stage)
    if len(_own_homes(blocks, candidate)) == len(set(candidate.homes)):
        yield from _other_replicas(instance, blocks, candidate)
        if stage is not None:
            yield from _other_stages(instance, blocks, candidate, stage)
    if not blocks.has_tail and 2 < candidate.cut.num_stages <= _MAX_SHARED:
        yield from _shared_homes(candidate)


def _own_homes(blocks: Blocks, candidate: Candidate) -> Homes:
    """Of every stage but the wrapped one, which has the first one's."""
    homes = candidate.homes
    return homes[:-1] if blocks.has_tail and len(homes) > 1 else homes


def _shared_homes(candidate: Candidate) -> Iterator[Candidate]:
    """A stage goes to the devices of another, which then hold two intervals, or more."""
    homes = candidate.homes
    for number, own in enumerate(homes):
        for other in dict.fromkeys(homes):
            if other != own:
                changed = (*homes[:number], other, *homes[number + 1 :])
                yield replace(candidate, homes=changed, kind=ScheduleKind.GPIPE, origin="share")


def _stage_of_block(blocks: Blocks, cut: StageCut) -> Ints | None:
    """None where these stages divide a block, or wrap around otherwise than blocks do."""
    stage = np.full(blocks.num_blocks, -1, dtype=np.int32)
    kept = ~blocks.is_wrapped
    stage[blocks.block_of_op[kept]] = cut.stage_of_op[kept]
    whole = blocks.stage_of_op(stage)
    return stage if np.array_equal(whole, cut.stage_of_op) else None


def _with_stages(
    blocks: Blocks, candidate: Candidate, stage: Ints, homes: Homes, origin: str
) -> Candidate:
    """`homes`: of every stage but the wrapped one."""
    if blocks.has_tail and len(homes) == 1:  # one stage after all
        cut = StageCut.of(candidate.cut.graph, np.zeros_like(candidate.cut.stage_of_op))
    else:
        cut = StageCut.of(candidate.cut.graph, blocks.stage_of_op(stage))
        homes = (*homes, homes[0]) if blocks.has_tail else homes
    fitting = suited_kinds(cut.num_stages, homes, candidate.microbatches)
    kind = candidate.kind if candidate.kind in fitting else fitting[0]
    return replace(candidate, cut=cut, homes=homes, kind=kind, origin=origin)


def _moved_boundaries(blocks: Blocks, candidate: Candidate, stage: Ints) -> Iterator[Candidate]:
    """Blocks at the end of a stage join the next one, or at its start the one before.

    The last blocks of a stage in a topological order are followed by none of the others.
    """
    homes = _own_homes(blocks, candidate)
    for number in range(int(stage.max()) + 1):
        inside = np.flatnonzero(stage == number)
        for size in _SIZES:
            if size >= len(inside):
                break
            for target, moving in ((number + 1, inside[-size:]), (number - 1, inside[:size])):
                if 0 <= target <= stage.max():
                    changed = stage.copy()
                    changed[moving] = target
                    yield _with_stages(blocks, candidate, changed, homes, "boundary")


def _other_replicas(
    instance: Instance, blocks: Blocks, candidate: Candidate
) -> Iterator[Candidate]:
    """A device goes to another stage, or one that is not used joins a stage."""
    homes = _own_homes(blocks, candidate)
    used = {device for home in homes for device in home}
    idle = [device for device in range(instance.num_devices) if device not in used]
    for target, home in enumerate(homes):
        for source, other in enumerate(homes):
            if source != target and len(other) > 1:
                device = _nearest(instance, other, home)
                changed = list(homes)
                changed[source] = tuple(each for each in other if each != device)
                changed[target] = (*home, device)
                yield _with_homes(candidate, tuple(changed))
                yield _with_homes(candidate, _repacked(changed))
        if idle:
            changed = list(homes)
            changed[target] = (*home, _nearest(instance, idle, home))
            yield _with_homes(candidate, tuple(changed))


def _with_homes(candidate: Candidate, homes: Homes) -> Candidate:
    wraps = len(homes) < candidate.cut.num_stages
    return replace(candidate, homes=(*homes, homes[0]) if wraps else homes, origin="replicas")


def _repacked(homes: Sequence[tuple[int, ...]]) -> Homes:
    """The same numbers of replicas on the same devices, side by side, in the devices' order."""
    devices = sorted(device for home in homes for device in home)
    ends = np.cumsum([0, *map(len, homes)]).tolist()
    return tuple(tuple(devices[low:high]) for low, high in pairwise(ends))


def _nearest(instance: Instance, devices: Sequence[int], home: Sequence[int]) -> int:
    """The device with the widest way to a home; of equal ones the last."""
    rates = instance.bandwidth[np.ix_(list(devices), list(home))].min(axis=1)
    return int(devices[len(devices) - 1 - int(np.argmax(rates[::-1]))])


def _other_stages(
    instance: Instance, blocks: Blocks, candidate: Candidate, stage: Ints
) -> Iterator[Candidate]:
    """Two stages become one on the devices of both, or one becomes two on halves of its devices."""
    homes, last = _own_homes(blocks, candidate), int(stage.max())
    for number in range(last):
        joined = np.where(stage > number, stage - 1, stage).astype(np.int32)
        changed = (*homes[:number], homes[number] + homes[number + 1], *homes[number + 2 :])
        yield _with_stages(blocks, candidate, joined, changed, "join")
    if candidate.kind is not ScheduleKind.INTERLEAVED:
        for number in range(last + 1):
            yield from _divided(instance, blocks, candidate, stage, number)


def _divided(
    instance: Instance, blocks: Blocks, candidate: Candidate, stage: Ints, number: int
) -> Iterator[Candidate]:
    """The end, or the beginning, of a stage on some of its devices, as a stage of its own.

    As much of the stage as of its devices, and less, down to what is mostly weights: few devices
    for large weights save synchronisation.
    """
    homes = _own_homes(blocks, candidate)
    home, inside = homes[number], np.flatnonzero(stage == number)
    if len(inside) < 2 or len(home) < 2:
        return
    seconds = blocks.add_up(instance.seconds[:, int(instance.type_of[home[0]])])[inside]
    passed = np.cumsum(seconds) / max(float(seconds.sum()), 1e-300)
    seen: set[tuple[int, int]] = set()
    for count in (len(home) // 2, len(home) // 4, 1):
        for share in (count / len(home), count / len(home) / 4, 0.0):
            ends = int(np.searchsorted(passed, 1 - share)) + 1, int(np.searchsorted(passed, share))
            for is_end, place in ((True, ends[0]), (False, ends[1])):
                place = min(max(place, 1), len(inside) - 1)
                cut = len(home) - count if is_end else count
                if count < 1 or (place, cut) in seen:
                    continue
                seen.add((place, cut))
                changed = np.where(stage > number, stage + 1, stage).astype(np.int32)
                changed[inside[place:]] = number + 1
                halves = (home[:cut], home[cut:])
                divided = (*homes[:number], *halves, *homes[number + 1 :])
                yield _with_stages(blocks, candidate, changed, divided, "divide")
