"""The compiled annealing of splits: nodes, pairs, clumps and runs change devices.

Energy = sum over devices of (load / scale) ** power, a smooth stand-in for the largest load, so
that a walk leaves plateaus where several devices are the busiest. The best split is kept by its
largest load. Loads are adjusted wire by wire: when a node moves, only the device that it leaves and
the one that it joins pay for other wires than before. Where nodes have an order, devices are
stages: no node may be on one before its predecessors' or after its successors'.
"""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined
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
"""One device."""

BEST, SCALE, TEMPERATURE, COOLING, STRAY = range(5)
"""Places in the array of numbers: the best largest load, the scale of loads, the temperature, its
factor a step, and the share of moves to a device that holds no neighbour."""
STEPS = 0
"""Place in the array of counts."""


@compiled
def walk(
    nodes: Any, wires: Any, devices: Any, pins: Any, node_wires: Any, held: Any, seconds: Any,
    order: Any, layout: Any, picked: Any, numbers: Any, counts: Any, random: Any, squarings: int,
    mean: float, steps: int,
) -> None:  # fmt: skip
    """Try `steps` moves; `held[wire, device]` are pins, power = 2 ** squarings, `order` is what
    comes after and what comes before each node."""
    num_nodes = len(nodes) - 1
    _set_energies(devices, numbers[SCALE], squarings)
    for _ in range(steps):
        counts[STEPS] += 1
        numbers[TEMPERATURE] *= numbers[COOLING]
        first = below(random, num_nodes)
        target = _choose_target(nodes, wires, devices, pins, node_wires, numbers, random, first)
        source = nodes[first].device
        if source == target:
            continue
        picked[0] = first
        num_picked, partner = _pick(
            nodes, wires, pins, node_wires, layout, picked, random, counts[STEPS], mean, target
        )
        if num_picked == 0 or not _can_run(devices, seconds, picked, num_picked, target):
            continue
        if partner >= 0 and seconds[devices[source].kind, partner] == np.inf:
            continue
        if num_picked == 1 and partner < 0 and not _is_in_order(nodes, order, first, target):
            continue
        before, overflow = _sums(devices)
        for p in range(num_picked):
            node = picked[p]
            nodes[node].came_from = nodes[node].device
            _shift(nodes, wires, devices, node_wires, held, seconds, node, target)
        if partner >= 0:
            nodes[partner].came_from = target
            picked[num_picked] = partner
            num_picked += 1
            _shift(nodes, wires, devices, node_wires, held, seconds, partner, source)
        _set_energies(devices, numbers[SCALE], squarings)
        after, new_overflow = _sums(devices)
        change = after - before
        is_legal = _are_in_order(nodes, order, picked, num_picked)
        # Metropolis; what fits the memory better is taken whatever it costs.
        is_taken = is_legal and (
            new_overflow < overflow
            or (
                new_overflow <= overflow
                and (change <= 0.0 or uniform(random) < np.exp(-change / numbers[TEMPERATURE]))
            )
        )
        if not is_taken:
            for p in range(num_picked):
                node = picked[p]
                _shift(
                    nodes, wires, devices, node_wires, held, seconds, node, nodes[node].came_from
                )
            _set_energies(devices, numbers[SCALE], squarings)
            continue
        if new_overflow == 0.0:
            _keep_best(nodes, devices, numbers)


@inlined
def _is_in_order(nodes: Any, order: Any, node: Any, device: Any) -> Any:
    """Whether a device is none before those of a node's predecessors nor after its successors'."""
    after_start, after_node, before_start, before_node = order
    for edge in range(after_start[node], after_start[node + 1]):
        if nodes[after_node[edge]].device < device:
            return False
    for edge in range(before_start[node], before_start[node + 1]):
        if nodes[before_node[edge]].device > device:
            return False
    return True


@inlined
def _are_in_order(nodes: Any, order: Any, picked: Any, num_picked: Any) -> Any:
    """Whether all picked nodes are, where they are now."""
    for p in range(num_picked):
        if not _is_in_order(nodes, order, picked[p], nodes[picked[p]].device):
            return False
    return True


@inlined
def _set_energies(devices: Any, scale: Any, squarings: Any) -> None:
    for device in range(len(devices)):
        devices[device].energy = _energy(devices[device].load, scale, squarings)


@inlined
def _energy(load: Any, scale: Any, squarings: Any) -> Any:
    value = load / scale
    for _ in range(squarings):
        value *= value
    return value


@inlined
def _sums(devices: Any) -> Any:
    energy, overflow = 0.0, 0.0
    for device in range(len(devices)):
        energy += devices[device].energy
        overflow += max(0.0, devices[device].held_bytes - devices[device].limit_bytes)
    return energy, overflow


@inlined
def _keep_best(nodes: Any, devices: Any, numbers: Any) -> None:
    largest = 0.0
    for device in range(len(devices)):
        largest = max(largest, devices[device].load)
    # Sums that were adjusted again and again differ from fresh ones in the last bits.
    if largest < numbers[BEST] * (1.0 - 1e-12):
        numbers[BEST] = largest
        for node in range(len(nodes) - 1):
            nodes[node].best_device = nodes[node].device


@inlined
def _choose_target(
    nodes: Any, wires: Any, devices: Any, pins: Any, node_wires: Any, numbers: Any, random: Any,
    node: Any,
) -> Any:  # fmt: skip
    begin, end = nodes[node].first, nodes[node + 1].first
    if begin == end or uniform(random) < numbers[STRAY]:
        return below(random, len(devices))
    wire = node_wires[begin + below(random, end - begin)]
    first = wires[wire].first
    return nodes[pins[first + below(random, wires[wire + 1].first - first)]].device


@inlined
def _pick(
    nodes: Any, wires: Any, pins: Any, node_wires: Any, layout: Any, picked: Any, random: Any,
    step: Any, mean: Any, target: Any,
) -> Any:  # fmt: skip
    """What moves with the first picked node: a partner the other way (or -1), a clump, a run or
    nothing. How many are picked, none where there is no partner, and the partner."""
    num_picked, partner = np.int64(1), np.int64(-1)
    way = uniform(random)
    if way < 0.25:
        partner = below(random, len(nodes) - 1)
        if nodes[partner].device != target:
            num_picked = np.int64(0)
    elif way < 0.5:
        num_picked = _pick_clump(nodes, wires, pins, node_wires, picked, random, step, mean)
    elif way < 0.6:
        num_picked = _pick_run(nodes, layout, picked, random, target, mean)
    return num_picked, partner


@inlined
def _pick_clump(
    nodes: Any, wires: Any, pins: Any, node_wires: Any, picked: Any, random: Any, step: Any,
    mean: Any,
) -> Any:  # fmt: skip
    """From the first picked node along wires, on its device."""
    device = nodes[picked[0]].device
    nodes[picked[0]].mark = step
    most = geometric(random, mean)
    num_picked = np.int64(1)
    for _ in range(4 * most):
        if num_picked >= most or num_picked >= len(nodes) - 1:
            break
        node = picked[below(random, num_picked)]
        begin, end = nodes[node].first, nodes[node + 1].first
        if begin == end:
            break
        wire = node_wires[begin + below(random, end - begin)]
        first = wires[wire].first
        other = pins[first + below(random, wires[wire + 1].first - first)]
        if nodes[other].device == device and nodes[other].mark != step:
            nodes[other].mark = step
            picked[num_picked] = other
            num_picked += 1
    return num_picked


@inlined
def _pick_run(nodes: Any, layout: Any, picked: Any, random: Any, target: Any, mean: Any) -> Any:
    """From the first picked node on in the layout, to either side, whatever their devices."""
    most = geometric(random, 2.0 * mean)
    step = np.int64(1) if uniform(random) < 0.5 else np.int64(-1)
    place = nodes[picked[0]].place + step
    num_picked = np.int64(1)
    while num_picked < most and 0 <= place < len(layout):
        if nodes[layout[place]].device != target:
            picked[num_picked] = layout[place]
            num_picked += 1
        place += step
    return num_picked


@inlined
def _can_run(devices: Any, seconds: Any, picked: Any, num_picked: Any, target: Any) -> Any:
    slowest = 0.0
    for p in range(num_picked):
        slowest = max(slowest, seconds[devices[target].kind, picked[p]])
    return slowest < np.inf


@inlined
def _shift(
    nodes: Any, wires: Any, devices: Any, node_wires: Any, held: Any, seconds: Any, node: Any,
    target: Any,
) -> None:  # fmt: skip
    source = nodes[node].device
    change_source = -seconds[devices[source].kind, node]
    change_target = seconds[devices[target].kind, node]
    for e in range(nodes[node].first, nodes[node + 1].first):
        wire = node_wires[e]
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
