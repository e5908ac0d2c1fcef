"""Searches placements on the devices of some hosts only, and with links slowed from the start.

A search on all devices rarely stays on few, and one that takes every transfer to be alone spreads
ops over more links than they can share. Where several hosts share links both are worth a search of
their own. Knows transfers that take their time alone; the simulator decides elsewhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.search.instance import Instance
from meshwright.search.method.placement.level_search import search_rounds
from meshwright.search.method.placement.placement_walk import Placed

FIRST_WAITS = (1.25, 1.5, 1.0)
"""How many times as long as alone transfers between hosts are taken to need in the first rounds on
some hosts, where they share links; of these rounds the best counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Narrow:
    """An instance as if it had some devices only; answers have the devices' own numbers."""

    devices: Longs
    instance: Instance
    limits: Floats

    @property
    def can_run(self) -> bool:
        """Whether each unit can run on some of the devices."""
        seconds = self.instance.unit_seconds[:, self.instance.type_of]
        return bool(np.isfinite(seconds).any(axis=1).all())

    def search(
        self, seed: int, is_over: Callable[[], bool], device_of_unit: Ints | None = None
    ) -> Placed:
        """A round of search from a placement on these devices, or a first one, from none."""
        known = None
        if device_of_unit is not None:
            known = np.searchsorted(self.devices, device_of_unit).astype(np.int32)
        placed = next(search_rounds(self.instance, self.limits, seed, is_over, known))
        return replace(placed, device_of_unit=self.devices[placed.device_of_unit].astype(np.int32))


def narrow(instance: Instance, devices: Longs, limits: Floats) -> Narrow:
    """The instance on these devices, which rise."""
    table = np.ix_(devices, devices)
    bandwidth, latency = instance.bandwidth[table], instance.latency[table]
    for each in (bandwidth, latency):
        each.setflags(write=False)  # as of a cluster, which kernels are compiled for
    return Narrow(
        devices=devices,
        limits=limits[devices],
        instance=replace(
            instance, type_of=instance.type_of[devices], bandwidth=bandwidth, latency=latency
        ),
    )


def slowed(instance: Instance, wait: float) -> Instance:
    """The instance with transfers between hosts so many times as long."""
    host = instance.cluster.host_of
    is_far = host[:, None] != host
    return replace(instance, bandwidth=np.where(is_far, 1 / wait, 1.0) * instance.bandwidth)


def host_sets(instance: Instance) -> Iterator[Longs]:
    """The devices of the hosts that compute most: of two hosts, three, powers of two, all."""
    host, num_hosts = instance.cluster.host_of, len(instance.cluster.hosts)
    seconds = np.where(np.isfinite(instance.unit_seconds), instance.unit_seconds, 0.0).sum(axis=0)
    speed = 1.0 / np.maximum(seconds, 1e-300)[instance.type_of]
    strongest = np.argsort(-np.bincount(host, weights=speed, minlength=num_hosts), kind="stable")
    for count in host_counts(num_hosts):
        yield np.flatnonzero(np.isin(host, strongest[:count]))


def host_counts(num_hosts: int) -> list[int]:
    """Numbers of hosts that are looked at by themselves: two, three, powers of two, all."""
    counts = {2, 3, num_hosts} | {1 << k for k in range(2, num_hosts.bit_length())}
    return sorted(each for each in counts if 2 <= each <= num_hosts)
