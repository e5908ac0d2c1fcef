"""Searches placements on the devices of some hosts only: a search on all rarely stays there."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.search.instance import Instance
from meshwright.search.method.bandwidth.joint.space import RateSpace
from meshwright.search.method.placement.level_search import search_rounds
from meshwright.search.method.placement.placement_walk import Placed


class Narrow:
    """An instance as if it had some hosts' devices only; answers have the devices' own numbers."""

    def __init__(self, instance: Instance, space: RateSpace, hosts: Longs, limits: Floats) -> None:
        self._devices = np.flatnonzero(np.isin(space.hosts.host_of, hosts))
        table = np.ix_(self._devices, self._devices)
        bandwidth, latency = instance.bandwidth[table], instance.latency[table]
        for each in (bandwidth, latency):
            each.setflags(write=False)  # as of a cluster, which kernels are compiled for
        self._limits = limits[self._devices]
        self._instance = replace(
            instance,
            type_of=instance.type_of[self._devices],
            bandwidth=bandwidth,
            latency=latency,
        )

    def can_run(self) -> bool:
        """Whether each unit can run on some of the devices."""
        return bool(
            np.isfinite(self._instance.unit_seconds[:, self._instance.type_of]).any(axis=1).all()
        )

    def improve(self, device_of_unit: Ints, seed: int, is_over: Callable[[], bool]) -> Placed:
        """A round of search from a placement."""
        known = np.searchsorted(self._devices, device_of_unit).astype(np.int32)
        return self._search(seed, is_over, known)

    def begin(self, seed: int, is_over: Callable[[], bool]) -> Placed:
        """A first round of search, from no placement."""
        return self._search(seed, is_over, None)

    def _search(self, seed: int, is_over: Callable[[], bool], known: Ints | None) -> Placed:
        placed = next(search_rounds(self._instance, self._limits, seed, is_over, known))
        return replace(placed, device_of_unit=self._devices[placed.device_of_unit].astype(np.int32))
