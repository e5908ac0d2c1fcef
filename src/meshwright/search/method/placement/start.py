"""First placements: one device, the network in stripes, list scheduling by several ranks."""

from collections.abc import Iterator

import numpy as np

from meshwright.array import Bools, Floats, Ints
from meshwright.search.instance import Instance, mean_transfer
from meshwright.search.order.heft import schedule_heft

_STRIPES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WEIGHTS = (1.0, 0.0, 2.0)
"""Weights of transfers in the ranks of list scheduling: their mean time, none, twice the mean."""


def first_placements(instance: Instance, sequence: Ints, limits: Floats) -> Iterator[Ints]:
    """Devices of units, the plainest first. `sequence`: the units in the order of the network."""
    can_run = np.isfinite(instance.unit_seconds)[:, instance.type_of]
    devices = _near_devices(instance)
    for count in _counts(instance.num_devices):
        for stripes in _STRIPES:
            if stripes <= max(1, instance.num_units) and (stripes >= count or stripes == 1):
                used = devices[: min(count, stripes)]
                yield _runnable(_stripe(instance, sequence, used, stripes), can_run)
    latency, per_byte = mean_transfer(instance)
    for weight in _WEIGHTS:
        placed, _, _ = schedule_heft(instance, limits, (weight * latency, weight * per_byte))
        device_of_unit = np.zeros(instance.num_units, np.int32)
        device_of_unit[instance.unit_of] = placed
        yield device_of_unit


def _counts(num_devices: int) -> list[int]:
    """Numbers of devices to deal out to: powers of two, and all."""
    counts = [1 << k for k in range(1, num_devices.bit_length()) if 1 << k < num_devices]
    return [*counts, num_devices]


def _near_devices(instance: Instance) -> Ints:
    """The devices, the fastest first, then always the one that is nearest to the one before it."""
    speed = -_known_seconds(instance).sum(axis=0)[instance.type_of]
    near = np.minimum(instance.bandwidth, instance.bandwidth.T).astype(np.float64)
    chosen = [int(np.argmax(speed))]
    left = [each for each in range(instance.num_devices) if each != chosen[0]]
    while left:
        # The nearest to the last one counts, then speed.
        best = max(left, key=lambda each: (near[each, chosen[-1]], speed[each], -each))
        chosen.append(best)
        left.remove(best)
    return np.array(chosen, np.int32)


def _stripe(instance: Instance, sequence: Ints, devices: Ints, stripes: int) -> Ints:
    """The sequence cut into stripes of equal time on the devices that they go to, in turn."""
    seconds = _known_seconds(instance)
    work = seconds.mean(axis=1)[sequence]
    share = 1.0 / np.maximum(seconds.sum(axis=0)[instance.type_of[devices]], 1e-300)
    ends = np.cumsum(np.resize(share, stripes))
    middle = np.cumsum(work) - work / 2
    stripe = np.searchsorted(ends / ends[-1] * max(float(work.sum()), 1e-300), middle)
    placed = np.zeros(instance.num_units, np.int32)
    placed[sequence] = devices[np.minimum(stripe, stripes - 1) % len(devices)]
    return placed


def _known_seconds(instance: Instance) -> Floats:
    """Seconds of units by device type; where a type cannot run one, the most that another type
    takes."""
    is_known = np.isfinite(instance.unit_seconds)
    most = np.where(is_known, instance.unit_seconds, 0.0).max(axis=1, keepdims=True)
    known: Floats = np.where(is_known, instance.unit_seconds, most)
    return known


def _runnable(placed: Ints, can_run: Bools) -> Ints:
    """Units that cannot run where they are on the first device that can run them."""
    wrong = ~can_run[np.arange(len(placed)), placed]
    if wrong.any():
        placed[wrong] = can_run[wrong].argmax(axis=1)
    return placed
