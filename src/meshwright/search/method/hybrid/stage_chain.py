"""The dynamic programme over layers, devices and stages; compiled.

Stages are laid out from the end of a pod to its start, so that the number of a stage from the end,
on which its microbatches in flight depend, and the place of its devices, on which the level of the
network to the next stage depends, are both known when it is added:
value[stages][first layer][devices] is the least possible largest load of the stages from that layer
to the end on exactly the last so many devices of the pod. Nothing here knows what a load is.
"""

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.compiled import Array, Float, Int, compiled


@compiled
def pick_options(load: Array, most: Array, in_flight: Array, best: Array, chosen: Array) -> None:
    """Of the options (rows) that fit so many microbatches, the least load for each shape.

    `in_flight` by stage from the end, rising; `best` and `chosen` by shape and stage.
    """
    num_options, num_shapes = load.shape
    num_stages = len(in_flight)
    for shape in range(num_shapes):
        for stage in range(num_stages):
            best[shape, stage] = np.inf
            chosen[shape, stage] = -1
        for option in range(num_options):
            for stage in range(num_stages):
                if in_flight[stage] > most[option, shape]:
                    break
                if load[option, shape] < best[shape, stage]:
                    best[shape, stage] = load[option, shape]
                    chosen[shape, stage] = option


@compiled
def fill_values(
    loads: Array,
    places: Array,
    shape_of: Array,
    sizes: Array,
    limit: Float,
    adds: Int,
    value: Array,
    next_layer: Array,
    next_size: Array,
) -> None:
    """Fill `value` by stages (none first), first layer and devices (in units), and the choices.

    `loads` by place, stage from the end and shape; infinite: does not fit. `places` says which
    place a stage has by its size and the devices from its first to the end. Loads above `limit` are
    not used. `adds`: minimise the sum of loads instead of the largest. A shape of -1: such a stage
    is left out. Where there is one size, `value` has one column of devices: as many as stages.
    """
    num_sizes, num_stages = len(sizes), value.shape[0] - 1
    is_even = num_sizes == 1
    num_layers, num_units = value.shape[1] - 1, value.shape[2] - 1
    for first in range(num_layers + 1):
        for units in range(num_units + 1):
            value[0, first, units] = 0.0 if first == num_layers and units == 0 else np.inf
    for stage in range(1, num_stages + 1):
        for first in range(num_layers + 1):
            # So many layers are left at least, one a stage.
            if first > num_layers - stage:
                for units in range(num_units + 1):
                    value[stage, first, units] = np.inf
                continue
            for units in range(num_units + 1):
                least, layer, kind = np.inf, -1, -1
                for size in range(num_sizes):
                    left = 0 if is_even else units - sizes[size]
                    if left < 0:
                        continue
                    place = places[size, stage if is_even else units]
                    for after in range(first + 1, num_layers - stage + 2):
                        rest = value[stage - 1, after, left]
                        if rest == np.inf:
                            continue
                        shape = shape_of[first, after]
                        if shape < 0:
                            continue
                        load = loads[place, stage - 1, shape]
                        if load > limit:
                            continue
                        total = load + rest if adds else max(load, rest)
                        if total < least:
                            least, layer, kind = total, after, size
                value[stage, first, units] = least
                next_layer[stage, first, units] = layer
                next_size[stage, first, units] = kind


def least_load(
    loads: Floats, places: Longs, shape_of: Longs, sizes: Longs, limit: float, adds: bool
) -> tuple[Floats, Longs, Longs]:
    """Values and choices; see `fill_values`."""
    num_stages, num_layers = loads.shape[1], len(shape_of) - 1
    num_units = 0 if len(sizes) == 1 else places.shape[1] - 1
    shape = (num_stages + 1, num_layers + 1, num_units + 1)
    value = np.empty(shape)
    next_layer, next_size = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    fill_values(loads, places, shape_of, sizes, limit, int(adds), value, next_layer, next_size)
    return value, next_layer, next_size


def read_chain(
    next_layer: Longs, next_size: Longs, sizes: Longs, num_stages: int, num_units: int
) -> list[tuple[int, int, int, int]]:
    """The stages from the first on: first layer, the layer after the last, which size, and the
    devices from its first to the end, in units."""
    is_even = len(sizes) == 1
    chain, first, units = [], 0, num_units
    for stage in range(num_stages, 0, -1):
        place = (stage, first, 0 if is_even else units)
        after, size = int(next_layer[place]), int(next_size[place])
        chain.append((first, after, size, stage if is_even else units))
        first, units = after, units - int(sizes[size])
    return chain
