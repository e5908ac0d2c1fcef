"""Writes what replicas do together once a step: gradients piece by piece, parameters at the end.

Every collective is one task of all replicas of a stage, with one instruction on the first device of
each team. All devices take them in one order: by when the first replica has made the gradients,
parameters after everything else.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.array import Longs, Records
from meshwright.cost.holder import Synchronisation
from meshwright.program.program import Kind, blank_rows
from meshwright.program.schedule import Action
from meshwright.program.team.emit import Emitted, UnitWork

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
