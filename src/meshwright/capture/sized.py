"""The calls of a step at several numbers of samples, which microbatches and unequal replicas have.

Decides which numbers these are where nobody says.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from meshwright.capture.capture import trace_workload
from meshwright.capture.channels import find_channels_last
from meshwright.capture.profile import list_calls
from meshwright.capture.workload import Workload
from meshwright.errors import InputError

MOST_BATCHES = 16
"""Each is one more trace of the step, and its kernels are measured again."""


class SizedCalls(NamedTuple):
    """The kernel calls of a step."""

    counts: dict[int, Counter[str]]
    """How often each occurs, by the number of samples."""
    as_run: dict[str, str]
    """What ranks call in the place of some: convolutions of images whose channels lie together."""


def sized_calls(
    workload: Workload,
    optimizer: str | torch.optim.Optimizer,
    autocast: str | torch.dtype | None = None,
    batches: Sequence[int] | None = None,
    *,
    on_gpu: bool = False,
) -> SizedCalls:
    """Every kernel call of a step, by the number of samples.

    The workload's own number comes first, then `batches`; None: halves of it down to one sample,
    and no further than the model can (batch norm needs two). `on_gpu`: ranks run it on GPUs.
    """
    size = workload.num_samples
    if batches is not None and len(batches) > MOST_BATCHES:
        raise InputError(f"batches: must be at most {MOST_BATCHES}, got {len(batches):,}")
    counts: dict[int, Counter[str]] = {}
    places: dict[str, Counter[str]] = {}
    for samples in (size, *(find_halves(size) if batches is None else batches)):
        if samples in counts:
            continue
        given = workload.at_batch(samples) if counts else workload
        try:
            calls = list_calls(trace_workload(given, optimizer, autocast))
        except InputError:
            if batches is None and counts:
                break
            raise
        counts[samples] = Counter(calls)
        last = find_channels_last(workload.model, len(calls)) if on_gpu else None
        if not last:
            continue
        relaid = list_calls(trace_workload(given, optimizer, autocast, channels_last=last))
        if list(map(_op_of, calls)) == list(map(_op_of, relaid)):
            for call, other in zip(calls, relaid, strict=True):
                places.setdefault(call, Counter())[other] += 1
    # Equal calls may get several layouts: the most frequent one is timed.
    chosen = {call: each.most_common(1)[0][0] for call, each in places.items()}
    return SizedCalls(counts, {call: each for call, each in chosen.items() if call != each})


def _op_of(call: str) -> str:
    op: str = json.loads(call)["op"]
    return op


def find_halves(size: int) -> tuple[int, ...]:
    """The size's half, the half of that, and so on, rounded up, down to one."""
    found = []
    while size > 1:
        size = -(-size // 2)
        found.append(size)
    return tuple(found[:MOST_BATCHES])
