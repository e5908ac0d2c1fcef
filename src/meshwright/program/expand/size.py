"""How large the shard of an op is that a member of a tensor team runs.

The sizes are those that `meshwright.cost.layer` prices layers by, op by op.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.cost.layer.memory import ByteDivision, op_holdings
from meshwright.cost.layer.share import Widths, divide
from meshwright.cost.layer.state import find_shares
from meshwright.cost.layer.work import find_work
from meshwright.graph.column import OP_LINES
from meshwright.graph.graph import Bools, Floats, Ints
from meshwright.graph.stack.stack import LayerKind, Role, Stack
from meshwright.plan.part import Part
from meshwright.program.expand.member import template_rows
from meshwright.program.expand.rewrite import Rewrite, name_times

_Table = dict[str, tuple[Floats, Floats]]
"""By column: what it is for each op of a kind, all rows taken, and where a member has its own."""


def resize_ops(rewrite: Rewrite, stack: Stack, layers: Ints, part: Part, on_rows: Bools) -> None:
    """Give all ops of some layers of a part the sizes of a member's shards.

    `on_rows`: the ops that work on a member's own rows, by number in the planned graph. The rewrite
    is one of that graph.
    """
    for kind, ops in _ops_by_kind(stack, layers):
        table, shares = _make_table(kind, part.tensor, part.expert), _find_shares(kind)
        changes = on_rows[ops] | (kind.role[stack.template_op[ops]] != Role.WHOLE)
        _resize(rewrite, stack, table, ops, changes, on_rows, ops)
        _resize_weights(rewrite, stack, shares, ops, part)


def resize_tokens(
    rewrite: Rewrite,
    stack: Stack,
    layers: Ints,
    part: Part,
    on_rows: Bools,
    changes: Bools,
    place: Ints,
) -> None:
    """Give ops of some layers of a part the sizes that they have on a context member's tokens.

    `changes`: the ops that work on such tokens, by number in the planned graph, as `on_rows`.
    `place`: their numbers in the rewrite.
    """
    for kind, ops in _ops_by_kind(stack, layers):
        table = _make_table(kind, part.tensor, part.expert, part.context)
        _resize(rewrite, stack, table, ops, changes[ops], on_rows, place[ops])


def _ops_by_kind(stack: Stack, layers: Ints) -> Iterator[tuple[LayerKind, Ints]]:
    """The ops of all layers of each kind."""
    found: dict[LayerKind, list[Ints]] = {}
    for layer, ops in zip(layers.tolist(), template_rows(stack, layers), strict=True):
        found.setdefault(stack.kind_of(layer), []).append(ops)
    for kind, each in found.items():
        yield kind, np.concatenate(each)


@lru_cache(maxsize=64)
def _find_shares(kind: LayerKind) -> Floats:
    return find_shares(kind)


@lru_cache(maxsize=64)
def _make_table(kind: LayerKind, tensor: int, expert: int, context: int = 1) -> _Table:
    work = find_work(kind)
    table: _Table = {}
    for name, growth in (("", 1.0), ("fixed_", 0.0)):
        plain, rows = (
            divide(work, _widths(tensor, expert, context, share, growth)) for share in (1, tensor)
        )
        for column in OP_LINES:
            both = plain[column], rows[column]
            table[f"{name}{column}"] = both[0][0][work.place], both[1][0][work.place]
    holding = op_holdings(kind)
    divided = np.where(holding == ByteDivision.CUT, 1 / tensor, 1.0)
    divided = np.where(holding == ByteDivision.FIXED, divided, divided / context)
    own = np.where(holding == ByteDivision.STREAM, divided / tensor, divided)
    for column in ("saved_bytes", "workspace_bytes"):
        whole = getattr(kind.graph, column)
        table[column] = whole * divided, whole * own
    return table


def _widths(tensor: int, expert: int, context: int, rows: int, growth: float) -> Widths:
    def column(value: float) -> Floats:
        return np.array([[value]], dtype=np.float64)

    return Widths(
        tensor=column(tensor),
        context=column(context),
        expert=column(expert),
        rows=column(1.0 / rows),
        growth=column(growth),
        blocks=column(1.0),
    )


def _resize(
    rewrite: Rewrite,
    stack: Stack,
    table: _Table,
    ops: Ints,
    changes: Bools,
    on_rows: Bools,
    places: Ints,
) -> None:
    graph, templates = stack.graph, stack.template_op[ops]
    differs = np.zeros(len(ops), dtype=np.bool_)
    for column, (plain, rows) in table.items():
        old = getattr(graph, column)[ops]
        new = np.where(on_rows[ops], rows[templates], plain[templates])
        changed = changes & (new != old)
        for place in np.flatnonzero(changed).tolist():
            rewrite.resize(int(places[place]), **{column: float(new[place])})
        if column.removeprefix("fixed_") in OP_LINES:
            differs |= changed
    # Measured times hold for whole ops: those of shards follow later (`program.work`). Where an
    # op cannot run, its shard cannot; where no sizes are known, no model tells.
    known = (graph.flops + graph.bytes_read + graph.bytes_written)[ops[differs]] > 0
    for name, seconds in name_times(graph).items():
        for op in places[differs][known & np.isfinite(seconds[ops[differs]])].tolist():
            rewrite.resize(op, **{name: np.nan})


def _resize_weights(rewrite: Rewrite, stack: Stack, shares: Floats, ops: Ints, part: Part) -> None:
    """A weight is divided as its gradient is."""
    holders = ops[(stack.graph.state_bytes[ops] > 0) | (stack.graph.parameter_bytes[ops] > 0)]
    whole, cut, expert, expert_cut = shares[stack.template_op[holders]].T
    left = whole + cut / part.tensor + (expert + expert_cut / part.tensor) / part.expert
    for op, share in zip(holders.tolist(), left.tolist(), strict=True):
        if share != 1.0:
            held: dict[str, Any] = {
                name: float(getattr(stack.graph, name)[op]) * share
                for name in ("parameter_bytes", "state_bytes")
            }
            rewrite.resize(op, **held)
