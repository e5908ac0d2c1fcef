"""Measured times of ops at several numbers of samples: how they are kept, and read in between.

A ladder has a rung for each number of samples besides the graph's batch. Knows nothing of devices
and of models of times; where an op has no rung, the caller finds its time otherwise.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshwright.array import Bools, Floats, Ints, sum_by

Ladder = Mapping[float, Floats]
"""By number of samples the seconds of every op; NaN: not measured."""

Times = Mapping[str, Floats]
Ladders = Mapping[str, Ladder]


def change_times(seconds: Times, ladders: Ladders, change: Callable[[Floats], Floats]) -> Any:
    """The columns `seconds` and `ladders` of a graph, each array of them changed alike."""
    return {
        "seconds": {kind: change(each) for kind, each in seconds.items()},
        "ladders": {
            kind: {samples: change(each) for samples, each in ladder.items()}
            for kind, ladder in ladders.items()
        },
    }


def list_times(seconds: Times, ladders: Ladders) -> list[Floats]:
    """All arrays of measured times, in the order in which `change_times` takes them."""
    rungs = (each for ladder in ladders.values() for each in ladder.values())
    return [*seconds.values(), *rungs]


def read_ladder(whole: Floats, batch: float, ladder: Ladder, samples: float) -> Floats:
    """The seconds of ops at a number of samples, NaN where an op has no rung.

    `whole`: their seconds at `batch`. Measured times are noisy, and bounds rely on it that a share
    of the batch takes no more than the whole and no less than its share. So times are taken rung by
    rung, from the batch downwards and upwards, each moved as little as that needs to hold between
    neighbours; the batch's own stays. Between rungs and beyond the last ones times are lines, for
    which it then holds too: a kernel launches, and then takes as long for every further sample.
    """
    sizes = np.array(sorted({*ladder, batch}))
    times = np.stack([whole if size == batch else ladder[size] for size in sizes.tolist()])
    times[:, ~np.isfinite(whole)] = np.nan
    known = ~np.isnan(times)
    pattern = (known * (1 << np.arange(len(sizes), dtype=np.int64))[:, None]).sum(axis=0)
    found = np.full(len(whole), np.nan)
    for each in np.unique(pattern).tolist():
        rows = [row for row in range(len(sizes)) if each >> row & 1]
        if len(rows) > 1:
            ops = np.flatnonzero(pattern == each)
            own = sizes[rows]
            cleaned = clean_times(own, times[rows][:, ops], own.tolist().index(batch))
            found[ops] = _between(own, cleaned, samples)
    return found


def clean_times(sizes: Floats, times: Floats, anchor: int) -> Floats:
    """Times that fall neither with more samples nor by more than in proportion with fewer.

    A row a number of samples, rising; the row `anchor` stays as it is.
    """
    cleaned = times.copy()
    for row in range(anchor - 1, -1, -1):
        after = cleaned[row + 1]
        cleaned[row] = np.clip(times[row], after * (sizes[row] / sizes[row + 1]), after)
    for row in range(anchor + 1, len(sizes)):
        before = cleaned[row - 1]
        cleaned[row] = np.clip(times[row], before, before * (sizes[row] / sizes[row - 1]))
    return cleaned


def _between(sizes: Floats, times: Floats, samples: float) -> Floats:
    """Lines between neighbours, the outermost of them continued."""
    row = int(np.clip(np.searchsorted(sizes, samples) - 1, 0, len(sizes) - 2))
    low, high = sizes[row], sizes[row + 1]
    if samples == high:
        own: Floats = times[row + 1]
        return own
    share = (samples - low) / (high - low)
    line: Floats = times[row] + (times[row + 1] - times[row]) * share
    return np.maximum(line, 0.0)  # the last bits of a line through zero


def move_batch(
    seconds: Times, ladders: Ladders, batches: tuple[float, float], growth: Floats, divides: Bools
) -> Any:
    """The columns `seconds` and `ladders` of a graph on another batch, the second of two.

    `growth`: by what times grow of ops that have no rung, `divides`: the ops that have a share of
    their work on a share of the samples. The time at the old batch becomes a rung.
    """
    old, new = batches
    moved, left = {}, {}
    for kind, whole in seconds.items():
        moved[kind] = whole * growth
        ladder = ladders.get(kind)
        if ladder:
            read = read_ladder(whole, old, ladder, new)
            is_read = divides & ~np.isnan(read)
            moved[kind] = np.where(is_read, read, moved[kind])
            rungs = {samples: each for samples, each in ladder.items() if samples != new}
            left[kind] = {**rungs, old: np.where(is_read, whole, np.nan)}
    return {"seconds": moved, "ladders": left}


def merge_ladder(
    whole: Floats, batch: float, ladder: Ladder, label: Ints, count: int, divides: Bools
) -> dict[float, Floats]:
    """The ladder of merged ops: sums over members, of which those without a rung take the part of
    their time that they have of the samples. A merged op whose members all lack a rung lacks it.

    `divides`: the ops that have a share of their work on a share of the samples.
    """
    merged = {}
    for samples, each in ladder.items():
        part = whole * np.where(divides, samples / batch, 1.0)
        total = sum_by(label, np.where(np.isnan(each), part, each), count)
        measured = sum_by(label, ~np.isnan(each), count) > 0
        merged[samples] = np.where(measured, total, np.nan)
    return merged
