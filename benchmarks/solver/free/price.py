"""The compiled dynamic programme over sets of nodes: the most valuable set of every load.

Nodes come in a line; a state says of every wire that is open there whether its nodes so far are all
in the set, all outside, or on both sides, which has been paid for. Labels of a state are kept in
cells by load. Where two meet in a cell, the cell takes the lower load and the higher value: never
worse than either, so values are never underestimated. Loads and values are whole numbers: sums are
exact.
"""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined

TURN = np.dtype(
    [
        ("source", np.int64),
        ("target", np.int64),
        ("is_in", np.int64),
        ("cost", np.int64),
    ],
    align=True,
)
"""From a state before a node to one after it, the node in the set or not; `cost` of wires that are
then cut."""

LABEL = np.dtype(
    [("load", np.int64), ("value", np.int64), ("origin", np.int64)],
    align=True,
)
"""A set so far; `origin` says which turn and which label of its source."""

NONE = -(2**62)
"""Less than any value."""


@compiled
def price(
    turns: Any, first_turn: Any, num_states: Any, loads: Any, prizes: Any, limit: int,
    labels: Any, num_labels: Any, buffers: Any, origins: Any,
) -> Any:  # fmt: skip
    """Fill `labels` [parity of the step, state, label], by rising load and value, and `origins`.

    `loads[step]` below 0: the node cannot be in the set. No load is above `limit`. The turns of a
    step come by target. How many labels there were, to count work by.
    """
    work = np.int64(0)
    num_cells = labels.shape[2]
    scale = (num_cells - 0.5) / (limit + 1.0)
    labels[0, 0, 0].load = 0
    labels[0, 0, 0].value = 0
    num_labels[0, 0] = 1
    for step in range(len(loads)):
        now, then = step & 1, (step + 1) & 1
        for state in range(num_states[step + 1]):
            num_labels[then, state] = 0
        target, count, side = np.int64(-1), np.int64(0), np.int64(0)
        begin, end = first_turn[step], first_turn[step + 1]
        for turn in range(begin, end):
            is_in = turns[turn].is_in
            if turns[turn].target != target:
                target, count = turns[turn].target, np.int64(0)
            if is_in == 0 or loads[step] >= 0:
                source = turns[turn].source
                side = 1 - side
                count = _merge(
                    buffers[1 - side], count, labels[now, source], num_labels[now, source],
                    turns[turn].cost + is_in * loads[step], is_in * prizes[step],
                    (turn - begin) * num_cells, limit, scale, buffers[side],
                )  # fmt: skip
            if turn + 1 == end or turns[turn + 1].target != target:
                num_labels[then, target] = count
                work += count
                for i in range(count):
                    labels[then, target, i].load = buffers[side, i].load
                    labels[then, target, i].value = buffers[side, i].value
                    origins[step, target, i] = buffers[side, i].origin
    return work


@inlined
def _merge(
    old: Any, num_old: Any, source: Any, num_source: Any, more: Any, gain: Any, code: Any,
    limit: Any, scale: Any, new: Any,
) -> Any:  # fmt: skip
    """Merge the labels of a source after a turn with old ones into new ones: none that another
    beats, one a cell."""
    i, j, count = np.int64(0), np.int64(0), np.int64(0)
    last_cell, last_value = np.int64(-1), np.int64(NONE)
    while True:
        has_source = j < num_source and source[j].load + more <= limit
        if i < num_old and (not has_source or old[i].load <= source[j].load + more):
            load, value, origin = old[i].load, old[i].value, old[i].origin
            i += 1
        elif has_source:
            load, value, origin = source[j].load + more, source[j].value + gain, code + j
            j += 1
        else:
            break
        if value <= last_value:
            continue
        last_value = value
        cell = np.int64(load * scale)
        if cell == last_cell:
            new[count - 1].value = value
            new[count - 1].origin = origin
        else:
            last_cell = cell
            new[count].load = load
            new[count].value = value
            new[count].origin = origin
            count += 1
    return count


@compiled
def trace(
    turns: Any, first_turn: Any, origins: Any, num_cells: int, label: Any, chosen: Any
) -> None:
    """Which nodes of the line are in the set of a label; its load may be above the label's where
    labels met."""
    state = np.int64(0)
    for step in range(len(chosen) - 1, -1, -1):
        code = np.int64(origins[step, state, label])
        turn = first_turn[step] + code // num_cells
        chosen[step] = turns[turn].is_in
        label = code % num_cells
        state = turns[turn].source
