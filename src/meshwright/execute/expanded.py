"""The traced steps of an expansion, on one rank: as `Steps`, of what the rank really runs."""

from collections.abc import Iterator, Mapping

from meshwright.execute.draw import Draw
from meshwright.execute.rebuild import rebuild
from meshwright.execute.shard import Share
from meshwright.execute.steps import Steps, TracedSteps
from meshwright.execute.traced import TracedStep
from meshwright.execute.ways import Ways
from meshwright.program.expand.expansion import Expansion


class ExpandedSteps(TracedSteps):
    """Traced steps by their number of samples; those that are missing are built."""

    def __init__(self, planned: Steps, expansion: Expansion, ways: Ways) -> None:
        self.planned, self.expansion, self.ways = planned, expansion, ways
        self._built: dict[int, TracedStep] = {}

    def __getitem__(self, samples: int) -> TracedStep:
        if samples not in self._built:
            self._built[samples] = rebuild(self.planned[samples], self.expansion, self.ways)
        return self._built[samples]

    def __iter__(self) -> Iterator[int]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)

    def draws(self, samples: int) -> dict[int, Draw]:
        """By kernel that draws random numbers: how. What is computed again draws the same."""
        known = self.planned.draws(samples)
        origin = self.expansion.origin.tolist()
        return {op: known[each] for op, each in enumerate(origin) if each in known}

    def shares(self) -> Mapping[str, Share]:
        """What of the state the rank holds a shard of only, by name."""
        return self.ways.shares(self.planned.any())

    def other(self, samples: int) -> TracedStep:
        """One at another number of samples, to see what grows."""
        for count, step in self._built.items():
            if count != samples:
                return step
        return self[self.planned.other(samples).samples]
