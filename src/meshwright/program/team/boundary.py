"""Which teams of neighbouring stages share rows, and how many bytes go between them.

Knows rows and sizes; knows nothing of routes, time and instructions.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Bools, Floats, Longs
from meshwright.program.team.stage import TeamStage

_NEAR = 1e-9
"""Shares of a batch closer than this are the same row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boundary:
    """Between a stage and the next: the pairs of teams that share rows."""

    before: Longs
    """A replica of the stage, one a pair ..."""
    after: Longs
    """... and one of the next."""
    forward_bytes: Floats
    """Of one microbatch, from team to team."""
    backward_bytes: Floats
    is_local: Bools
    """Whether one team runs both: nothing is sent."""
    rows_from: Floats
    rows_to: Floats

    @property
    def sent(self) -> Longs:
        """The pairs between which something is sent."""
        return np.flatnonzero(~self.is_local)

    @property
    def kept(self) -> Longs:
        """The pairs of one team that runs both stages, between which nothing is sent."""
        return np.flatnonzero(self.is_local)


def find_boundary(stage: TeamStage, following: TeamStage) -> Boundary:
    """The pairs between two stages, by the first stage's replicas."""
    # Rows of replicas follow each other, so those that share some with one are a run.
    first = np.searchsorted(following.rows_to, stage.rows_from + _NEAR, side="right")
    last = np.searchsorted(following.rows_from, stage.rows_to - _NEAR, side="left")
    counts = last - first
    before = np.repeat(np.arange(stage.num_replicas), counts)
    after = np.arange(len(before)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    rows_from = np.maximum(stage.rows_from[before], following.rows_from[after])
    rows_to = np.minimum(stage.rows_to[before], following.rows_to[after])
    share = (rows_to - rows_from) / (stage.rows_to - stage.rows_from)[before]
    output = stage.of_replicas("output_bytes")[before] * share
    return Boundary(
        before=before,
        after=after,
        forward_bytes=output + stage.side_bytes[before] * share,
        backward_bytes=output,
        is_local=stage.leaders[before] == following.leaders[after],
        rows_from=rows_from,
        rows_to=rows_to,
    )
