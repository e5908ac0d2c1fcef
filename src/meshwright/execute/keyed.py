"""Finds the keys of random numbers that a rank needs: those of its ops that draw, for the samples
that it runs them on."""

import torch

from meshwright.execute.item import RankPart, RunSegment, Segment
from meshwright.execute.lowered import Lowered
from meshwright.execute.random.keys import SampleKeys
from meshwright.execute.steps import TracedSteps


def find_keys(
    part: RankPart, steps: TracedSteps, lowered: Lowered, seed: int, device: torch.device
) -> SampleKeys:
    """Room for the keys of what a rank runs."""
    ops: set[int] = set()
    samples: set[int] = set()
    # By segment, which serves many microbatches: on how many samples its ops draw.
    counts: dict[int, set[int]] = {}
    rows, first_rows = lowered.rows, lowered.program.instructions["rows_from"]
    for item in part.items:
        if not isinstance(item, RunSegment) or item.segment is None:
            continue
        if id(item.segment) not in counts:
            drawn = _find_drawn(item.segment, steps)
            ops |= {op for op, _ in drawn}
            counts[id(item.segment)] = {count for _, count in drawn}
        row = rows.bound(first_rows[item.instructions[0]])
        for count in counts[id(item.segment)]:
            first = rows.first_sample(item.microbatch, row, count)
            samples.update(range(first, first + count))
    return SampleKeys(seed, ops, samples, device)


def _find_drawn(segment: Segment, steps: TracedSteps) -> set[tuple[int, int]]:
    """The ops of a segment that draw, and on how many samples they run."""
    found = set()
    for line in segment.lines:
        draw = steps.draws(line.samples).get(line.op)
        if draw is not None:
            found.add((draw.op, line.samples))
    return found
