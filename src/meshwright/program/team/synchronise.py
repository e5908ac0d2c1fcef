"""Writes what replicas do together: gradients piece by piece, parameters at the end of a step.

Every collective is one task of all replicas of a stage, with one instruction on the first device of
each team. All devices take them in one order: by when the first replica has made the gradients,
parameters after everything else.

Tied weights are kept equal once a step, when both of the first and the last stage, each of which
has a copy, have added up their gradients over replicas: every team sends its own to a team of the
other stage, and both update with the sum (as Megatron-LM does for its embedding group); under this
program's own runtime the last stage adds up and sends the sum back. Where one team runs both stages
there is nothing to do.

What ZeRO 2 and 3 move in every microbatch goes beside the pieces of forward and backward. Weights
are gathered ahead of the piece that needs them, by as many pieces as the runtime has it, and
gradients scattered behind the one that made them. Each sort of them goes one after the other; what
they share links with, and whether compute waits for them, is the simulator's to find.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Longs, Records
from meshwright.cost.holder import Pieces, Synchronisation
from meshwright.program.program import Kind, blank_rows
from meshwright.program.schedule import Action
from meshwright.program.team.emit import Emitted, UnitWork
from meshwright.program.team.stage import TeamStage

Groups = tuple[tuple[int, ...], ...]

_KINDS = {
    "all_reduce": Kind.ALL_REDUCE,
    "reduce_scatter": Kind.REDUCE_SCATTER,
    "all_gather": Kind.ALL_GATHER,
}


def emit_collectives(work: UnitWork, made: Emitted, groups: dict[Groups, int]) -> list[Longs]:
    """All collectives; by stage the instruction on each replica after which its gradients are
    whole. `groups` gets the numbers of groups that stand for them in `group`."""
    row = work.num_units + 2 * work.num_sends
    task = work.num_units + work.num_sends
    blocks: list[tuple[Records, float]] = []
    whole: list[Longs] = []
    for number, stage in enumerate(work.stages):
        replicas = np.arange(stage.num_replicas)
        whole.append(work.unit_rows(number, work.units[number].gradients[-1], replicas))
        for each in stage.cost.synchronisations:
            rows = _rows(work, number, each, work.units[number].pieces, groups, task)
            _order_gradients(work, made, number, row)
            when = work.place[number][work.units[number].gradients[-1], 0]
            blocks.append((rows, float(when)))
            row, task = row + rows.size, task + len(rows)
            whole[number] = row - stage.num_replicas + replicas
    latest = 1.0 + max((when for _, when in blocks), default=0.0)
    for number, stage in enumerate(work.stages):
        for each in stage.cost.gathers:
            rows = _rows(work, number, each, 1, groups, task)
            last = work.unit_rows(
                number, work.units[number].start[-1] - 1, np.arange(stage.num_replicas)
            )
            made.order(last, row + np.arange(stage.num_replicas))
            blocks.append((rows, latest + number))
            row, task = row + rows.size, task + len(rows)
    _set_turns(blocks)
    made.rows += [rows.ravel() for rows, _ in blocks]
    return whole


def _rows(
    work: UnitWork,
    number: int,
    each: Synchronisation,
    pieces: int,
    groups: dict[Groups, int],
    task: int,
) -> Records:
    """By piece and replica."""
    stage = work.stages[number]
    rows = blank_rows((pieces, stage.num_replicas))
    rows["kind"] = _KINDS[each.collective]
    rows["device"], rows["stream"] = stage.leaders, stage.leaders + work.num_devices
    rows["replica"] = np.arange(stage.num_replicas)
    rows["group"] = groups.setdefault(each.groups, len(groups))
    rows["task"] = task + np.arange(pieces)[:, None]
    rows["bytes"] = each.message_bytes / pieces
    rows["rows_to"] = 1.0
    return rows


def _order_gradients(work: UnitWork, made: Emitted, number: int, row: int) -> None:
    """A piece travels once every replica has made it, and is then ready for its update."""
    units, replicas = work.units[number], np.arange(work.stages[number].num_replicas)
    own = row + np.arange(units.pieces * len(replicas)).reshape(units.pieces, -1)
    made.order(work.unit_rows(number, units.gradients[:, None], replicas), own)
    updates = np.arange(units.start[Action.UPDATE], units.num_units)
    made.order(own, work.unit_rows(number, updates[:, None], replicas))


def _set_turns(blocks: Sequence[tuple[Records, float]]) -> None:
    """Priorities: by moment, then piece, then block, the same on every device."""
    keys = [
        (when, piece, number)
        for number, (rows, when) in enumerate(blocks)
        for piece in range(len(rows))
    ]
    for turn, (_, piece, number) in enumerate(sorted(keys)):
        blocks[number][0]["priority"][piece] = -float(turn)


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
        # Every context member has a copy. ZeRO divides no update by a sum of several parts, so that
        # each sends all of it.
        first_bytes=tied_bytes * first.context,
        last_bytes=tied_bytes * last.context,
    )


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


def order_tie(
    work: UnitWork,
    made: Emitted,
    tie: Tie,
    number: int,
    whole: list[Longs],
    *,
    adds_in_one: bool,
) -> None:
    """Sends wait until gradients are whole (`whole`: by stage, the instruction on each replica),
    and the last of the updates on either side for what it receives. `adds_in_one`: what the last
    stage sends is the sum."""
    ends = len(work.stages) - 1
    count = len(tie.first)
    sends = number + np.arange(tie.num_sends)
    made.order(whole[0][tie.first], sends[:count])
    made.order(whole[ends][tie.last], sends[count:])
    receives = sends + work.num_sends
    if adds_in_one:
        made.order(receives[:count], sends[count:])
    last_unit = [units.num_units - 1 for units in work.units]
    made.order(receives[:count], work.unit_rows(ends, last_unit[ends], tie.last))
    made.order(receives[count:], work.unit_rows(0, last_unit[0], tie.first))


def emit_shards(work: UnitWork, made: Emitted, groups: dict[Groups, int], ahead: int) -> None:
    """All of them; `groups` are the numbers that groups have, `ahead` how many pieces gathers run
    ahead of compute."""
    for number, stage in enumerate(work.stages):
        shards = stage.cost.shards
        if shards is None:
            continue
        passes = (
            (Action.FORWARD, shards.forward_gathers),
            (Action.BACKWARD, shards.backward_gathers),
        )
        for axis in dict.fromkeys(each.groups for _, several in passes for each in several):
            mine = [(a, each) for a, several in passes for each in several if each.groups == axis]
            computes, gathers = _write(work, made, number, Kind.ALL_GATHER, mine, groups)
            made.order(gathers, computes)
            before = computes
            for _ in range(1 + ahead):
                before = np.where(before >= 0, work.before[before], -1)
            made.order(before[before >= 0], gathers[before >= 0])
        units = work.units[number]
        action = Action.WEIGHT if units.has_weights else Action.BACKWARD
        updates = np.arange(units.start[Action.UPDATE], units.num_units)[:, None]
        for each in shards.scatters:
            mine = [(action, each)]
            computes, scatters = _write(work, made, number, Kind.REDUCE_SCATTER, mine, groups)
            made.order(computes, scatters)
            last = work.unit_rows(number, updates, np.arange(stage.num_replicas))
            made.order(scatters[-1], last)


def _write(
    work: UnitWork,
    made: Emitted,
    number: int,
    kind: Kind,
    moved: Sequence[tuple[Action, Pieces]],
    groups: dict[Groups, int],
) -> tuple[Longs, Longs]:
    """One collective for every unit of some actions, in the order in which a stage runs them: the
    instructions of the units and its own, by unit and replica."""
    stage, units = work.stages[number], work.units[number]
    spans = [units.span(action) for action, _ in moved]
    unit = np.concatenate([np.arange(span.start, span.stop) for span in spans])
    _, microbatch, piece = units.columns
    size = np.concatenate(
        [np.array(each.message_bytes)[piece[s]] for (_, each), s in zip(moved, spans, strict=True)]
    )
    order = np.lexsort((piece[unit], work.place[number][unit, 0]))
    unit, size = unit[order], size[order]
    rows = blank_rows((len(unit), stage.num_replicas))
    rows["kind"], rows["device"] = kind, stage.leaders
    rows["replica"] = np.arange(stage.num_replicas)
    rows["microbatch"] = microbatch[unit][:, None]
    rows["group"] = groups.setdefault(moved[0][1].groups, len(groups))
    rows["bytes"], rows["rows_to"] = size[:, None], 1.0
    rows["task"] = made.num_tasks + np.arange(len(unit))[:, None]
    own = made.num_rows + np.arange(rows.size).reshape(rows.shape)
    made.rows.append(rows.ravel())
    made.order(own[:-1, 0], own[1:, 0])
    return work.unit_rows(number, unit[:, None], np.arange(stage.num_replicas)), own
