"""Writes what ZeRO 2 and 3 move in every microbatch, beside the pieces of forward and backward.

Weights are gathered ahead of the piece that needs them, by as many pieces as the runtime has it,
and gradients scattered behind the one that made them. Each sort of them goes one after the other;
what they share links with, and whether compute waits for them, is the simulator's to find.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.array import Longs
from meshwright.cost.holder import Pieces
from meshwright.program.program import Kind, blank_rows
from meshwright.program.schedule import Action
from meshwright.program.team.emit import Emitted, UnitWork

Groups = tuple[tuple[int, ...], ...]


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
