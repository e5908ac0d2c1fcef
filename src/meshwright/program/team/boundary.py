"""Between which stages of a plan something passes, and how much between which of their teams.

In a chain every stage speaks to the next. Where layers read any that stand before them, a stage
sends what it makes to every stage that reads it, each once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.array import Bools, Floats, Longs, count_up
from meshwright.graph.stack.crossing import StageLink
from meshwright.program.schedule import Action
from meshwright.program.team.stage import TeamStage

_NEAR = 1e-9
"""Shares of a batch closer than this are the same row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boundary:
    """Between a stage and a later one that reads what it makes: the pairs of teams that share
    rows."""

    origin: int
    """The number of the stage ..."""
    goal: int
    """... and of the later one."""
    is_kept: bool
    """Whether what passes between stages of one team is counted as held from one to the other."""
    before: Longs
    """A replica of the stage, one a pair ..."""
    after: Longs
    """... and one of the later stage."""
    forward_bytes: Floats
    """Of one microbatch, from team to team."""
    backward_bytes: Floats
    is_local: Bools
    """Whether one team runs both: nothing is sent."""
    rows_from: Floats
    rows_to: Floats
    actions: tuple[Action, ...]
    """Whose results pass: forward from the stage, backward to it."""

    @property
    def sent(self) -> Longs:
        """The pairs between which something is sent."""
        return np.flatnonzero(~self.is_local)

    @property
    def kept(self) -> Longs:
        """The pairs of one team that runs both stages, between which nothing is sent."""
        return np.flatnonzero(self.is_local)


def find_boundaries(
    stages: Sequence[TeamStage],
    links: Sequence[StageLink] | None,
    samples: float,
    *,
    is_inference: bool,
) -> list[Boundary]:
    """Between each stage and the next where layers form a chain, else of these links; `samples`:
    of a whole microbatch."""
    if links is not None:
        return [_link_boundary(stages, link, samples) for link in links]
    actions = (Action.FORWARD,) if is_inference else (Action.FORWARD, Action.BACKWARD)
    return [_chain_boundary(stages, number, actions) for number in range(len(stages) - 1)]


def _chain_boundary(
    stages: Sequence[TeamStage], number: int, actions: tuple[Action, ...]
) -> Boundary:
    """The last layer's output and side inputs; what comes back is as large as the output."""
    stage = stages[number]
    pairs = _find_pairs(stage, stages[number + 1])
    share = (pairs.rows_to - pairs.rows_from) / (stage.rows_to - stage.rows_from)[pairs.before]
    output = stage.of_replicas("output_bytes")[pairs.before] * share
    side = stage.side_bytes[pairs.before] * share
    return Boundary(
        origin=number, goal=number + 1, is_kept=False, forward_bytes=output + side,
        backward_bytes=output, actions=actions, **pairs._asdict(),
    )  # fmt: skip


def _link_boundary(stages: Sequence[TeamStage], link: StageLink, samples: float) -> Boundary:
    """What the layers of one stage make for those of another."""
    pairs = _find_pairs(stages[link.origin], stages[link.goal])
    rows = (pairs.rows_to - pairs.rows_from) * samples
    forward, backward = (
        line.fixed + line.per_sample * rows for line in (link.forward, link.backward)
    )
    lines = ((Action.FORWARD, link.forward), (Action.BACKWARD, link.backward))
    actions = tuple(action for action, line in lines if any(line))
    return Boundary(
        origin=link.origin, goal=link.goal, is_kept=True, forward_bytes=forward,
        backward_bytes=backward, actions=actions, **pairs._asdict(),
    )  # fmt: skip


class _Pairs(NamedTuple):
    """Pairs of replicas of two stages that share rows."""

    before: Longs
    after: Longs
    is_local: Bools
    rows_from: Floats
    rows_to: Floats


def _find_pairs(stage: TeamStage, following: TeamStage) -> _Pairs:
    """By the first stage's replicas."""
    # Rows of replicas follow each other, so those that share some with one are a run.
    first = np.searchsorted(following.rows_to, stage.rows_from + _NEAR, side="right")
    last = np.searchsorted(following.rows_from, stage.rows_to - _NEAR, side="left")
    counts = last - first
    before = np.repeat(np.arange(stage.num_replicas), counts)
    after = count_up(counts) + first[before]
    return _Pairs(
        before=before,
        after=after,
        is_local=stage.leaders[before] == following.leaders[after],
        rows_from=np.maximum(stage.rows_from[before], following.rows_from[after]),
        rows_to=np.minimum(stage.rows_to[before], following.rows_to[after]),
    )
