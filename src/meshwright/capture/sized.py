"""The calls of a step at several numbers of samples, which microbatches and unequal replicas have.

Decides which numbers these are where nobody says.
"""

from collections import Counter
from collections.abc import Sequence

import torch

from meshwright.capture.capture import trace_workload
from meshwright.capture.profile import distinct_calls
from meshwright.capture.workload import Workload
from meshwright.errors import InputError

MOST_BATCHES = 16
"""Each is one more trace of the step, and its kernels are measured again."""


def sized_calls(
    workload: Workload,
    optimizer: str | torch.optim.Optimizer,
    autocast: str | torch.dtype | None = None,
    batches: Sequence[int] | None = None,
) -> dict[int, Counter[str]]:
    """Every kernel call of a step, and how often it occurs, by the number of samples.

    The workload's own number comes first, then `batches`; None: halves of it down to one sample,
    and no further than the model can (batch norm needs two).
    """
    size = workload.num_samples
    if batches is not None and len(batches) > MOST_BATCHES:
        raise InputError(f"batches: must be at most {MOST_BATCHES}, got {len(batches):,}")
    found = {size: distinct_calls(trace_workload(workload, optimizer, autocast))}
    for samples in find_halves(size) if batches is None else batches:
        if samples in found:
            continue
        try:
            trace = trace_workload(workload.at_batch(samples), optimizer, autocast)
        except InputError:
            if batches is None:
                break
            raise
        found[samples] = distinct_calls(trace)
    return found


def find_halves(size: int) -> tuple[int, ...]:
    """The size's half, the half of that, and so on, rounded up, down to one."""
    found = []
    while size > 1:
        size = -(-size // 2)
        found.append(size)
    return tuple(found[:MOST_BATCHES])
