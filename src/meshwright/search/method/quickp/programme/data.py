"""What the integer programme reads off an instance: who reaches whom, links, equal devices.

Knows nothing of the solver.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, Longs
from meshwright.kernel.row import follow_lines
from meshwright.search.instance import Instance

Bits = npt.NDArray[np.uint64]


def reachability(instance: Instance) -> Bits:
    """Row i, bit j: whether a path of tensors leads from op i to op j."""
    num_ops = instance.num_ops
    rows = np.zeros((num_ops, (num_ops + 63) // 64), np.uint64)
    bit = np.uint64(1) << (np.arange(num_ops, dtype=np.uint64) % np.uint64(64))
    for op in range(num_ops - 1, -1, -1):
        edges = instance.out_edges[instance.out_start[op] : instance.out_start[op + 1]]
        after = edges["op"][edges["bytes"] >= 0]
        if len(after):
            np.bitwise_or.reduce(rows[after], axis=0, out=rows[op])
            np.bitwise_or.at(rows[op], after >> 6, bit[after])
    return rows


def num_parallel_pairs(reach: Bits) -> int:
    """Pairs of ops neither of which reaches the other."""
    num_ops = len(reach)
    return num_ops * (num_ops - 1) // 2 - int(np.bitwise_count(reach).sum(dtype=np.int64))


def reached_by(reach: Bits, op: int) -> npt.NDArray[np.bool_]:
    """Whether `op` reaches each op."""
    bits = np.unpackbits(reach[op].view(np.uint8), bitorder="little")[: len(reach)]
    return bits.view(np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkKinds:
    """Ordered pairs of devices, by latency and bandwidth."""

    latency: Floats
    bandwidth: Floats
    kind_of: Longs
    """Device x device; -1 on the diagonal."""

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every pair has one kind both ways."""
        return bool((self.kind_of == self.kind_of.T).all())


def link_kinds(instance: Instance) -> LinkKinds:
    """The kinds of a cluster's links."""
    count = instance.num_devices
    apart = ~np.eye(count, dtype=bool)
    values = np.stack((instance.latency[apart], instance.bandwidth[apart]), axis=1)
    kinds, inverse = np.unique(values.reshape(-1, 2), axis=0, return_inverse=True)
    kind_of = np.full((count, count), -1, np.int64)
    kind_of[apart] = inverse.reshape(-1)
    return LinkKinds(latency=kinds[:, 0], bandwidth=kinds[:, 1], kind_of=kind_of)


def device_swaps(
    instance: Instance, limits: Floats
) -> Iterator[tuple[list[int], list[int], Longs]]:
    """Swaps of two devices, or of two hosts, that change nothing: low, high, the permutation."""
    blocks = [[device] for device in range(instance.num_devices)]
    blocks += [list(host) for host in instance.cluster.devices_of_host if len(host) > 1]
    for place, low in enumerate(blocks):
        for high in blocks[place + 1 :]:
            is_swap = len(low) == len(high) and not set(low) & set(high)
            if not is_swap or any(a > b for a, b in zip(low, high, strict=True)):
                continue
            swapped = np.arange(instance.num_devices)
            swapped[low], swapped[high] = high, low
            matrix = np.ix_(swapped, swapped)
            if (
                (instance.type_of[swapped] == instance.type_of).all()
                and (limits[swapped] == limits).all()
                and (instance.latency[matrix] == instance.latency).all()
                and (instance.bandwidth[matrix] == instance.bandwidth).all()
            ):
                yield low, high, swapped


def widest_edges(instance: Instance) -> list[dict[int, float]]:
    """The sources of each op, each with the largest tensor: others arrive no later."""
    found: list[dict[int, float]] = []
    for op in range(instance.num_ops):
        sources: dict[int, float] = {}
        for edge in instance.in_edges[instance.in_start[op] : instance.in_start[op + 1]]:
            source, size = int(edge["op"]), float(edge["bytes"])
            if size >= 0:
                sources[source] = max(sources.get(source, 0.0), size)
        found.append(sources)
    return found


def saved_edges(instance: Instance) -> Iterator[tuple[int, int]]:
    """Forward ops and the backward ops that read what they saved: see `instance.SAVED`."""
    for op in range(instance.num_ops):
        for edge in instance.in_edges[instance.in_start[op] : instance.in_start[op + 1]]:
            if edge["bytes"] < 0:
                yield int(edge["op"]), op


def windows(edges: list[dict[int, float]], ticks: Longs) -> tuple[Longs, Longs]:
    """The longest path before each op, and after it, transfers left out."""
    head, tail = np.zeros_like(ticks), np.zeros_like(ticks)
    for op, sources in enumerate(edges):
        head[op] = max((head[source] + ticks[source] for source in sources), default=0)
    for op in range(len(edges) - 1, -1, -1):
        for source in edges[op]:
            tail[source] = max(tail[source], tail[op] + ticks[op])
    return head, tail


def neighbours(instance: Instance, sort: Ints, reach: Bits) -> Iterator[tuple[int, int]]:
    """Parallelisable pairs that no op of their units lies between, in the sort."""
    num_ops, unit = instance.num_ops, instance.unit_of[sort]
    previous, following = np.full(num_ops, -1), np.full(num_ops, num_ops)
    first, second = follow_lines(unit)
    previous[second], following[first] = first, second
    for place, op in enumerate(sort.tolist()):
        end = int(following[place])
        near = place + 1 + np.flatnonzero(previous[place + 1 : end + 1] <= place)
        others = sort[near[near < num_ops]]
        for other in others[~reached_by(reach, op)[others]].tolist():
            yield op, other
