"""The kernel of the dynamic programme: grows stages backwards from what is already in later ones.

Under a limit of seconds, best[u, n] is the least sum of replicas of stages that make up upset u
(closed under successors) on at most n devices: memory asks for no more, and the fewer, the fewer
microbatches are in flight before them. Arrays come in tuples:

- lattice: bits, and the steps from upset to upset, by node
- graph: where each node's neighbours start, the neighbours, where the same edge stands among the
  neighbour's own, the least seconds of the edge where it is cut, by width
- ways: where those of a node and width start; seconds, seconds of agreeing on parameters, bytes a
  flight, fixed bytes; where the seconds of a way's cut edges start, these, by neighbour
- sums, of upsets by width: least seconds, agreeing, bytes a flight, fixed bytes; how many nodes
  have no way
- prices: of numbers of flights the place in a grid; by width and place prices of memory; by upset
  too, what nodes take at least, seconds and priced bytes, last bytes alone
- choices: widths, numbers of replicas, how many of these are within a number
- limits: of seconds and of bytes
- table: replicas, seconds, the upset before the stage (-1: as with a device less) and the choice
- front: devices and replicas of what is known of one upset, devices rising, replicas falling
- walk: who saw an upset last, the upsets met, who led there, by which node, seconds of cut edges
- stage: its nodes, a mark on these, items by node, seconds, agreeing, bytes a flight, fixed bytes,
  then seconds and bytes at some replicas and flights; the options taken: devices, replicas, how
  many replicas may come after
- knapsack: what the rest takes, lists
"""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined, outlined
from meshwright.search.method.pipeline.stage.lattice import has_node
from solver.piper.fit import FITS, NO_ROOM, find_fit

DONE, PAUSED, FULL = 0, 1, 2

_SAFE = 1 + 1e-9
"""Sums over upsets are differences: nothing is left alone for their rounding."""

UNKNOWN = 1 << 30
"""Replicas where no stages are known."""


@compiled
def advance(
    lattice: Any, graph: Any, ways: Any, sums: Any, prices: Any, choices: Any, most: Any,
    limits: Any, num_microbatches: int, until: int, table: Any, state: Any, front: Any, walk: Any,
    stage: Any, knapsack: Any,
) -> Any:  # fmt: skip
    """Let every upset be what is in later stages, until so many stages were seen. `most`: the
    devices that each may take."""
    bits, step_start, step_node, step_to = lattice
    seen, met, led, by, cut = walk
    while state[0] < len(most) - 1 and state[1] < until:
        here = state[0]
        count = _list_front(here, most[here], table, front)
        if count > 0:
            state[2] += 1
            met[0] = here
            cut[0, :] = 0.0
            tail = 1
            head = 0
            while head < tail:
                there = met[head]
                if head > 0:
                    state[1] += 1
                    _cut_edges(here, head, bits, graph, walk)
                    found = _try_stage(
                        here, there, head, count, graph, ways, sums, prices, choices, most,
                        limits, num_microbatches, table, state, front, walk, stage, knapsack,
                    )  # fmt: skip
                    if found == FULL:
                        return FULL  # this upset is begun again with more room
                    if found == 0:
                        head += 1
                        continue  # nor does what contains the stage fit
                for step in range(step_start[there], step_start[there + 1]):
                    to = step_to[step]
                    if seen[to] != state[2]:
                        seen[to] = state[2]
                        met[tail], led[tail], by[tail] = to, head, step_node[step]
                        tail += 1
                head += 1
        state[0] += 1
    return DONE if state[0] == len(most) - 1 else PAUSED


@inlined
def _list_front(here: Any, most: Any, table: Any, front: Any) -> Any:
    """Write what is known of an upset: more devices only where they spare replicas."""
    best = table[0]
    devices, replicas = front
    count = 0
    least = UNKNOWN
    for number in range(most + 1):
        if best[here, number] < least:
            least = best[here, number]
            devices[count], replicas[count] = number, least
            count += 1
    return count


@inlined
def _cut_edges(here: Any, head: Any, bits: Any, graph: Any, walk: Any) -> None:
    """Write the least seconds of the edges that a stage cuts, from those without its last node."""
    start, neighbour, twin, least = graph
    _, met, led, by, cut = walk
    node, before = by[head], led[head]
    for width in range(cut.shape[1]):
        cut[head, width] = cut[before, width]
    for edge in range(start[node], start[node + 1]):
        other = neighbour[edge]
        if has_node(bits, met[before], other) and not has_node(bits, here, other):
            for width in range(cut.shape[1]):
                cut[head, width] -= least[twin[edge], width]
        else:
            for width in range(cut.shape[1]):
                cut[head, width] += least[edge, width]


@inlined
def _first_count(alone: Any, agreed: Any, limit: Any, num_within: Any) -> Any:
    """The place of the fewest replicas with which a stage is fast enough; where it is not faster
    with more, the first. Seconds with d replicas: agreed + (alone - agreed) / d."""
    if alone <= limit * _SAFE or agreed >= limit:
        return 0
    least = (alone - agreed) / (limit - agreed) / _SAFE
    if least >= len(num_within):
        return num_within[len(num_within) - 1]
    return num_within[max(0, int(np.ceil(least)) - 1)]


@inlined
def _may_run(
    alone: Any, agreed: Any, flight: Any, fixed: Any, most_replicas: Any, least_after: Any,
    limits: Any,
) -> Any:  # fmt: skip
    """Whether a stage might fit with some replicas, by what its nodes take at least."""
    if min(alone, agreed + (alone - agreed) / most_replicas) > limits[0] * _SAFE:
        return False
    flights = 1 + (least_after + most_replicas - 1) // most_replicas
    return flight * flights + fixed <= limits[1] * _SAFE


@outlined
def _try_stage(
    here: Any, there: Any, head: Any, count: Any, graph: Any, ways: Any, sums: Any, prices: Any,
    choices: Any, most: Any, limits: Any, num_microbatches: Any, table: Any, state: Any, front: Any,
    walk: Any, stage: Any, knapsack: Any,
) -> Any:  # fmt: skip
    """Let the stage between two upsets be the one before; 0 where none that contains it may fit,
    1 where some may, `FULL` without room."""
    seconds, agreeing, flight, fixed, missing = sums
    widths, replica_counts, num_within = choices
    devices, replicas = front
    least_after = replicas[count - 1]
    most_replicas = num_microbatches - least_after
    may_grow, size, taken = 0, 0, 0
    for width in range(len(widths)):
        if missing[there, width] > missing[here, width]:
            continue
        alone = seconds[there, width] - seconds[here, width]
        agreed = agreeing[there, width] - agreeing[here, width]
        held = flight[there, width] - flight[here, width]
        kept = fixed[there, width] - fixed[here, width]
        room = (most[len(most) - 1] - devices[0]) // widths[width]
        end = num_within[max(0, min(room, most_replicas))]
        if end == 0 or not _may_run(
            alone, agreed, held, kept, replica_counts[end - 1], least_after, limits
        ):
            continue
        may_grow = 1
        alone += walk[4][head, width]
        room = (most[there] - devices[0]) // widths[width]
        end = num_within[max(0, min(room, most_replicas))]
        is_listed = False
        for number in range(_first_count(alone, agreed, limits[0], num_within), end):
            each = replica_counts[number]
            if agreed + (alone - agreed) / each > limits[0] * _SAFE:
                continue
            used = widths[width] * each
            first, last = _find_better(
                there, count, used, each, most[there], num_microbatches, table, front, taken, stage
            )
            if last < first:
                continue
            flights = 1 + (replicas[last] + each - 1) // each
            spent = walk[4][head, width] + (each - 1) * agreed
            if not _may_afford(here, there, width, each, flights, spent, prices, limits):
                continue
            if size == 0:
                size = _list_nodes(head, walk, stage, state)
            if not is_listed:
                is_listed = True
                _list_items(size, width, len(widths), graph, ways, stage, state)
            choice = width * len(replica_counts) + number
            taken = _try_replicas(
                here, there, size, choice, first, last, used, each, taken, limits, table, front,
                stage, knapsack,
            )  # fmt: skip
            if taken < 0:
                return FULL
    return may_grow


@inlined
def _may_afford(
    here: Any, there: Any, width: Any, each: Any, flights: Any, spent: Any, prices: Any, limits: Any
) -> Any:
    """Whether time and memory might do together, by what nodes take at least at some prices."""
    places, price, sums = prices
    place = places[flights]
    last = price.shape[2] - 1
    held = sums[there, width, place, last] - sums[here, width, place, last]
    if held > limits[1] * _SAFE:
        return False
    for column in range(last):
        least = sums[there, width, place, column] - sums[here, width, place, column] + spent
        allowed = each * limits[0] + price[width, place, column] * limits[1]
        if least > allowed * _SAFE:
            return False
    return True


@inlined
def _find_better(
    there: Any, count: Any, used: Any, each: Any, most: Any, num_microbatches: Any, table: Any,
    front: Any, taken: Any, stage: Any,
) -> Any:  # fmt: skip
    """The first and the last point of the front from which so many devices and replicas would give
    something better than what is known, if there were the memory.

    An option that was taken already and has no more devices and replicas covers what it allows.
    """
    best = table[0]
    devices, replicas = front
    option_devices, option_replicas, option_after = stage[9:]
    covered = -1
    for option in range(taken):
        if option_devices[option] <= used and option_replicas[option] <= each:
            covered = max(covered, option_after[option])
    found_first, found_last = count, -1
    for point in range(count):
        if devices[point] + used > most or replicas[point] <= covered:
            break
        total = replicas[point] + each
        if total <= num_microbatches and total < best[there, devices[point] + used]:
            found_first = min(found_first, point)
            found_last = point
    return found_first, found_last


@inlined
def _list_nodes(head: Any, walk: Any, stage: Any, state: Any) -> Any:
    """Write the nodes of the stage, and mark them."""
    led, by = walk[2], walk[3]
    nodes, mark = stage[0], stage[1]
    size = 0
    at = head
    state[3] += 1
    while at > 0:
        nodes[size] = by[at]
        mark[by[at]] = state[3]
        size += 1
        at = led[at]
    return size


@inlined
def _list_items(
    size: Any, width: Any, num_widths: Any, graph: Any, ways: Any, stage: Any, state: Any
) -> None:
    """Write the ways of the stage's nodes at a width, with the edges that are cut."""
    neighbour_start, neighbour = graph[0], graph[1]
    way_start, seconds, agreeing, flight, fixed, cut_start, cut_seconds = ways
    nodes, mark, item_start, item_seconds, item_agreeing, item_flight, item_fixed = stage[:7]
    at = 0
    for place in range(size):
        node = nodes[place]
        item_start[place] = at
        first = neighbour_start[node]
        row = node * num_widths + width
        for way in range(way_start[row], way_start[row + 1]):
            spent = seconds[way]
            for edge in range(first, neighbour_start[node + 1]):
                if mark[neighbour[edge]] != state[3]:
                    spent += cut_seconds[cut_start[way] + edge - first]
            item_seconds[at] = spent
            item_agreeing[at] = agreeing[way]
            item_flight[at] = flight[way]
            item_fixed[at] = fixed[way]
            at += 1
    item_start[size] = at


@outlined
def _try_replicas(
    here: Any, there: Any, size: Any, choice: Any, first: Any, last: Any, used: Any, each: Any,
    taken: Any, limits: Any, table: Any, front: Any, stage: Any, knapsack: Any,
) -> Any:  # fmt: skip
    """Let the stage have `each` replicas, before what some points of the front have; returns how
    many options were taken, -1 without room."""
    devices, replicas = front
    option_devices, option_replicas, option_after = stage[9:]
    spent = _spread(size, each, stage)
    if spent > limits[0]:
        return taken
    low = 1 + (replicas[last] + each - 1) // each
    high = 1 + (replicas[first] + each - 1) // each
    flights = _most_flights(size, low, high, limits, stage, knapsack)
    if flights < 0:
        return -1
    if flights == 0:
        return taken
    after = each * (flights - 1)
    option_devices[taken], option_replicas[taken], option_after[taken] = used, each, after
    best, value, came, chose = table
    for point in range(first, last + 1):
        to, total = devices[point] + used, replicas[point] + each
        if replicas[point] > after or total >= best[there, to]:
            continue
        best[there, to] = total
        value[there, to] = max(np.float32(spent), value[here, devices[point]])
        came[there, to] = here
        chose[there, to] = choice
        for more in range(to + 1, best.shape[1]):
            if best[there, more] <= total:
                break
            best[there, more] = total
            came[there, more] = -1
    return taken + 1


@inlined
def _spread(size: Any, each: Any, stage: Any) -> Any:
    """Write the items' seconds with so many replicas; the least that the stage takes."""
    item_start, item_seconds, item_agreeing, spread = stage[2], stage[3], stage[4], stage[7]
    total = 0.0
    for place in range(size):
        least = np.inf
        for item in range(item_start[place], item_start[place + 1]):
            spread[item] = (item_seconds[item] + (each - 1) * item_agreeing[item]) / each
            least = min(least, spread[item])
        total += least
    return total


@inlined
def _most_flights(size: Any, low: Any, high: Any, limits: Any, stage: Any, knapsack: Any) -> Any:
    """The most microbatches in flight, of `low` to `high`, for which there is memory; 0 where there
    is none for `low`, -1 without room. More are tried first: mostly all or none fit."""
    found = 0
    at = high
    while low <= high:
        fits = _fits_flights(size, at, limits, stage, knapsack)
        if fits == NO_ROOM:
            return -1
        if fits == FITS:
            found = at
            low = at + 1
        else:
            if at == low:
                break
            high = at - 1
        at = low if found == 0 else (low + high) // 2
    return found


@outlined
def _fits_flights(size: Any, flights: Any, limits: Any, stage: Any, knapsack: Any) -> Any:
    item_start, item_flight, item_fixed, spread, held = (
        stage[2], stage[5], stage[6], stage[7], stage[8],
    )  # fmt: skip
    for item in range(item_start[size]):
        held[item] = item_flight[item] * flights + item_fixed[item]
    return find_fit(size, item_start, spread, held, limits[0], limits[1], knapsack[0], knapsack[1])
