"""The kernel of the dynamic programme over downsets: grows stages, keeps what is better.

Arrays come in tuples, because a stage takes many:

- lattice: bits, and the steps from downset to downset
- graph: what is after and what is before each node
- wires: those of each node, their pins and seconds
- kinds: seconds, memory, share of wires, width, pool
- pools: devices, strides, devices by use, flights after a use, the price of what a use leaves
- weights: of downsets, and of nodes with all that comes after them
- held: bytes and saved bytes of nodes
- table: the best load, the downset and the kind that it came from
- stage: predecessors missing, what is done, ready nodes, the path of nodes taken, sums along it,
  pins inside by wire, pins that stay out by wire
"""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined, outlined
from meshwright.search.method.pipeline.stage.lattice import has_node

_SAFE = 1 + 1e-12
"""Weights are sums of many numbers: none is left alone for their rounding."""

# What is known of a stage while it grows: seconds of wires that it cuts, of those that all larger
# stages cut too, its bytes, saved bytes, the least weight that it leaves out, its seconds by kind.
_CUT, _FIXED, _HELD, _SAVED, _LEFT_OUT, SECONDS = range(6)

_OUT, _BACK = np.int64(1), np.int64(-1)


@compiled
def advance(
    lattice: Any, graph: Any, wires: Any, kinds: Any, pools: Any, weights: Any, held: Any,
    limit: float, until: int, table: Any, state: Any, stage: Any, uses: Any,
) -> None:  # fmt: skip
    """Let every downset be what is done before the next stage, until so many stages were seen."""
    while state[0] < len(table[0]) - 1 and state[1] < until:
        here = state[0]
        state[0] += 1
        num_uses, least = _find_uses(here, kinds, pools, weights, limit, table, uses)
        if num_uses > 0 and least < np.inf:
            _grow_stages(
                here, lattice, graph, wires, kinds, pools, weights, held, limit, table, state,
                stage, uses, num_uses, least,
            )  # fmt: skip


@outlined
def _find_uses(
    here: Any, kinds: Any, pools: Any, weights: Any, limit: Any, table: Any, uses: Any
) -> Any:
    """The uses of devices with which this downset may be part of a split, and the least weight of a
    downset after the next stage."""
    width, pool = kinds[3], kinds[4]
    counts, stride, used, _, capacity = pools
    best, weight = table[0], weights[0]
    total = weight[len(weight) - 1]
    num_uses, least = 0, np.inf
    for use in range(best.shape[1]):
        if best[here, use] > limit:
            continue
        if total - weight[here] > limit * capacity[use] * _SAFE:
            continue
        uses[num_uses] = use
        num_uses += 1
        for kind in range(len(width)):
            if used[use, pool[kind]] + width[kind] <= counts[pool[kind]]:
                left = capacity[use + width[kind] * stride[pool[kind]]]
                least = min(least, total - limit * left * _SAFE)
    return num_uses, least


@outlined
def _grow_stages(
    here: Any, lattice: Any, graph: Any, wires: Any, kinds: Any, pools: Any, weights: Any,
    held: Any, limit: Any, table: Any, state: Any, stage: Any, uses: Any, num_uses: Any, least: Any,
) -> None:  # fmt: skip
    """Meet every stage that may follow a downset once, depth first, and keep what is better."""
    step_start, step_node, step_to = lattice[1], lattice[2], lattice[3]
    after_start, after_node = graph[0], graph[1]
    weight, weight_above = weights
    total = weight[len(weight) - 1]
    missing, _, ready, path, sums, count, _ = stage
    length = _empty_stage(here, lattice, graph, wires, stage)
    depth, at, there = np.int64(0), np.int64(0), here  # literals would be compiled apart
    while True:
        if at < length and total - sums[depth, _LEFT_OUT] >= least:
            node = ready[at]
            state[1] += 1
            if _take(node, depth, wires, kinds, held, limit, stage):
                depth += 1
                path[depth, 0], path[depth, 1], path[depth, 2] = at, length, there
                for step in range(step_start[there], step_start[there + 1]):
                    if step_node[step] == node:
                        there = step_to[step]
                        break
                if weight[there] >= least:
                    _keep(
                        here,
                        there,
                        depth,
                        kinds,
                        pools,
                        weight,
                        limit,
                        table,
                        stage,
                        uses,
                        num_uses,
                    )
                for edge in range(after_start[node], after_start[node + 1]):
                    other = after_node[edge]
                    missing[other] -= 1
                    if missing[other] == 0:
                        ready[length] = other
                        length += 1
                at += 1
                continue
        elif depth == 0:
            break
        else:  # take back what was left out at this depth, then the node that led here
            for place in range(path[depth, 0] + 1, at):
                _block(ready[place], _BACK, wires, stage)
            at, length, there = path[depth, 0], path[depth, 1], path[depth, 2]
            node = ready[at]
            for edge in range(after_start[node], after_start[node + 1]):
                missing[after_node[edge]] += 1
            depth -= 1
        for edge in range(wires[0][node], wires[0][node + 1]):
            count[wires[1][edge]] -= 1
        sums[depth, _FIXED] += _block(node, _OUT, wires, stage)  # left out for good, at this depth
        sums[depth, _LEFT_OUT] = max(sums[depth, _LEFT_OUT], weight_above[node])
        at += 1


@outlined
def _empty_stage(here: Any, lattice: Any, graph: Any, wires: Any, stage: Any) -> Any:
    """Prepare the stage without nodes; returns how many nodes are ready."""
    bits, step_start, step_node, _ = lattice
    before_start, before_node = graph[2], graph[3]
    wire_start, wire_node = wires[2], wires[3]
    missing, is_in, ready, _, sums, count, blocked = stage
    for node in range(len(is_in)):
        is_in[node] = 1 if has_node(bits, here, node) else 0
    for node in range(len(missing)):
        missing[node] = 0
        for edge in range(before_start[node], before_start[node + 1]):
            missing[node] += 1 - is_in[before_node[edge]]
    for wire in range(len(count)):
        count[wire] = 0
        blocked[wire] = 0
        for pin in range(wire_start[wire], wire_start[wire + 1]):
            blocked[wire] += is_in[wire_node[pin]]
    length = 0
    for step in range(step_start[here], step_start[here + 1]):
        ready[length] = step_node[step]
        length += 1
    for column in range(sums.shape[1]):
        sums[0, column] = 0.0
    return length


@inlined
def _take(node: Any, depth: Any, wires: Any, kinds: Any, held: Any, limit: Any, stage: Any) -> Any:
    """Add a node to the stage; whether some kind of device may run it or what contains it."""
    seconds, memory, share = kinds[0], kinds[1], kinds[2]
    wires_start, wires_wire, wire_start, _, wire_seconds = wires
    sums, count, blocked = stage[4], stage[5], stage[6]
    cut, fixed = sums[depth, _CUT], sums[depth, _FIXED]
    for edge in range(wires_start[node], wires_start[node + 1]):
        wire = wires_wire[edge]
        count[wire] += 1
        if count[wire] == 1:
            cut += wire_seconds[wire]
            if blocked[wire] > 0:
                fixed += wire_seconds[wire]
        if count[wire] == wire_start[wire + 1] - wire_start[wire]:
            cut -= wire_seconds[wire]
    below = depth + 1
    sums[below, _CUT], sums[below, _FIXED] = cut, fixed
    sums[below, _HELD] = sums[depth, _HELD] + held[0][node]
    sums[below, _SAVED] = sums[depth, _SAVED] + held[1][node]
    sums[below, _LEFT_OUT] = sums[depth, _LEFT_OUT]
    may_grow = False
    for kind in range(len(memory)):
        load = sums[depth, SECONDS + kind] + seconds[kind, node]
        sums[below, SECONDS + kind] = load
        if load + share[kind] * fixed <= limit and sums[below, _HELD] <= memory[kind]:
            may_grow = True
    return may_grow


@inlined
def _block(node: Any, by: Any, wires: Any, stage: Any) -> Any:
    """Leave a node out, or take that back; the seconds of wires that this cuts for good."""
    wires_start, wires_wire, wire_seconds = wires[0], wires[1], wires[4]
    count, blocked = stage[5], stage[6]
    fixed = 0.0
    for edge in range(wires_start[node], wires_start[node + 1]):
        wire = wires_wire[edge]
        blocked[wire] += by
        if blocked[wire] == 1 and count[wire] > 0:
            fixed += wire_seconds[wire]
    return fixed


@inlined
def _keep(
    here: Any, there: Any, depth: Any, kinds: Any, pools: Any, weight: Any, limit: Any, table: Any,
    stage: Any, uses: Any, num_uses: Any,
) -> None:  # fmt: skip
    """Let the stage between two downsets be the next one, where that is better."""
    _, memory, share, width, pool = kinds
    counts, stride, used, flights, capacity = pools
    best, from_downset, from_kind = table
    sums = stage[4]
    total = weight[len(weight) - 1]
    for kind in range(len(memory)):
        load = sums[depth, SECONDS + kind] + share[kind] * sums[depth, _CUT]
        if load > limit:
            continue
        for number in range(num_uses):
            use = uses[number]
            after = use + width[kind] * stride[pool[kind]]
            if used[use, pool[kind]] + width[kind] > counts[pool[kind]]:
                continue
            if sums[depth, _HELD] + flights[use] * sums[depth, _SAVED] > memory[kind]:
                continue
            if total - weight[there] > limit * capacity[after] * _SAFE:
                continue
            value = max(best[here, use], load)
            if value < best[there, after]:
                best[there, after] = value
                from_downset[there, after] = here
                from_kind[there, after] = kind
