"""Decides which results a region computes again from its other inputs, instead of being given them.

What forward saves for backward is often an element-wise function of something else that it saves,
too: the result of an activation beside its argument, of a norm beside what it normed. Merged into a
kernel that reads the argument anyway it takes hardly any time to compute it again, and its memory
is free between forward and backward. (torch.compile chooses by a minimum cut, which may also change
what else is saved; here nothing is saved that was not saved before.)
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import torch

from meshwright.capture.ledger import op_name
from meshwright.execute.item import Segment
from meshwright.execute.last_use import made_name
from meshwright.execute.steps import TracedSteps

_ALSO = {"_to_copy", "native_layer_norm", "max_pool2d_with_indices"}
"""They are computed again, too: casts, which autocast makes of every weight and again for every
product that reads the same rows; norms, whose backward reads the same rows as a whole; places of
maxima, which have eight bytes each and follow from windows of a few numbers."""
_MAX_READERS = 2
"""What more regions read than forward's and backward's of one layer is kept."""


def find_again(
    segment: Segment, steps: TracedSteps, regions: Sequence[range]
) -> list[tuple[int, ...]]:
    """For every region the lines of earlier regions that it runs again, in order."""
    finder = _AgainFinder(segment, steps, regions)
    return [finder.lines_for(number) for number in range(len(regions))]


class _AgainFinder:
    """One segment and its regions."""

    def __init__(self, segment: Segment, steps: TracedSteps, regions: Sequence[range]) -> None:
        self.segment, self.steps, self.regions = segment, steps, regions
        self.region_of = {line: k for k, region in enumerate(regions) for line in region}
        self.given = [self._inputs(region) for region in regions]
        """For every region the names of what it reads from outside."""
        self.readers = Counter(name for given in self.given for name in given)
        self.written: dict[Hashable, int] = {}
        """The first line that overwrites what has a name."""
        self.in_place: set[Hashable] = set()
        """What was made by overwriting something, and may be overwritten elsewhere."""
        self._find_written()
        self.is_cheap = [self._costs_little(number) for number in range(len(segment.lines))]

    def lines_for(self, number: int) -> tuple[int, ...]:
        found: set[int] = set()
        for name in self.given[number]:
            if self.readers[name] <= _MAX_READERS:
                found |= self._lines_of(name, number, is_wanted=True) or set()
        return tuple(sorted(found))

    def _lines_of(self, name: Hashable, number: int, *, is_wanted: bool) -> set[int] | None:
        """The lines that make something from what a region is given; None: it cannot."""
        if not is_wanted and self._is_there(name, number):
            return set()
        line = name[1] if isinstance(name, tuple) and name[0] == "made" else None
        if line is None or self.region_of.get(line, number) == number or not self.is_cheap[line]:
            return None
        found = {line}
        for _, read in self.segment.lines[line].reads:
            lines = self._lines_of(read, number, is_wanted=False)
            is_kept = self.written.get(read, len(self.segment.lines)) >= self.regions[number].stop
            if lines is None or not is_kept:
                return None
            found |= lines
        return found

    def _is_there(self, name: Hashable, number: int) -> bool:
        is_state = isinstance(name, tuple) and name[0] == "state"
        return is_state or name in self.given[number]

    def _inputs(self, region: range) -> dict[Hashable, None]:
        names = (name for line in region for _, name in self.segment.lines[line].reads)
        own = {name for name in names if not _is_made_in(name, region)}
        return dict.fromkeys(sorted(own, key=str))

    def _find_written(self) -> None:
        for number, line in enumerate(self.segment.lines):
            ledger, names = self.steps[line.samples].ledger, dict(line.reads)
            for version in ledger.kernels[line.op].made:
                old = ledger.versions[version].replaces
                if old >= 0:
                    self.written.setdefault(names[old], number)
                    self.in_place.add(made_name(number, version))

    def _costs_little(self, number: int) -> bool:
        line = self.segment.lines[number]
        kernel = self.steps[line.samples].ledger.kernels[line.op]
        made = {made_name(number, version) for version in kernel.made}
        is_pointwise = torch.Tag.pointwise in getattr(kernel.node.target, "tags", ())
        is_left = not made & (self.written.keys() | self.in_place)
        return (is_pointwise or op_name(kernel.node) in _ALSO) and is_left


def _is_made_in(name: Hashable, region: range) -> bool:
    return isinstance(name, tuple) and name[0] == "made" and name[1] in region
