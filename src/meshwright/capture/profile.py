"""Times the kernels of a traced step on a real device, each distinct call once.

Inputs are cold, as they mostly are in a step: a buffer larger than the cache is overwritten before
every run, which also keeps the device busy while the next kernel is launched, so that events time
the kernel and not the launch.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Node

from meshwright.capture.call import describe_call
from meshwright.capture.ledger import read_nodes
from meshwright.capture.replay import Substitute, replayed
from meshwright.capture.trace import Trace

WARM_UPS = 3
RUNS = 11
"""The median of so many runs counts."""
CACHE_BYTES = 256 << 20
"""More than the last-level cache of any device of the catalogue (H200: 50 MB, B200: 126 MB)."""
FLUSHES = 6
"""How often a GPU overwrites them: 0.3 ms on an H200, longer than it takes to launch any op."""


def list_calls(trace: Trace) -> list[str]:
    """Every kernel call of a step, described, in order."""
    nodes: list[Node] = list(trace.graph.nodes)
    return [describe_call(kernel.node) for kernel in read_nodes(nodes).kernels]


class TimedCall(NamedTuple):
    """The times of one call."""

    seconds: float
    """The median of its runs, in seconds."""
    spread: float
    """The seconds between a fourth and three fourths of the runs."""


def time_calls(
    calls: Counter[str],
    device: torch.device,
    find_substitute: Substitute = lambda *_: None,
    as_run: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[str, TimedCall | str]]:
    """Each call with its times, or with why it cannot be run by itself.

    `find_substitute` and `as_run` say what is timed in its place.
    """
    flush = torch.empty(CACHE_BYTES, dtype=torch.int8, device=device)
    nothing = time_kernel(lambda: None, flush)
    for text in calls:
        try:
            yield text, _time_call(as_run.get(text, text), flush, nothing, find_substitute)
        except Exception as error:  # one op that cannot be replayed must not end a profile
            yield text, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _time_call(
    text: str, flush: torch.Tensor, nothing: float, find_substitute: Substitute
) -> TimedCall:
    with replayed(text, flush.device, find_substitute) as replay:
        times = _run_times(replay.run, flush)
        low, median, high = np.quantile(times, (0.25, 0.5, 0.75)).tolist()
        seconds = max(0.0, median - nothing)
        return TimedCall(seconds / replay.copies, (high - low) / replay.copies)


def time_kernel(run: Callable[[], object], flush: torch.Tensor) -> float:
    """Median seconds of one run on cold inputs; what timing itself takes is included."""
    return statistics.median(_run_times(run, flush))


def _run_times(run: Callable[[], object], flush: torch.Tensor) -> list[float]:
    for _ in range(WARM_UPS):
        run()
    if flush.device.type == "cuda":
        return _event_times(run, flush)
    times = []
    for _ in range(RUNS):
        flush.zero_()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times


def _event_times(run: Callable[[], object], flush: torch.Tensor) -> list[float]:
    event: Any = torch.cuda.Event
    events = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(RUNS)]
    for begin, end in events:
        for _ in range(FLUSHES):
            flush.zero_()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]
