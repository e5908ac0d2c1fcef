"""The compiled annealing of splits: nodes, pairs, clumps and runs change devices.

Energy = sum over devices of (load / scale) ** power, a smooth stand-in for the largest load, so
that a walk leaves plateaus where several devices are the busiest. The best split is kept by its
largest load. Loads are adjusted wire by wire: when a node moves, only the device that it leaves and
the one that it joins pay for other wires than before. Where nodes have an order, devices are
stages: no node may be on one before its predecessors' or after its successors'.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Bool, Float, Int, compiled, inlined
from meshwright.kernel.draw import below, geometric, uniform

NODE = np.dtype(
    [
        ("bytes", np.float64),
        ("saved_bytes", np.float64),
        ("device", np.int64),
        ("best_device", np.int64),
        ("came_from", np.int64),  # its device before the move that is tried
        ("place", np.int64),  # in the layout
        ("mark", np.int64),  # the last step that picked it
        ("first", np.int64),  # its wires: from here to the next node's
    ],
    align=True,
)
"""One node; arrays of it have one entry more than nodes."""

WIRE = np.dtype([("seconds", np.float64), ("first", np.int64)], align=True)
"""One wire, its pins from `first` to the next wire's; arrays have one entry more than wires."""

DEVICE = np.dtype(
    [
        ("load", np.float64),
        ("energy", np.float64),
        ("held_bytes", np.float64),
        ("limit_bytes", np.float64),
        ("in_flight", np.float64),
        ("share", np.float64),
        ("kind", np.int64),
    ],
    align=True,
)
"""One device: what it holds, and what it has."""

PROGRESS = np.dtype(
    [
        ("best", np.float64),  # the least largest load so far
        ("scale", np.float64),  # the load whose energy is 1
        ("temperature", np.float64),
        ("cooling", np.float64),  # the factor of the temperature in each step
        ("stray", np.float64),  # the share of moves to a device that holds no neighbour
        ("steps", np.int64),  # moves tried so far
    ],
    align=True,
)
"""Where a walk is, and what it has found."""


class SplitWalkState(NamedTuple):
    """Everything that the annealing of a split works on."""

    nodes: Array
    wires: Array
    devices: Array
    pins: Array
    """The nodes that wires join, wire after wire."""
    node_wires: Array
    """The wires that nodes are on, node after node."""
    held: Array
    """By wire and device how many of the wire's pins the device holds."""
    seconds: Array
    """By kind of device and node."""
    after_start: Array
    after_node: Array
    """What comes directly after each node, node after node."""
    before_start: Array
    before_node: Array
    """What comes directly before each node, node after node."""
    layout: Array
    """The nodes in a line, along which runs are picked."""
    picked: Array
    """The nodes that the present move takes."""
    now: Array
    """One record of `PROGRESS`."""
    random: Array


@compiled
def anneal(state: SplitWalkState, squarings: int, mean: float, steps: int) -> None:
    """Try some moves; the power of loads in the energy is 2 ** squarings."""
    nodes, picked = state.nodes, state.picked
    num_nodes = len(nodes) - 1
    _set_energies(state, squarings)
    for _ in range(steps):
        state.now.steps += 1
        state.now.temperature *= state.now.cooling
        first = below(state.random, num_nodes)
        target = _choose_target(state, first)
        source = nodes[first].device
        if source == target:
            continue
        picked[0] = first
        num_picked, partner = _pick(state, state.now.steps, mean, target)
        if num_picked == 0 or not _can_run(state, num_picked, target):
            continue
        if partner >= 0 and state.seconds[state.devices[source].kind, partner] == np.inf:
            continue
        if num_picked == 1 and partner < 0 and not _is_in_order(state, first, target):
            continue
        before, overflow = _sums(state)
        for p in range(num_picked):
            node = picked[p]
            nodes[node].came_from = nodes[node].device
            _shift(state, node, target)
        if partner >= 0:
            nodes[partner].came_from = target
            picked[num_picked] = partner
            num_picked += 1
            _shift(state, partner, source)
        _set_energies(state, squarings)
        after, new_overflow = _sums(state)
        change = after - before
        is_legal = _are_in_order(state, num_picked)
        # Metropolis; what fits the memory better is taken whatever it costs.
        is_taken = is_legal and (
            new_overflow < overflow
            or (
                new_overflow <= overflow
                and (
                    change <= 0.0 or uniform(state.random) < np.exp(-change / state.now.temperature)
                )
            )
        )
        if not is_taken:
            for p in range(num_picked):
                node = picked[p]
                _shift(state, node, nodes[node].came_from)
            _set_energies(state, squarings)
            continue
        if new_overflow == 0.0:
            _keep_best(state)


@inlined
def _is_in_order(state: SplitWalkState, node: Int, device: Int) -> Bool:
    """Whether a device is none before those of a node's predecessors nor after its successors'."""
    for edge in range(state.after_start[node], state.after_start[node + 1]):
        if state.nodes[state.after_node[edge]].device < device:
            return False
    for edge in range(state.before_start[node], state.before_start[node + 1]):
        if state.nodes[state.before_node[edge]].device > device:
            return False
    return True


@inlined
def _are_in_order(state: SplitWalkState, num_picked: Int) -> Bool:
    """Whether all picked nodes are, where they are now."""
    for p in range(num_picked):
        if not _is_in_order(state, state.picked[p], state.nodes[state.picked[p]].device):
            return False
    return True


@inlined
def _set_energies(state: SplitWalkState, squarings: Int) -> None:
    devices = state.devices
    for device in range(len(devices)):
        devices[device].energy = _energy(devices[device].load / state.now.scale, squarings)


@inlined
def _energy(value: Float, squarings: Int) -> Float:
    for _ in range(squarings):
        value *= value
    return value


@inlined
def _sums(state: SplitWalkState) -> tuple[Float, Float]:
    devices = state.devices
    energy, overflow = 0.0, 0.0
    for device in range(len(devices)):
        energy += devices[device].energy
        overflow += max(0.0, devices[device].held_bytes - devices[device].limit_bytes)
    return energy, overflow


@inlined
def _keep_best(state: SplitWalkState) -> None:
    nodes = state.nodes
    largest = 0.0
    for device in range(len(state.devices)):
        largest = max(largest, state.devices[device].load)
    # Sums that were adjusted again and again differ from fresh ones in the last bits.
    if largest < state.now.best * (1.0 - 1e-12):
        state.now.best = largest
        for node in range(len(nodes) - 1):
            nodes[node].best_device = nodes[node].device


@inlined
def _choose_target(state: SplitWalkState, node: Int) -> Int:
    nodes = state.nodes
    begin, end = nodes[node].first, nodes[node + 1].first
    if begin == end or uniform(state.random) < state.now.stray:
        return below(state.random, len(state.devices))
    wire = state.node_wires[begin + below(state.random, end - begin)]
    first = state.wires[wire].first
    return nodes[
        state.pins[first + below(state.random, state.wires[wire + 1].first - first)]
    ].device


@inlined
def _pick(state: SplitWalkState, step: Int, mean: Float, target: Int) -> tuple[Int, Int]:
    """What moves with the first picked node: a partner the other way (or -1), a clump, a run or
    nothing. How many are picked, none where there is no partner, and the partner."""
    num_picked, partner = np.int64(1), np.int64(-1)
    way = uniform(state.random)
    if way < 0.25:
        partner = below(state.random, len(state.nodes) - 1)
        if state.nodes[partner].device != target:
            num_picked = np.int64(0)
    elif way < 0.5:
        num_picked = _pick_clump(state, step, mean)
    elif way < 0.6:
        num_picked = _pick_run(state, target, mean)
    return num_picked, partner


@inlined
def _pick_clump(state: SplitWalkState, step: Int, mean: Float) -> Int:
    """From the first picked node along wires, on its device."""
    nodes, picked = state.nodes, state.picked
    device = nodes[picked[0]].device
    nodes[picked[0]].mark = step
    most = geometric(state.random, mean)
    num_picked = np.int64(1)
    for _ in range(4 * most):
        if num_picked >= most or num_picked >= len(nodes) - 1:
            break
        node = picked[below(state.random, num_picked)]
        begin, end = nodes[node].first, nodes[node + 1].first
        if begin == end:
            break
        wire = state.node_wires[begin + below(state.random, end - begin)]
        first = state.wires[wire].first
        other = state.pins[first + below(state.random, state.wires[wire + 1].first - first)]
        if nodes[other].device == device and nodes[other].mark != step:
            nodes[other].mark = step
            picked[num_picked] = other
            num_picked += 1
    return num_picked


@inlined
def _pick_run(state: SplitWalkState, target: Int, mean: Float) -> Int:
    """From the first picked node on in the layout, to either side, whatever their devices."""
    layout = state.layout
    most = geometric(state.random, 2.0 * mean)
    step = np.int64(1) if uniform(state.random) < 0.5 else np.int64(-1)
    place = state.nodes[state.picked[0]].place + step
    num_picked = np.int64(1)
    while num_picked < most and 0 <= place < len(layout):
        if state.nodes[layout[place]].device != target:
            state.picked[num_picked] = layout[place]
            num_picked += 1
        place += step
    return num_picked


@inlined
def _can_run(state: SplitWalkState, num_picked: Int, target: Int) -> Bool:
    slowest = 0.0
    for p in range(num_picked):
        slowest = max(slowest, state.seconds[state.devices[target].kind, state.picked[p]])
    return slowest < np.inf


@inlined
def _shift(state: SplitWalkState, node: Int, target: Int) -> None:
    nodes, wires, devices, held = state.nodes, state.wires, state.devices, state.held
    source = nodes[node].device
    change_source = -state.seconds[devices[source].kind, node]
    change_target = state.seconds[devices[target].kind, node]
    for e in range(nodes[node].first, nodes[node + 1].first):
        wire = state.node_wires[e]
        num_pins = wires[wire + 1].first - wires[wire].first
        on_source, on_target = held[wire, source], held[wire, target]
        cost = wires[wire].seconds
        if on_source == num_pins:
            change_source += cost * devices[source].share
        elif on_source == 1:
            change_source -= cost * devices[source].share
        if on_target == 0:
            change_target += cost * devices[target].share
        elif on_target == num_pins - 1:
            change_target -= cost * devices[target].share
        held[wire, source] = on_source - 1
        held[wire, target] = on_target + 1
    devices[source].load += change_source
    devices[target].load += change_target
    size, saved = nodes[node].bytes, nodes[node].saved_bytes
    devices[source].held_bytes -= size + devices[source].in_flight * saved
    devices[target].held_bytes += size + devices[target].in_flight * saved
    nodes[node].device = target
