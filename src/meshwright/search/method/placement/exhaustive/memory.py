"""What the devices of one placement hold at least while its ops run in some order.

Counts only buffers that are held whatever the times are, so that what is found is a bound also
where transfers share links. Sets of ops are the bits of an integer. Knows nothing of times.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.graph.graph import Graph, Phase
from meshwright.search.instance import Instance
from meshwright.search.method.placement.exhaustive.bound import find_lasting, find_rooms

_FOREVER = -1
"""All bits: every op that comes later finds such a buffer there."""


class _Buffer(NamedTuple):
    """What a device holds for several of its ops."""

    maker: int
    """The op that makes it, or of which it is received."""
    readers: int
    """The ops of the device that need it."""
    bytes: float


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementMemory:
    """One placement: what is there for the whole step, and what ops hold for each other."""

    device: Sequence[int]
    rooms: Sequence[float]
    """The bytes that each device may hold."""
    base: Sequence[float]
    """What each device holds for the whole step."""
    workspace: Sequence[float]
    buffers: Sequence[Sequence[_Buffer]]
    """By device."""
    lasting: int
    """The ops that do not end at the moment at which they start."""

    def held_bytes(self, op: int, before: int, after: int) -> float:
        """What an op's device holds when it starts, at least.

        `before` are ops that have finished by then, `after` those that have not started. What an op
        reads that takes no time may be freed at the very moment at which its own buffers are
        allocated. Buffers that only wait to be sent are left out: when they go depends on times.
        """
        kept = after | 1 << op
        kept = kept if self.lasting >> op & 1 else kept & self.lasting
        held = self.base[self.device[op]] + self.workspace[op]
        for maker, readers, size in self.buffers[self.device[op]]:
            if maker == op or (before >> maker & 1 and readers & kept):
                held += size
        return held

    def lack_bytes(self, held: Sequence[float]) -> float:
        """What all devices together miss when each holds so much."""
        return sum(max(0.0, here - room) for here, room in zip(held, self.rooms, strict=True))

    @cached_property
    def is_safe(self) -> bool:
        """Whether memory suffices even if all is held at once."""
        held = list(self.base)
        for op, device in enumerate(self.device):
            held[device] += self.workspace[op]
        for device, buffers in enumerate(self.buffers):
            held[device] += sum(each.bytes for each in buffers)
        return self.lack_bytes(held) == 0


def holds_everything(instance: Instance) -> bool:
    """Whether every device has room for all that the step ever holds, so that memory decides
    nothing."""
    graph = instance.graph
    sizes = (graph.state_bytes, graph.saved_bytes, graph.workspace_bytes, graph.tensor_bytes)
    total = sum(float(each.sum()) for each in sizes)
    return all(total + taken <= room for room, taken in zip(*find_rooms(instance), strict=True))


def make_memory(instance: Instance, device: Sequence[int]) -> PlacementMemory:
    """The memory of the placement of each op on the device of this number."""
    graph, (rooms, libraries) = instance.graph, find_rooms(instance)
    base = np.bincount(device, graph.state_bytes, instance.num_devices)
    base[np.unique(device)] += np.array(libraries)[np.unique(device)]
    buffers: list[list[_Buffer]] = [[] for _ in rooms]
    for op, size in enumerate(graph.saved_bytes.tolist()):
        readers = _bits(reader for reader in _holders(graph, op) if device[reader] == device[op])
        buffers[device[op]].append(_Buffer(op, readers or _FOREVER, size))
    for tensor, source in enumerate(graph.tensor_source.tolist()):
        size = float(graph.tensor_bytes[tensor])
        readers_on = {device[source]: 0}
        for reader in graph.readers[tensor].tolist():
            readers_on[device[reader]] = readers_on.get(device[reader], 0) | 1 << reader
        if graph.is_returned[tensor]:
            readers_on[device[source]] = _FOREVER
        for there, readers in readers_on.items():
            # One that is sent twice, its rows and the whole, counts once.
            buffers[there].append(_Buffer(source, readers, size))
    return PlacementMemory(
        device=device,
        rooms=rooms,
        base=base.tolist(),
        workspace=graph.workspace_bytes.tolist(),
        buffers=[[each for each in several if each.bytes > 0] for several in buffers],
        lasting=_bits(np.flatnonzero(find_lasting(instance)).tolist()),
    )


def _holders(graph: Graph, op: int) -> list[int]:
    """The backward ops that hold back what an op has saved."""
    if graph.saved_bytes[op] <= 0:
        return []
    found = np.flatnonzero((graph.phase == Phase.BACKWARD) & (graph.partner == op))
    return [int(each) for each in found]


def _bits(ops: Iterable[int]) -> int:
    return sum(1 << op for op in ops)
