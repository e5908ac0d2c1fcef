"""The simulator's verdict on a plan: its step, and its memory held against the devices'."""

import math
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import Footprint
from meshwright.errors import quoted
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.search.bound.work import devices_needed
from meshwright.simulate.footprint import footprint
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_bytes

MEMORY_TOLERANCE = 1e-9
"""Relative. Sums of bytes in another order differ in the last bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the simulator says of a plan."""

    step_seconds: float
    peak_bytes: tuple[float, ...]
    binding: str
    """Which device lacks memory, and how much; empty when the plan fits."""
    missing_bytes: float
    over_bytes: tuple[float, ...]
    """By device: what it needs beyond what it may hold; negative where there is room."""

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return not self.binding

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: what fits first, then what is faster."""
        return self.missing_bytes, self.step_seconds

    def beats(self, other: "Verdict", gain: float) -> bool:
        """Whether it lacks less, or lacks as much and is faster by more than a part of the time."""
        if self.missing_bytes != other.missing_bytes:
            return self.missing_bytes < other.missing_bytes
        return self.step_seconds < other.step_seconds * (1 - gain)


def try_plan(
    graph: Graph, cluster: Cluster, plan: Plan, sharing: str = "fair", granularity: str = "op"
) -> Verdict:
    """Simulate a plan, and judge its step time and its memory."""
    timeline = simulate(graph, cluster, plan, sharing=sharing, granularity=granularity)
    return judge_timeline(graph, cluster, timeline)


def judge_timeline(graph: Graph, cluster: Cluster, timeline: Timeline) -> Verdict:
    """The verdict on a plan whose step has been simulated."""
    memory = footprint(graph, cluster, timeline)
    over = memory.peak_bytes - memory.usable_bytes * (1 + MEMORY_TOLERANCE)
    missing = float(np.maximum(over, 0.0).sum())
    return Verdict(
        step_seconds=timeline.step_seconds,
        peak_bytes=tuple(timeline.peak_bytes),
        binding=_explain(graph, cluster, memory, int(np.argmax(over))) if missing > 0 else "",
        missing_bytes=missing,
        over_bytes=tuple(over.tolist()),
    )


def tighten(limits: Floats, verdict: Verdict) -> Floats:
    """Lower the memory that a search may fill by what its last plan lacked, and half of it.

    Searches count what ops hold; what is received, gradients and workspace come on top.
    """
    over = np.maximum(np.array(verdict.over_bytes), 0.0)
    lowered: Floats = np.maximum(limits - 1.5 * over, 0.0)
    return lowered


def _explain(graph: Graph, cluster: Cluster, memory: Footprint, worst: int) -> str:
    """Name the device that lacks the most, the bytes, and how many devices would do if more."""
    device, peak, usable = cluster.devices[worst], memory.peak_bytes, memory.usable_bytes
    missing = peak[worst] - usable[worst]
    kept = device.memory_bytes - usable[worst]
    margin = f" less {format_bytes(kept)} kept free" if kept else ""
    text = (
        f"device {quoted(device.name)} needs {format_bytes(float(peak[worst]))}, has "
        f"{format_bytes(device.memory_bytes)}{margin}: {format_bytes(missing)} ({missing:,.0f} "
        f"bytes) are missing"
    )
    # What all devices hold together, spread evenly over devices like the largest: what a plan
    # that balances memory would need, and never fewer than the state alone does.
    most = max(float(usable.max()), 1.0)
    wanted = max(devices_needed(graph, cluster), math.ceil(float(peak.sum()) / most))
    if wanted > cluster.num_devices:
        text += f"; {wanted:,} devices of {format_bytes(most)} would do by the memory bound"
    return text
