"""Piper's problem and the authors' formula for what a plan takes, in plain Python.

A plan cuts the graph into contiguous stages. A stage runs on d replicas of t devices each; every
node of it runs in one of its ways of width t. Knows nothing of searching.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a node on t devices."""

    name: str
    seconds: float
    """Of one microbatch, forward and backward."""
    parameter_bytes: float
    flight_bytes: float
    """Held by each device for every microbatch in flight."""
    fixed_bytes: float
    """Held by each device whatever the schedule."""
    sync_bytes: Mapping[int, float]
    """By edge of the node: what is moved inside the stage, above the edge's own bytes, where the
    edge is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One layer."""

    name: str
    ways: Mapping[int, tuple[Way, ...]]
    """By width; only widths with at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What one node makes and another needs."""

    source: int
    target: int
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a plan may use."""

    num_devices: int
    memory_bytes: float
    """Of each device."""
    num_microbatches: int
    """Of a batch."""
    bytes_per_second: float
    """From each device to all others."""

    def __post_init__(self) -> None:
        for name in ("num_devices", "num_microbatches"):
            if getattr(self, name) < 1:
                raise InputError(f"piper: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("memory_bytes", "bytes_per_second"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(
                    f"piper: {name} must be positive and finite, got {getattr(self, name)}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Nodes, numbered in a topological order, and edges between them."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    resources: Resources

    @property
    def widths(self) -> list[int]:
        """Those of any node that the devices allow, ascending."""
        found = {width for node in self.nodes for width in node.ways}
        return sorted(width for width in found if width <= self.resources.num_devices)

    @property
    def replica_counts(self) -> list[int]:
        """Those that a stage may have: they divide the microbatches."""
        batch = self.resources.num_microbatches
        most = min(batch, self.resources.num_devices)
        return [count for count in range(1, most + 1) if batch % count == 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Part of a plan."""

    nodes: tuple[int, ...]
    num_replicas: int
    width: int
    ways: tuple[Way, ...]
    """Of its nodes, in their order."""


def stage_seconds(problem: Problem, stage: Stage) -> float:
    """Of one microbatch, on average: compute and cut edges are shared by the replicas; in every
    batch they agree on the parameters once (the factor 4 is PipeDream's parameter server)."""
    resources = problem.resources
    way_of = dict(zip(stage.nodes, stage.ways, strict=True))
    moved = 0.0
    for number, edge in enumerate(problem.edges):
        if (edge.source in way_of) != (edge.target in way_of):
            way = way_of.get(edge.source) or way_of[edge.target]
            moved += 2 * (edge.num_bytes + way.sync_bytes[number])
    weights = sum(way.parameter_bytes for way in stage.ways)
    replicas = stage.num_replicas
    agreed = 4 * (replicas - 1) * weights / (replicas * resources.num_microbatches)
    compute = sum(way.seconds for way in stage.ways)
    return compute / replicas + (moved / replicas + agreed) / resources.bytes_per_second


def stage_bytes(stage: Stage, in_flight: int) -> float:
    """On each device."""
    return sum(way.flight_bytes * in_flight + way.fixed_bytes for way in stage.ways)


def microbatches_in_flight(plan: Sequence[Stage]) -> list[int]:
    """Of each stage: the replicas of this and all later stages, shared by its own."""
    found, replicas = [], 0
    for stage in reversed(plan):
        replicas += stage.num_replicas
        found.append(-(-replicas // stage.num_replicas))
    return found[::-1]


def plan_seconds(problem: Problem, plan: Sequence[Stage]) -> float:
    """The slowest stage's seconds a microbatch."""
    return max(stage_seconds(problem, stage) for stage in plan)


def find_fault(problem: Problem, plan: Sequence[Stage]) -> str:
    """Why this is no plan; empty where it is one."""
    resources = problem.resources
    stage_of = {node: number for number, stage in enumerate(plan) for node in stage.nodes}
    if sorted(node for stage in plan for node in stage.nodes) != [*range(len(problem.nodes))]:
        return "some node is in no stage or in two"
    if any(stage_of[edge.source] > stage_of[edge.target] for edge in problem.edges):
        return "an edge leads back to an earlier stage"
    for stage in plan:
        if any(
            way not in problem.nodes[node].ways.get(stage.width, ())
            for node, way in zip(stage.nodes, stage.ways, strict=True)
        ):
            return f"a node has no such way of width {stage.width}"
        if resources.num_microbatches % stage.num_replicas:
            return f"{stage.num_replicas:,} replicas do not divide the microbatches"
    if sum(stage.num_replicas for stage in plan) > resources.num_microbatches:
        return "there are more replicas than microbatches"
    if sum(stage.num_replicas * stage.width for stage in plan) > resources.num_devices:
        return "there are too few devices"
    for stage, flights in zip(plan, microbatches_in_flight(plan), strict=True):
        if stage_bytes(stage, flights) > resources.memory_bytes:
            return "there is too little memory"
    return ""
