"""Writes what keeps tied weights equal: the first and the last stage exchange their gradients.

Each has a copy of the weights; once a step, when both have added up theirs over replicas, every
team sends its own to a team of the other stage, and both update with the sum (as Megatron-LM does
for its embedding group). Where one team runs both stages there is nothing to do.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Longs, Records
from meshwright.program.program import Kind, blank_rows
from meshwright.program.team.emit import Emitted, UnitWork
from meshwright.program.team.stage import TeamStage


@dataclass(frozen=True, kw_only=True, eq=False)
class Tie:
    """Pairs of a team of the first stage and one of the last that share weights."""

    first: Longs
    last: Longs
    first_bytes: float
    """What a team of the first stage sends to one of the last."""
    last_bytes: float
    """What a team of the last stage sends to one of the first."""

    @property
    def num_sends(self) -> int:
        """How many transfers a step takes: one each way for every pair."""
        return 2 * len(self.first)


def find_tie(first: TeamStage, last: TeamStage, tied_bytes: float) -> Tie | None:
    """The pairs of two stages that share so many bytes of weights; None: nothing is to be sent."""
    if tied_bytes <= 0 or np.isin(first.leaders, last.leaders).any():
        return None
    count = max(first.num_replicas, last.num_replicas)
    pair = np.arange(count)
    return Tie(
        first=pair * first.num_replicas // count,
        last=pair * last.num_replicas // count,
        first_bytes=_team_bytes(first, tied_bytes),
        last_bytes=_team_bytes(last, tied_bytes),
    )


def _team_bytes(stage: TeamStage, tied_bytes: float) -> float:
    """A team's own: every context member has a copy, of which ZeRO leaves it its shard."""
    kinds = {each.collective for each in stage.cost.synchronisations}
    is_sharded = stage.num_replicas > 1 and "all_reduce" not in kinds
    return tied_bytes * stage.context / (stage.num_replicas * stage.context if is_sharded else 1)


def tie_rows(work: UnitWork, tie: Tie, number: int) -> tuple[Records, Records]:
    """SENDs and RECEIVEs, first those of the first stage; the first SEND has this number."""
    first = work.stages[0].leaders[tie.first]
    last = work.stages[-1].leaders[tie.last]
    sends = blank_rows((tie.num_sends,))
    sends["replica"] = np.concatenate((tie.first, tie.last))
    sends["bytes"] = np.repeat((tie.first_bytes, tie.last_bytes), len(first))
    sends["task"] = number + np.arange(len(sends))
    sends["rows_to"] = 1.0
    receives = sends.copy()
    sends["kind"], receives["kind"] = Kind.SEND, Kind.RECEIVE
    sends["device"] = receives["peer"] = np.concatenate((first, last))
    sends["peer"] = receives["device"] = np.concatenate((last, first))
    return sends, receives


def order_tie(work: UnitWork, made: Emitted, tie: Tie, number: int, whole: list[Longs]) -> None:
    """Sends wait until gradients are whole (`whole`: by stage, the instruction on each replica),
    and the last of the updates on either side for what it receives."""
    ends = len(work.stages) - 1
    count = len(tie.first)
    sends = number + np.arange(tie.num_sends)
    made.order(whole[0][tie.first], sends[:count])
    made.order(whole[ends][tie.last], sends[count:])
    receives = sends + work.num_sends
    last_unit = [units.num_units - 1 for units in work.units]
    made.order(receives[:count], work.unit_rows(ends, last_unit[ends], tie.last))
    made.order(receives[count:], work.unit_rows(0, last_unit[0], tie.first))
