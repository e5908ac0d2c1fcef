"""The memory of devices over time, by what it holds, beside what each may hold.

Curves with more points than a screen has columns are thinned; every point that stays is one of the
timeline's, and the fullest moment of each span of time stays. Knows nothing of how it is drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.facts import HybridFacts
from meshwright.plan.plan import Plan
from meshwright.report.peak import sort_buffers
from meshwright.simulate.footprint import footprint
from meshwright.simulate.timeline import Timeline

KINDS = (
    "parameters",
    "optimiser",
    "libraries",
    "held for the whole step",
    "gradients",
    "gathered weights",
    "activations",
    "workspace",
)
"""What memory holds; the first ones for the whole step. `held for the whole step` stands for what
is not known by kind."""
MAX_POINTS = 1200
"""Points of a curve: about as many as a screen has columns."""
_MAX_ALL_POINTS = 200_000
"""Points of all curves of a page together."""
_STATE = ("parameters", "gradients", "optimiser", "buffers", "libraries")
_TICK = 1e-9
"""Of the step. Moments are multiples of it: sums in another order differ in their last bits."""
_ROUNDING = 1e-6
"""Relative. Sums of sizes differ by less."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryCurve:
    """The memory of a device over time, and of all that run as it does."""

    device: int
    when: Floats
    """Seconds, rising."""
    held: Floats
    """Bytes from each moment on: a row a moment, a column for each of `KINDS`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryView:
    """The memory of all devices of a plan."""

    curves: tuple[MemoryCurve, ...]
    curve_of: Mapping[int, int]
    """By device that the plan uses: which of the curves is its own."""
    peak_bytes: Floats
    """By device of the cluster, as the timeline has it."""
    usable_bytes: Floats
    """What each peak may be."""
    total_bytes: Floats
    """What each device has."""


def draw_memory(
    graph: Graph, cluster: Cluster, plan: Plan, timeline: Timeline, facts: HybridFacts | None
) -> MemoryView:
    """The memory of every device that a plan uses."""
    held = footprint(graph, cluster, timeline)
    used = sorted({cluster.index[name] for part in plan.parts for name in part.devices})
    leader = timeline.program.leader
    leaders = sorted({int(leader[device]) for device in used})
    sort = sort_buffers(timeline.program)
    last = int(sort.max(initial=-1)) + 1
    points = max(50, min(MAX_POINTS, _MAX_ALL_POINTS // max(len(leaders), 1)))
    curves: list[MemoryCurve] = []
    known: dict[bytes, int] = {}
    alike: dict[tuple[object, ...], int] = {}
    place: dict[int, int] = {}
    parameters = _parameter_bytes(timeline)
    stage_of = {
        name: number
        for number, part in reversed(list(enumerate(plan.parts)))
        for name in part.devices
    }
    for device in leaders:
        stage = stage_of.get(cluster.devices[device].name, -1)
        state = _state_items(graph, cluster, timeline, facts, device, stage, parameters[device])
        # Equal devices are known before their curves are drawn: of 1,024 replicas one is.
        changes = _rounded(timeline, *timeline.memory_changes(device, sort, last))
        of_changes = (*(each.tobytes() for each in changes), *state.items())
        if of_changes not in alike:
            curve = _draw_curve(timeline, device, sort, state, points)
            key = curve.when.tobytes() + np.rint(curve.held).tobytes()
            if key not in known:
                known[key] = len(curves)
                curves.append(curve)
            alike[of_changes] = known[key]
        place[device] = alike[of_changes]
    return MemoryView(
        curves=tuple(curves),
        curve_of={device: place[int(leader[device])] for device in used},
        peak_bytes=np.array(timeline.peak_bytes),
        usable_bytes=held.usable_bytes,
        total_bytes=cluster.memory_bytes,
    )


def _parameter_bytes(timeline: Timeline) -> Floats:
    """By device the parameters of the ops that it runs, as `meshwright.report.peak` has them."""
    program = timeline.program
    rows, num_ops = program.instructions, max(program.graph.num_ops, 1)
    runs = rows["op"] >= 0
    # Sorted by ourselves: of 700,000 pairs np.unique takes ten times as long, by hashing.
    pairs = np.sort(rows["device"][runs].astype(np.int64) * num_ops + rows["op"][runs])
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    weights = program.graph.parameter_bytes[pairs % num_ops] if len(pairs) else None
    sums = np.bincount(pairs // num_ops, weights=weights, minlength=program.num_devices)
    return sums.astype(np.float64)


def _state_items(
    graph: Graph,
    cluster: Cluster,
    timeline: Timeline,
    facts: HybridFacts | None,
    device: int,
    stage: int,
    parameters: float,
) -> dict[str, float]:
    """What a device holds for the whole step, by kind; the sum is what the program says."""
    held = float(timeline.program.state_bytes[device])
    if timeline.program.call_seconds is None:
        kept = cluster.types[cluster.devices[device].type].library_bytes
        libraries = kept if graph.calls.any() else 0.0
        optimiser = max(0.0, held - parameters - libraries)
        items = {"parameters": parameters, "optimiser": optimiser, "libraries": libraries}
    else:
        known = [] if facts is None or stage < 0 else [facts.stages[stage].memory]
        items = {name: each.get(name, 0.0) for each in known for name in _STATE}
    if abs(sum(items.values()) - held) > _ROUNDING * max(held, 1.0):
        return {"held for the whole step": held}
    found = {name: size for name, size in items.items() if name != "buffers"}
    return found | ({"gathered weights": items["buffers"]} if items.get("buffers") else {})


def _rounded(
    timeline: Timeline, when: Floats, size: Floats, sorts: Ints
) -> tuple[Floats, Floats, Ints]:
    """Changes of memory at moments as a report tells them apart."""
    tick = timeline.device_seconds * _TICK
    return np.rint(when / tick) if tick > 0 else when, size, sorts


def _draw_curve(
    timeline: Timeline, device: int, sort: Ints, state: dict[str, float], most: int
) -> MemoryCurve:
    """The curve of one device."""
    when, parts = timeline.memory_parts(device, sort)
    tick = timeline.device_seconds * _TICK
    when = np.rint(when / tick) * tick if tick > 0 else when
    held = np.zeros((len(when), len(KINDS)))
    # Buffers are sorted as gradients, gathered weights and others; of no more sorts than there are.
    kinds = ["gradients", "gathered weights", "activations"][: parts.shape[1] - 1]
    for column, name in enumerate([*kinds, "workspace"]):
        held[:, KINDS.index(name)] = parts[:, column]
    held = np.maximum(held, 0.0)  # what adding up floats leaves behind
    for name, size in state.items():
        held[:, KINDS.index(name)] += size
    kept = _thin(when, held.sum(axis=1), most)
    return MemoryCurve(device=device, when=when[kept], held=held[kept])


def _thin(when: Floats, total: Floats, most: int) -> Longs:
    """The last of the points of each moment, and of more than `most` the fullest of each span."""
    last = np.flatnonzero(np.append(when[1:] != when[:-1], True))
    # What is freed at the moment at which it was allocated is a peak, too.
    span = np.searchsorted(when[last], when)
    if len(last) > most:
        length = max(float(when[-1] - when[0]), 1e-300)
        span = np.minimum(((when - when[0]) / length * (most - 1)).astype(np.int64), most - 1)
    order = np.lexsort((-total, span))
    first = np.flatnonzero(np.append(True, span[order][1:] != span[order][:-1]))
    kept = np.union1d(order[first], [0, len(when) - 1])
    return np.asarray(kept, dtype=np.int64)
