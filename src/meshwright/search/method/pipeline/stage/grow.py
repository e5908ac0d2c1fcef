"""The kernel of the dynamic programme over downsets: grows stages, keeps what is better."""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Bool, Float, Int, compiled, inlined, outlined
from meshwright.search.method.pipeline.stage.device_pool import Pools
from meshwright.search.method.pipeline.stage.lattice import Lattice, has_node

_SAFE = 1 + 1e-12
"""Weights are sums of many numbers: none is left alone for their rounding."""

_OUT, _BACK = np.int64(1), np.int64(-1)

LEVEL = np.dtype(
    [
        ("cut", np.float64),  # seconds of wires that the stage cuts
        ("fixed", np.float64),  # seconds of those of them that all larger stages cut too
        ("held", np.float64),  # its bytes
        ("saved", np.float64),  # its bytes for each microbatch in flight
        ("left_out", np.float64),  # the least weight that it leaves out
        ("at", np.int32),  # the place of its last node among the ready ones
        ("length", np.int32),  # how many nodes were ready before that was taken
        ("there", np.int32),  # the downset that it then led to
    ],
    align=True,
)
"""A stage while it grows, one record for each number of nodes."""

PROGRESS = np.dtype([("limit", np.float64), ("next", np.int64), ("seen", np.int64)], align=True)
"""The limit of loads, the next downset to grow stages from, and how many stages were looked at."""


class GrowState(NamedTuple):
    """Everything that the dynamic programme works on."""

    lattice: Lattice
    pools: Pools
    after_start: Array
    after_node: Array
    """What comes directly after each node, node after node."""
    before_start: Array
    before_node: Array
    """What comes directly before each node, node after node."""
    node_wires_start: Array
    node_wires: Array
    """The wires that nodes are on, node after node."""
    wire_start: Array
    wire_node: Array
    """The nodes that wires join, wire after wire."""
    wire_seconds: Array
    seconds: Array
    """By kind of device and node."""
    memory: Array
    """The bytes that a device of each kind has."""
    share: Array
    """What each kind pays of the seconds of a cut wire."""
    width: Array
    """How many devices a stage takes, by kind."""
    flights: Array
    """Microbatches in flight in a stage that comes after each use."""
    capacity: Array
    """The price of the devices that each use leaves."""
    weight: Array
    """What the nodes of each downset weigh."""
    weight_above: Array
    """What each node and all that must come after it weigh."""
    held_bytes: Array
    """By node."""
    saved_bytes: Array
    """By node, for each microbatch in flight."""
    best: Array
    """By downset and use the least largest load that was found."""
    from_downset: Array
    from_kind: Array
    """The downset before the last stage of that, and the kind of its devices."""
    missing: Array
    """How many predecessors of each node are neither done nor in the stage."""
    is_in: Array
    """Whether each node is done before the stage."""
    ready: Array
    """Nodes that may be added, in the order in which they became ready."""
    levels: Array
    by_kind: Array
    """By number of nodes and kind the seconds of the stage's nodes."""
    count: Array
    """How many pins of each wire are inside the stage."""
    blocked: Array
    """How many pins of each wire stay out for good."""
    uses: Array
    """The uses of devices with which the present downset may be part of a split."""
    now: Array
    """One record of `PROGRESS`."""


@compiled
def advance(state: GrowState, limit: float, until: int) -> None:
    """Let every downset be what is done before the next stage, until so many stages were seen."""
    now = state.now
    now.limit = limit
    while now.next < len(state.best) - 1 and now.seen < until:
        here = now.next
        now.next += 1
        num_uses, least = _find_uses(state, here)
        if num_uses > 0 and least < np.inf:
            _grow_stages(state, here, num_uses, least)


@outlined
def _find_uses(state: GrowState, here: Int) -> tuple[Int, Float]:
    """The uses of devices with which this downset may be part of a split, and the least weight of a
    downset after the next stage."""
    width, pool, weight = state.width, state.pools.pool_of_kind, state.weight
    total = weight[len(weight) - 1]
    num_uses, least = 0, np.inf
    for use in range(state.best.shape[1]):
        if state.best[here, use] > state.now.limit:
            continue
        if total - weight[here] > state.now.limit * state.capacity[use] * _SAFE:
            continue
        state.uses[num_uses] = use
        num_uses += 1
        for kind in range(len(width)):
            if state.pools.used[use, pool[kind]] + width[kind] <= state.pools.counts[pool[kind]]:
                left = state.capacity[use + width[kind] * state.pools.stride[pool[kind]]]
                least = min(least, total - state.now.limit * left * _SAFE)
    return num_uses, least


@outlined
def _grow_stages(state: GrowState, here: Int, num_uses: Int, least: Float) -> None:
    """Meet every stage that may follow a downset once, depth first, and keep what is better."""
    after_start, weight, missing = state.after_start, state.weight, state.missing
    ready, levels, lattice = state.ready, state.levels, state.lattice
    total = weight[len(weight) - 1]
    length = _empty_stage(state, here)
    depth, at, there = np.int64(0), np.int64(0), np.int64(here)  # literals would be compiled apart
    while True:
        if at < length and total - levels[depth].left_out >= least:
            node = ready[at]
            state.now.seen += 1
            if _take(state, node, depth):
                depth += 1
                levels[depth].at, levels[depth].length, levels[depth].there = at, length, there
                for step in range(lattice.step_start[there], lattice.step_start[there + 1]):
                    if lattice.step_node[step] == node:
                        there = np.int64(lattice.step_to[step])
                        break
                if weight[there] >= least:
                    _keep(state, here, there, depth, num_uses)
                for edge in range(after_start[node], after_start[node + 1]):
                    other = state.after_node[edge]
                    missing[other] -= 1
                    if missing[other] == 0:
                        ready[length] = other
                        length += 1
                at += 1
                continue
        elif depth == 0:
            break
        else:  # take back what was left out at this depth, then the node that led here
            for place in range(levels[depth].at + 1, at):
                _block(state, ready[place], _BACK)
            at, length = np.int64(levels[depth].at), np.int64(levels[depth].length)
            there = np.int64(levels[depth].there)
            node = ready[at]
            for edge in range(after_start[node], after_start[node + 1]):
                missing[state.after_node[edge]] += 1
            depth -= 1
        for edge in range(state.node_wires_start[node], state.node_wires_start[node + 1]):
            state.count[state.node_wires[edge]] -= 1
        levels[depth].fixed += _block(state, node, _OUT)  # left out for good, at this depth
        levels[depth].left_out = max(levels[depth].left_out, state.weight_above[node])
        at += 1


@outlined
def _empty_stage(state: GrowState, here: Int) -> Int:
    """Prepare the stage without nodes; returns how many nodes are ready."""
    missing, is_in = state.missing, state.is_in
    for node in range(len(is_in)):
        is_in[node] = 1 if has_node(state.lattice.bits, here, node) else 0
    for node in range(len(missing)):
        missing[node] = 0
        for edge in range(state.before_start[node], state.before_start[node + 1]):
            missing[node] += 1 - is_in[state.before_node[edge]]
    for wire in range(len(state.count)):
        state.count[wire] = 0
        state.blocked[wire] = 0
        for pin in range(state.wire_start[wire], state.wire_start[wire + 1]):
            state.blocked[wire] += is_in[state.wire_node[pin]]
    length = 0
    for step in range(state.lattice.step_start[here], state.lattice.step_start[here + 1]):
        state.ready[length] = state.lattice.step_node[step]
        length += 1
    level = state.levels[0]
    level.cut, level.fixed, level.held, level.saved, level.left_out = 0.0, 0.0, 0.0, 0.0, 0.0
    for kind in range(state.by_kind.shape[1]):
        state.by_kind[0, kind] = 0.0
    return length


@inlined
def _take(state: GrowState, node: Int, depth: Int) -> Bool:
    """Add a node to the stage; whether some kind of device may run it or what contains it."""
    wire_seconds, levels, count = state.wire_seconds, state.levels, state.count
    cut, fixed = levels[depth].cut, levels[depth].fixed
    for edge in range(state.node_wires_start[node], state.node_wires_start[node + 1]):
        wire = state.node_wires[edge]
        count[wire] += 1
        if count[wire] == 1:
            cut += wire_seconds[wire]
            if state.blocked[wire] > 0:
                fixed += wire_seconds[wire]
        if count[wire] == state.wire_start[wire + 1] - state.wire_start[wire]:
            cut -= wire_seconds[wire]
    below, limit = depth + 1, state.now.limit
    held = levels[depth].held + state.held_bytes[node]
    levels[below].cut, levels[below].fixed, levels[below].held = cut, fixed, held
    levels[below].saved = levels[depth].saved + state.saved_bytes[node]
    levels[below].left_out = levels[depth].left_out
    may_grow = False
    for kind in range(len(state.memory)):
        load = state.by_kind[depth, kind] + state.seconds[kind, node]
        state.by_kind[below, kind] = load
        if load + state.share[kind] * fixed <= limit and held <= state.memory[kind]:
            may_grow = True
    return may_grow


@inlined
def _block(state: GrowState, node: Int, by: Int) -> Float:
    """Leave a node out, or take that back; the seconds of wires that this cuts for good."""
    fixed = 0.0
    for edge in range(state.node_wires_start[node], state.node_wires_start[node + 1]):
        wire = state.node_wires[edge]
        state.blocked[wire] += by
        if state.blocked[wire] == 1 and state.count[wire] > 0:
            fixed += state.wire_seconds[wire]
    return fixed


@inlined
def _keep(state: GrowState, here: Int, there: Int, depth: Int, num_uses: Int) -> None:
    """Let the stage between two downsets be the next one, where that is better."""
    pools, weight, best, limit = state.pools, state.weight, state.best, state.now.limit
    pool = pools.pool_of_kind
    left = weight[len(weight) - 1] - weight[there]
    level = state.levels[depth]
    cut, held, saved = level.cut, level.held, level.saved
    for kind in range(len(state.memory)):
        load = state.by_kind[depth, kind] + state.share[kind] * cut
        if load > limit:
            continue
        for number in range(num_uses):
            use = state.uses[number]
            after = use + state.width[kind] * pools.stride[pool[kind]]
            if pools.used[use, pool[kind]] + state.width[kind] > pools.counts[pool[kind]]:
                continue
            if held + state.flights[use] * saved > state.memory[kind]:
                continue
            if left > limit * state.capacity[after] * _SAFE:
                continue
            value = max(best[here, use], load)
            if value < best[there, after]:
                best[there, after] = value
                state.from_downset[there, after] = here
                state.from_kind[there, after] = kind
