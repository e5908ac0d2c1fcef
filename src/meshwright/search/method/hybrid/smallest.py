"""What would do where no plan fits: how much memory a device, or how many devices.

Memory is least where everything is computed again and ZeRO divides all it can, so only such options
are looked at; the dynamic programme then minimises the most that any device must hold.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from meshwright.kernel.row import group_values
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.stage import Frame
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.frame import FrameSearch, Layouts
from meshwright.search.method.hybrid.option_price import LayerPrices
from meshwright.search.method.hybrid.scope import Scope, list_frames, list_sizes
from meshwright.search.method.hybrid.space import HybridSpace
from meshwright.search.method.hybrid.stage_chain import least_load
from meshwright.search.method.hybrid.tier import NetworkTier
from meshwright.units import format_bytes, format_count

_MAX_DEVICES = 1 << 20
_FREE = NetworkTier(size=1, seconds_per_byte=0.0, alone_seconds_per_byte=0.0, latency_seconds=0.0)
_ROUNDED = 1.001
"""What is named has four digits, and must do."""


def explain_lack(space: HybridSpace, clock: Clock) -> str:
    """One line: what a device would need with so many, or how many of them would do, if there is
    time to try such numbers."""
    needed = least_bytes(space)
    place = int(np.argmin(space.layouts.usable_bytes))
    usable = float(space.layouts.usable_bytes[place])
    memory = space.cluster.devices[space.prices.tiers.order[place]].memory_bytes
    has = f"{format_bytes(memory)}, of which {format_bytes(usable)} may be filled"
    fewest = min(space.scope.pipeline or (1,)) * min(space.scope.chunks or (1,))
    if needed == inf or fewest > space.stack.num_layers:
        return (
            f"no plan divides {format_count(space.batch, 'sample')} and "
            f"{format_count(space.stack.num_layers, 'layer')} over "
            f"{format_count(space.cluster.num_devices, 'device')} {_name_limits(space.scope)}"
        )
    text = (
        f"every plan needs {format_bytes(needed)} on some device, and the smallest has {has}: "
        f"memory of {format_bytes(_enough_memory(space, needed))} a device would do"
    )
    wanted = _enough_devices(space, usable, clock)
    return f"{text}, or {wanted:,} such devices" if wanted else text


def _name_limits(scope: Scope) -> str:
    """What is in the way of a division, by the options that say so."""
    limits = scope.limits
    if not limits:
        return "evenly; try another --batch"
    given = ", ".join(f"--{name} {','.join(map(str, limits[name]))}" for name in limits)
    return f"within {given}: allow others, or leave out an option"


def least_bytes(space: HybridSpace) -> float:
    """The least memory, of the fullest device, that any plan of the scope needs."""
    keeps_least = max(space.scope.recompute, key=list(Recompute).index)
    options = [
        each
        for each in space.options
        if each.zero in (min(space.scope.zero), max(space.scope.zero))
        and each.recompute is keeps_least
    ]
    least = inf
    for frame, size in _frames(space):
        search = FrameSearch(space.layouts, space.shapes, frame, [size], options)
        if search.sizes:
            least = min(least, _least_of(search))
    return least


def _frames(space: HybridSpace) -> Iterator[tuple[Frame, int]]:
    """The frames with the smallest microbatches for each number of pods, which hold least."""
    num_devices = len(space.prices.tiers.order)
    frames_of = list_frames(space.scope, space.batch, num_devices)
    for pods, frames in group_values((frame.pods, frame) for frame in frames_of).items():
        for size in list_sizes(num_devices // pods):
            for frame in frames:
                yield frame, size


def _least_of(search: FrameSearch) -> float:
    """The schedule is 1F1B, which holds fewest microbatches."""
    num_stages = search.most_stages
    in_flight = search.flights(ScheduleKind.ONE_F_ONE_B, num_stages)
    known, places = search.places
    loads = np.empty((len(known), num_stages, len(search.shapes.counts)))
    for number, place in enumerate(known):
        table = search.table_of(place)
        for stage in range(num_stages):
            fixed = table.fixed_bytes + table.passing_bytes
            held = fixed + in_flight[stage] * table.saved_bytes
            loads[number, stage] = held.min(axis=0)
    sizes = np.array(search.sizes) // search.unit
    value, *_ = least_load(loads, places, search.shapes.shape_of, sizes, np.inf, False)
    counts = [search.frame.pipeline] if search.frame.pipeline else range(1, num_stages + 1)
    return min((float(value[each, 0].min()) for each in counts if each <= num_stages), default=inf)


def _enough_memory(space: HybridSpace, needed: float) -> float:
    """Memory of each device with which a plan fits that needs so much of it now.

    Tried, because what is kept free is no fixed part of the memory (`cost.memory`).
    """
    while True:
        usable = float(space.layouts.usable_bytes.min())
        memory = min(each.memory_bytes for each in space.cluster.devices) * _ROUNDED
        memory *= max(needed / usable, 1.0)
        devices = tuple(replace(each, memory_bytes=memory) for each in space.cluster.devices)
        cluster = replace(space.cluster, devices=devices)
        prices = LayerPrices(space.stack, cluster, space.prices.tiers)
        space = replace(space, cluster=cluster, prices=prices, layouts=Layouts(prices))
        needed = least_bytes(space)
        if needed <= space.layouts.usable_bytes.min():
            return memory


def _enough_devices(space: HybridSpace, usable: float, clock: Clock) -> int:
    """The first of 1.5, 2, 3, 4, 6 ... times as many devices for which a plan fits; 0: none, or
    none of those that there was time for.

    A stage for each layer, a replica for each sample and the widest team for each of these: more
    devices than that have nothing left to divide.
    """
    num_devices = space.cluster.num_devices
    widest = max((each.team.num_devices for each in space.options), default=1)
    most = min(_MAX_DEVICES, 2 * space.batch * space.stack.num_layers * widest)
    for power in range(20):
        for count in (3 * (num_devices << power) // 2, num_devices << (power + 1)):
            if count > most or clock.is_over:
                return 0
            if least_bytes(_grown(space, count)) <= usable:
                return count
    return 0


def _grown(space: HybridSpace, num_devices: int) -> HybridSpace:
    """The same with more devices like those there are."""
    there = space.prices.tiers.order
    order = tuple(there[place % len(there)] for place in range(num_devices))
    # Devices stand there several times, so that no link of theirs can be asked about; one alone has
    # no tiers, and only memory is looked at.
    known = space.prices.tiers.tiers or (_FREE,)
    tiers = replace(space.prices.tiers, order=order, tiers=known, is_even=True)
    prices = LayerPrices(space.stack, space.cluster, tiers)
    return replace(space, prices=prices, layouts=Layouts(prices))
