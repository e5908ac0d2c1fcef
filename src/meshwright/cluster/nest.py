"""An order of a cluster's devices that keeps neighbours near: nested groups, from those that are
joined the fastest outwards. Knows nothing of what the devices run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Longs, places_in
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.level import levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """The devices in order, and how many of them in a row are a group."""

    order: tuple[int, ...]
    """The devices by number, those of a group next to each other."""
    sizes: tuple[int, ...]
    """Of the largest group of each tier, rising; the first are single devices."""


def find_nest(cluster: Cluster) -> Nest:
    """Order the devices by nested groups."""
    labels = [_slow_first(cluster, label) for label in _nested_labels(cluster)]
    keys = np.array([*(each.tolist() for each in labels[::-1]), list(range(cluster.num_devices))])
    sizes = [1]
    for label in labels:
        size = int(np.bincount(label).max())
        if size > sizes[-1]:
            sizes.append(size)
    return Nest(order=tuple(np.lexsort(keys[::-1]).tolist()), sizes=tuple(sizes))


def is_switched(cluster: Cluster) -> bool:
    """Whether devices are joined by switches and pass nothing on themselves."""
    return bool(cluster.switches) and not cluster.devices_relay


def _slow_first(cluster: Cluster, label: Longs) -> Longs:
    """The groups renumbered from the slowest devices to the fastest, else as they are: stages stand
    at the end of a pod, so that what is left over are slow ones."""
    types = [cluster.types[name] for name in cluster.type_names]
    peak = np.array([each.peak_flops_per_second("bf16") for each in types])[cluster.type_of]
    mean = np.bincount(label, weights=peak) / np.bincount(label)
    place = places_in(np.argsort(mean, kind="stable"), len(mean), np.int64)
    renumbered: Longs = place[label]
    return renumbered


def _nested_labels(cluster: Cluster) -> list[Longs]:
    """For each tier the group of every device, from the innermost outwards.

    Of switched networks hosts, then what hangs from the same switches, again and again; of direct
    ones what stays joined when slower pairs are cut.
    """
    if not is_switched(cluster):
        return [_label(cluster.num_devices, each.groups) for each in levels(cluster)]
    found = [cluster.host_of]
    neighbours = _neighbours(cluster)
    # A device may have a card of its own: then it is what the host's switches are joined to.
    tops = [{name} for name in cluster.hosts]
    for device, host in zip(cluster.devices, cluster.host_of, strict=True):
        tops[host].add(device.name)
    group_of_host = np.arange(len(tops))
    inside: set[str] = set(cluster.hosts) | {device.name for device in cluster.devices}
    while len(tops) > 1:
        above = [frozenset(set().union(*(neighbours[n] for n in top)) - inside) for top in tops]
        number = {each: k for k, each in enumerate(dict.fromkeys(above))}
        if not any(number):
            break
        group_of_host = np.array([number[above[group]] for group in group_of_host])
        tops = [set(each) for each in number]
        inside.update(*number)
        found.append(group_of_host[cluster.host_of])
    return found


def _label(num_devices: int, groups: Sequence[Sequence[int]]) -> Longs:
    label = np.zeros(num_devices, dtype=np.int64)
    for number, group in enumerate(groups):
        label[list(group)] = number
    return label


def _neighbours(cluster: Cluster) -> dict[str, set[str]]:
    neighbours: dict[str, set[str]] = {name: set() for name in cluster.nodes}
    for link in cluster.links:
        neighbours[link.source].add(link.target)
        neighbours[link.target].add(link.source)
    return neighbours
