"""What binds memory: the fullest devices, when they are fullest and of what, and which decisions
memory forces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.explain.neighbour import Neighbour
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.report.hybrid_facts import hybrid_facts
from meshwright.report.peak import peak_items
from meshwright.simulate.footprint import footprint
from meshwright.simulate.timeline import Timeline

MAX_DEVICES = 4
"""So many devices are told of, one of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one device at its fullest."""

    device: str
    peak_bytes: float
    usable_bytes: float
    """What the peak may be."""
    at_seconds: float
    """When the peak is first reached."""
    during: str
    """What the device does then; empty: nothing."""
    items: Mapping[str, float]
    """What the peak is made of, in bytes, the largest first; no zeros."""

    @property
    def left_bytes(self) -> float:
        """What is left of it; negative: what is missing."""
        return self.usable_bytes - self.peak_bytes


def find_memory(
    graph: Graph, cluster: Cluster, plan: Plan, timeline: Timeline
) -> tuple[DeviceMemory, ...]:
    """The fullest device of each part, the fullest first."""
    held = footprint(graph, cluster, timeline)
    facts = hybrid_facts(graph, cluster, plan, timeline)
    fill = held.peak_bytes / np.maximum(held.usable_bytes, 1.0)
    found: dict[int, DeviceMemory] = {}
    for number, part in enumerate(plan.parts):
        devices = np.array([cluster.index[name] for name in part.devices])
        device = int(devices[np.argmax(fill[devices])])
        if device in found:
            continue
        kept = cluster.types[cluster.devices[device].type].library_bytes
        if facts is not None:
            items: Mapping[str, float] = facts.stages[number].memory
        else:
            items = peak_items(timeline, device, kept if graph.calls.any() else 0.0)
        ranked = sorted(items.items(), key=lambda each: -each[1])
        at, during = _find_peak(timeline, device)
        found[device] = DeviceMemory(
            device=cluster.devices[device].name,
            peak_bytes=float(held.peak_bytes[device]),
            usable_bytes=float(held.usable_bytes[device]),
            at_seconds=at,
            during=during,
            items=MappingProxyType({name: size for name, size in ranked if size > 0}),
        )
    order = sorted(found, key=lambda device: (-fill[device], device))
    return tuple(found[device] for device in order[:MAX_DEVICES])


def _find_peak(timeline: Timeline, device: int) -> tuple[float, str]:
    """When a device is fullest, and the instruction that it runs from then on."""
    when, size = timeline.memory(device)
    at = float(when[int(np.argmax(size))])
    rows = timeline.program.instructions
    own = rows["device"] == timeline.program.leader[device]
    runs = own & (timeline.start <= at) & (timeline.finish > at) & (rows["op"] >= 0)
    numbers = np.flatnonzero(runs)
    if not len(numbers):
        return at, ""
    return at, timeline.program.describe(int(numbers[np.argmax(timeline.start[numbers])]))


def forced_decisions(neighbours: Sequence[Neighbour]) -> tuple[Neighbour, ...]:
    """Neighbours that would be faster and do not fit, the fastest first: what memory decides."""
    missing = [
        each for each in neighbours if each.plan is not None and not each.fits and each.slower < 0
    ]
    return tuple(sorted(missing, key=lambda each: each.slower))
