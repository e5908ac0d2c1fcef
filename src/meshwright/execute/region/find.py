"""Cuts a segment into regions: stretches of lines that are compiled as one function each.

A model's layers repeat, so a segment's lines do: where the same lines come again and again, each
turn is a region, and what lies between is one, too. Compiling then takes as long for 48 equal
layers as for one. Regions end where little is lost by it: after an op that a compiler leaves to a
library, such as a matrix product, because it merges nothing with what comes after that anyway.
"""

from collections.abc import Hashable, Sequence, Set

import numpy as np

from meshwright.array import Longs
from meshwright.capture.ledger import Kernel
from meshwright.execute.draw import is_repeatable
from meshwright.execute.item import OpLine, Segment
from meshwright.execute.steps import TracedSteps
from meshwright.execute.traced import ARRIVED
from meshwright.execute.update import is_update

_WINDOW = 8
"""So many lines in a row must be alike for a repetition to be looked for: fewer are by chance."""
_MIN_LINES = 2
"""A region of fewer lines is not worth a compiler's call."""
_MAX_LINES = 100
"""A region ends at the next product after as many lines. Compiling takes more than in proportion:
1001 lines (the backward of a Swin-L) were not compiled in two minutes on 16 cores."""


def find_stretches(segment: Segment, steps: TracedSteps) -> list[range]:
    """The stretches of a segment's lines that are to be regions; other lines run as they are."""
    kernels = [steps[line.samples].ledger.kernels[line.op] for line in segment.lines]
    may = [_may_compile(k, segment, steps, kernel) for k, kernel in enumerate(kernels)]
    # Those that a library's kernel computes, with which compilers merge nothing.
    is_product = [kernel.flops > 0 for kernel in kernels]
    turns = find_turns(_signatures(segment.lines, steps, kernels), is_product)
    begins = {turn.start for turn in turns} | {turn.stop for turn in turns}
    return _cut(may, is_product, begins)


def _cut(may: Sequence[bool], is_product: Sequence[bool], begins: Set[int]) -> list[range]:
    """Stretches of lines that may be compiled, which turns of repetitions and their length end."""
    found, first = [], 0
    for number in range(len(may) + 1):
        is_last = number == len(may)
        is_long = number - first >= _MAX_LINES and is_product[number - 1]
        if is_last or is_long or number in begins or not may[number]:
            if number - first >= _MIN_LINES:
                found.append(range(first, number))
            first = number if is_last or may[number] else number + 1
    return found


def find_turns(signatures: Sequence[Hashable], is_product: Sequence[bool]) -> list[range]:
    """The turns of repetitions in a sequence: stretches that equal the one before or after."""
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(each, len(numbers)) for each in signatures], np.int64)
    seen: dict[bytes, list[int]] = {}
    for start in range(len(codes) - _WINDOW + 1):
        seen.setdefault(codes[start : start + _WINDOW].tobytes(), []).append(start)
    found: list[range] = []
    start = 0
    while start < len(codes) - _WINDOW:
        period, length = _longest(codes, start, seen)
        if period == 0:
            start += 1
            continue
        first = _best_start(start, period, length, is_product)
        count = (start + length - first) // period
        found += [range(first + k * period, first + (k + 1) * period) for k in range(count)]
        start = first + count * period
    return found


def _longest(codes: Longs, start: int, seen: dict[bytes, list[int]]) -> tuple[int, int]:
    """The period and length of the repetition from a place on that covers most; 0: none."""
    best, most = (0, 0), 0
    for again in seen[codes[start : start + _WINDOW].tobytes()]:
        period = again - start
        if period <= 0:
            continue
        differs = np.flatnonzero(codes[start:-period] != codes[start + period :])
        length = period + int(differs[0] if len(differs) else len(codes) - start - period)
        covered = length - length % period
        if length >= 2 * period and covered > most:
            best, most = (period, length), covered
    return best


def _best_start(start: int, period: int, length: int, is_product: Sequence[bool]) -> int:
    """Where the first turn begins: after a product, without a turn less if that is possible."""
    slack = length % period
    for limit in (slack, min(period - 1, length - 2 * period)):
        for first in range(start, start + limit + 1):
            if first and is_product[first - 1]:
                return first
    return start


def _signatures(
    lines: Sequence[OpLine], steps: TracedSteps, kernels: Sequence[Kernel]
) -> list[Hashable]:
    """What makes lines alike: the op, its constants, and the layouts of what it reads and makes."""
    found: list[Hashable] = []
    for line, kernel in zip(lines, kernels, strict=True):
        layouts = steps[line.samples].layouts
        read = tuple((layouts[version], _origin(name)) for version, name in line.reads)
        made = tuple(layouts[version] for version in kernel.made)
        found.append((str(kernel.node.target), _constants(kernel), read, made))
    return found


def _origin(name: Hashable) -> str:
    """Whether what is read is state, an input or another line's result."""
    return str(name[0]) if isinstance(name, tuple) else ""


def _constants(kernel: Kernel) -> str:
    values = (*kernel.node.args, *kernel.node.kwargs.values())
    return str([each for each in values if isinstance(each, int | float)])


def _may_compile(number: int, segment: Segment, steps: TracedSteps, kernel: Kernel) -> bool:
    """Whether a line may be in a region: not what talks, updates parameters, or draws for
    all samples together, nor what has rows whose number is known at run time only."""
    line = segment.lines[number]
    step = steps[line.samples]
    if hasattr(kernel.node.target, "begin"):
        return False
    if line.op in steps.draws(line.samples) and not is_repeatable(kernel.node):
        return False
    if is_update(kernel) or step.counters.get(line.op):
        return False
    if any((number, version) in segment.copied for version in kernel.made):
        return False
    versions = [*kernel.made, *(version for version, _ in line.reads)]
    return not any(ARRIVED in step.layouts[version].shape for version in versions)
