"""Which rank runs on which device of which host. Knows no launcher."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.cluster.cluster import Cluster
from meshwright.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank runs."""

    rank: int
    device: str
    host: str
    index: int
    """The number of the device on its host, as its driver counts from zero."""


def place_ranks(cluster: Cluster, devices: Sequence[str]) -> tuple[Place, ...]:
    """The place of each rank, for devices in the order of ranks."""
    on_host: dict[str, int] = {}
    index, host = {}, {}
    for device in cluster.devices:
        index[device.name] = on_host.setdefault(device.host, 0)
        on_host[device.host] += 1
        host[device.name] = device.host
    return tuple(
        Place(rank=rank, device=name, host=host[name], index=index[name])
        for rank, name in enumerate(devices)
    )


def order_devices(plan: Plan, *, is_spread: bool = False) -> tuple[str, ...]:
    """The devices of a plan in the order in which programs with degrees number them: members of a
    team first, then replicas, then stages; `is_spread`: stages, then replicas."""
    parts = plan.parts
    if is_spread:
        replicas = range(parts[0].num_replicas)
        teams = [part.teams()[replica] for replica in replicas for part in parts]
        return tuple(dict.fromkeys(device for team in teams for device in team))
    return tuple(dict.fromkeys(device for part in parts for device in part.devices))


def find_runs(places: Sequence[Place]) -> tuple[tuple[Place, ...], ...]:
    """Ranks that follow each other on one host: torchrun numbers the ranks of one agent so."""
    return tuple(tuple(run) for _, run in groupby(places, key=lambda place: place.host))
