"""A proven bound on the latency from one path through the graph, the *trunk*. Grows with the square
of its length, so it serves graphs of any size.

In every split the trunk's ops run one after the other, on CPUs or in pieces, and because pieces are
contiguous each holds one stretch t_i .. t_j of the trunk with all ops between: those on a path from
t_i to t_j. So the latency is at least the sum over stretches of what the piece takes at least:

- the accelerator times of all ops between;
- transfers in: what runs before t_i (t_{i-1} and all that it follows from) is not in the piece, so
  the ops whose outputs enter it cut all paths from there to the ops between; their costs are at
  least those of the cheapest such cut, a maximum flow;
- transfers out: alike, from the ops between to all that follows t_{j+1};
- for an op that feeds an op between and follows from nothing before t_i: its transfer or its work.

Stretches are chosen by a dynamic programme under necessary conditions on memory: the ops between
fit an accelerator, the bytes of all stretches fit all accelerators together, and at most as many
stretches as accelerators are larger than half of one.
"""

import math

import numpy as np

from solver.latency.flow import Flow
from solver.latency.problem import Bools, Floats, Problem

_UNITS = 40
"""Memory of an accelerator in the programme's units; bytes are rounded down to them."""


def chain_bound(problem: Problem, trunk: list[int]) -> float:
    """No split has a lower latency."""
    after, before = trunk_places(problem, trunk)
    loads, sizes = _stretches(problem, trunk, after, before)
    cpu = problem.cpu_ms[trunk]
    memory = problem.memory_bytes
    share = sizes / memory if memory > 0 else np.where(sizes > 0, np.inf, 0.0)
    is_tied = np.diff(problem.class_of[trunk]) == 0
    loads, share = _tie_stretches(loads, share, is_tied)
    loads = np.where(share <= 1.0, loads, np.inf)
    share = np.minimum(share, 2.0)
    by_bytes = _cheapest(cpu, loads, share * _UNITS, is_tied, problem.num_devices * _UNITS)
    by_halves = _cheapest(cpu, loads, share > 0.5, is_tied, problem.num_devices)
    return max(by_bytes, by_halves)


def _tie_stretches(loads: Floats, share: Floats, is_tied: Bools) -> tuple[Floats, Floats]:
    """Join stretches that meet between two ops of one class: they share an accelerator.

    What t_i .. t_j takes at least as one piece, or as several that meet so, and the least part of
    an accelerator's memory that it fills. From here on no stretch begins or ends at such a place.
    """
    loads, share = np.where(share <= 1.0, loads, np.inf), share.copy()
    ties = np.flatnonzero(is_tied)
    own_loads, own_share = loads.copy(), share.copy()
    for first in range(len(loads)):
        for last in range(first + 1, len(loads)):
            meets = ties[(ties >= first) & (ties < last)]
            if len(meets):
                together = loads[first, meets] + own_loads[meets + 1, last]
                filled = share[first, meets] + own_share[meets + 1, last]
                loads[first, last] = min(loads[first, last], together.min())
                share[first, last] = min(share[first, last], filled.min())
    return loads, share


def longest_trunk(problem: Problem, weight: Floats) -> list[int]:
    """The path of the largest weight, from an op that reads nothing to one that nobody reads."""
    best, following = np.zeros(problem.num_ops), np.full(problem.num_ops, -1)
    for op in range(problem.num_ops - 1, -1, -1):
        for reader in problem.readers(op):
            if following[op] < 0 or best[reader] > best[op]:
                best[op], following[op] = best[reader], reader
        best[op] += weight[op]
    trunk = [int(np.argmax(best))]
    while following[trunk[-1]] >= 0:
        trunk.append(int(following[trunk[-1]]))
    return trunk


def trunk_places(problem: Problem, trunk: list[int]) -> tuple[list[int], list[int]]:
    """By op the last place of the trunk that it follows from (-1: none) and the first that follows
    from it (its length: none); for the trunk's own ops both are their place."""
    after, before = [-1] * problem.num_ops, [len(trunk)] * problem.num_ops
    place = {op: i for i, op in enumerate(trunk)}
    for op in range(problem.num_ops):
        found = max((after[u] for u in problem.sources(op)), default=-1)
        after[op] = place.get(op, found)
    for op in range(problem.num_ops - 1, -1, -1):
        found = min((before[v] for v in problem.readers(op)), default=len(trunk))
        before[op] = place.get(op, found)
    return after, before


def _stretches(
    problem: Problem, trunk: list[int], after: list[int], before: list[int]
) -> tuple[Floats, Floats]:
    """What the piece of each stretch (first, last) takes at least, and its bytes at least."""
    count = len(trunk)
    loads, sizes = np.zeros((count, count)), np.zeros((count, count))
    for op in range(problem.num_ops):
        if after[op] >= 0 and before[op] < count:
            loads[after[op], before[op]] += problem.accelerator_ms[op]
            sizes[after[op], before[op]] += problem.bytes[op]
    # Between t_i and t_j: all ops with after >= i and before <= j.
    loads = np.cumsum(np.cumsum(loads[::-1], axis=0)[::-1], axis=1)
    sizes = np.cumsum(np.cumsum(sizes[::-1], axis=0)[::-1], axis=1)
    for first in range(count):
        fits = sizes[first] <= problem.memory_bytes
        longest = int(np.argmin(fits)) if not fits.all() else count
        loads[first, first:longest] += _moved_in(problem, after, before, first, longest)
    for last in range(count):
        fits = sizes[: last + 1, last] <= problem.memory_bytes
        lowest = int(np.argmax(fits)) if fits.any() else last
        loads[lowest : last + 1, last] += _moved_out(problem, after, before, lowest, last)
    return loads, sizes


def _moved_in(
    problem: Problem, after: list[int], before: list[int], first: int, longest: int
) -> Floats:
    """What transfers into a stretch from `first` cost at least, by its last place < `longest`."""
    flow = Flow(problem.cost_ms)
    arriving: list[list[int]] = [[] for _ in range(longest)]
    follows = [False] * problem.num_ops  # from what runs before the stretch
    for op in range(problem.num_ops):
        sources = problem.sources(op)
        if before[op] < first:
            follows[op] = True
        elif after[op] < first:
            follows[op] = any(follows[u] for u in sources)
            for source in sources:
                flow.join(source, op, is_start=before[source] < first)
        elif before[op] < longest:
            arriving[before[op]].append(op)
    found, own = np.zeros(longest), 0.0
    seen: set[int] = set()
    for last in range(first, longest):
        outside = {u for op in arriving[last] for u in problem.sources(op) if after[u] < first}
        for source in sorted(outside - seen):
            if follows[source]:
                flow.end(source, is_start=before[source] < first)
            else:
                own += min(problem.cost_ms[source], problem.accelerator_ms[source])
        if not outside <= seen:
            flow.fill()
            seen |= outside
        found[last] = flow.value + own
    return found[first:]


def _moved_out(
    problem: Problem, after: list[int], before: list[int], lowest: int, last: int
) -> Floats:
    """What transfers out of a stretch to `last` cost at least, by its first place >= `lowest`."""
    flow = Flow(problem.cost_ms)
    leaving: list[list[int]] = [[] for _ in range(last + 1)]
    for op in range(problem.num_ops):
        if before[op] <= last:
            if after[op] >= lowest:
                leaving[after[op]].append(op)
        elif after[op] <= last:
            for reader in problem.readers(op):
                if after[reader] > last:
                    flow.end(op, is_start=False)
                else:
                    flow.join(op, reader, is_start=False)
    found = np.zeros(last + 1 - lowest)
    for first in range(last, lowest - 1, -1):
        is_changed = False
        for op in leaving[first]:
            for reader in problem.readers(op):
                if after[reader] > last:
                    flow.end(op, is_start=True)
                    is_changed = True
                elif before[reader] > last:
                    flow.join(op, reader, is_start=True)
                    is_changed = True
        if is_changed:
            flow.fill()
        found[first - lowest] = flow.value
    return found


def _cheapest(
    cpu: Floats, loads: Floats, weights: Floats | Bools, is_tied: Bools, capacity: int
) -> float:
    """The least sum of CPU times and stretches' loads that covers the trunk.

    The stretches' weights, rounded down, add up to the capacity at most. Tied ops are both on CPUs
    or in one stretch.
    """
    count = len(cpu)
    units = np.floor(weights).astype(np.int64)
    best = np.full((count + 1, capacity + 1), np.inf)  # [ops done, units at most]
    best[0] = 0.0
    begin, on_cpu = 0, 0.0  # of ops that are on CPUs together
    for last in range(count):
        on_cpu += cpu[last]
        if last + 1 < count and is_tied[last]:
            continue
        best[last + 1] = best[begin] + on_cpu
        begin, on_cpu = last + 1, 0.0
        for first in range(last, -1, -1):
            load, used = loads[first, last], units[first, last]
            if load < math.inf and used <= capacity:
                row = best[last + 1, used:]
                np.minimum(row, best[first, : capacity + 1 - used] + load, out=row)
    return float(best[count, capacity])
