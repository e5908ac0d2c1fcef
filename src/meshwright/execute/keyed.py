"""Finds the keys of random numbers that a rank needs: those of its ops that draw, for the samples
that it runs them on."""

import torch

from meshwright.execute.item import Part, RunSegment
from meshwright.execute.lowered import Lowered
from meshwright.execute.random.keys import Keys
from meshwright.execute.steps import TracedSteps


def find_keys(
    part: Part, steps: TracedSteps, lowered: Lowered, seed: int, device: torch.device
) -> Keys:
    """Room for the keys of what a rank runs."""
    ops: set[int] = set()
    samples: set[int] = set()
    rows, first_rows = lowered.rows, lowered.program.instructions["rows_from"]
    for item in part.items:
        if not isinstance(item, RunSegment) or item.segment is None:
            continue
        row = rows.bound(first_rows[item.instructions[0]])
        for line in item.segment.lines:
            draw = steps.draws(line.samples).get(line.op)
            if draw is not None:
                first = rows.first_sample(item.microbatch, row, line.samples)
                ops.add(draw.op)
                samples.update(range(first, first + line.samples))
    return Keys(seed, ops, samples, device)
