"""Plans of replicated groups of ops for people: what runs where, in which shares, synchronised how.

Knows nothing of how such a plan was found.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from meshwright.cli.sheet import Sheet
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.graph.graph import Floats, Graph, Phase
from meshwright.plan.part import Part, Sync
from meshwright.plan.plan import Plan
from meshwright.units import format_bytes, format_number

MAX_PARTS = 12
"""Parts of a plan that get lines of their own, the most work first."""
_SYNCS = {
    Sync.ALL_REDUCE: "all-reduce",
    Sync.RING: "ring all-reduce",
    Sync.TREE: "tree all-reduce",
    Sync.PARAMETER_SERVER: "parameter servers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartRow:
    """A line of the table."""

    work: float
    """Of the compute of a step, each op on the type that runs it fastest."""
    ops: int
    kinds: str
    devices: str
    samples: str
    gradients: str


def has_replicated_parts(plan: Plan) -> bool:
    """Whether there is something to tell: several parts without a schedule, some with replicas, or
    replicas that are unlike."""
    if plan.schedule is not None or not plan.is_plain:
        return False
    return any(
        part.num_replicas > 1
        and (len(plan.parts) > 1 or part.shares or part.sync is not Sync.ALL_REDUCE)
        for part in plan.parts
    )


def show_parts(console: Console, graph: Graph, cluster: Cluster, plan: Plan) -> None:
    """A line for each part; ops on one device each are one line together."""
    lines: list[tuple[str, ...]] = []
    rows = sorted(_make_rows(graph, cluster, plan), key=lambda row: -row.work)
    for row in rows[:MAX_PARTS]:
        cells = (f"{row.ops:,}", row.kinds, row.devices, row.samples, row.gradients)
        lines.append((f"{100 * row.work:3.0f} %", *cells))
    if left := rows[MAX_PARTS:]:
        work, ops = sum(row.work for row in left), sum(row.ops for row in left)
        lines.append((f"{100 * work:3.0f} %", f"{ops:,}", f"... {len(left)} more parts"))
    texts = ("mostly", "devices", "samples each", "gradients")
    console.print(Sheet(("work", "ops", *texts), lines, wraps=texts))
    console.print()


def _make_rows(graph: Graph, cluster: Cluster, plan: Plan) -> Iterator[_PartRow]:
    types = [cluster.types[name] for name in cluster.type_names]
    seconds = np.stack([op_seconds(graph, each, graph.batch) for each in types]).min(axis=0)
    gradients = _gradient_bytes(graph)
    total = float(seconds.sum()) or 1.0
    alone: list[int] = []
    homes: list[str] = []
    # Parts that differ only in which gradients travel together are one line.
    alike: dict[tuple[object, ...], tuple[Part, list[int]]] = {}
    for part in plan.parts:
        _, ops = alike.setdefault((part.devices, part.shares, part.sync), (part, []))
        ops += [graph.index[name] for name in part.ops]
    for part, ops in alike.values():
        if part.num_replicas == 1:
            alone += ops
            homes += part.devices
            continue
        yield _PartRow(
            work=float(seconds[ops].sum()) / total,
            ops=len(ops),
            kinds=_main_kinds(graph, seconds, ops),
            devices=name_devices(cluster, part.devices),
            samples=_name_samples(cluster, part, graph.batch),
            gradients=_name_sync(part, float(gradients[ops].sum())),
        )
    if alone:
        yield _PartRow(
            work=float(seconds[alone].sum()) / total,
            ops=len(alone),
            kinds=_main_kinds(graph, seconds, alone),
            devices=name_devices(cluster, list(dict.fromkeys(homes))),
            samples="all; each op on one device",
            gradients="-",
        )


def _gradient_bytes(graph: Graph) -> Floats:
    """By op: what it makes that replicas have to sum up before an update."""
    source, reader = graph.edges
    is_gradient = graph.tensor_partial[graph.use_tensor] & (graph.phase[reader] == Phase.UPDATE)
    tensors = np.unique(graph.use_tensor[is_gradient & (graph.phase[source] != Phase.UPDATE)])
    found = np.zeros(graph.num_ops)
    np.add.at(found, graph.tensor_source[tensors], graph.tensor_bytes[tensors])
    return found


def _main_kinds(graph: Graph, seconds: Floats, ops: Sequence[int]) -> str:
    """The kind or two of ops that take longest, of forward ones where there are any."""
    names, codes = graph.kind_codes
    chosen = np.array(ops)
    forward = chosen[graph.phase[chosen] == Phase.FORWARD]
    if seconds[forward].any():
        chosen = forward
    spent = np.bincount(codes[chosen], weights=seconds[chosen], minlength=len(names))
    first = [kind for kind in np.argsort(-spent, kind="stable")[:2].tolist() if spent[kind] > 0]
    return ", ".join(str(names[kind]) for kind in first) or "-"


def name_devices(cluster: Cluster, devices: Sequence[str]) -> str:
    """Such as "4 v100-32, 2 of 8 1080ti"; one by its name."""
    if len(devices) == 1:
        return devices[0]
    if len(devices) == cluster.num_devices:
        return f"all {len(devices)}"
    every = Counter(device.type for device in cluster.devices)
    own = Counter(cluster.devices[cluster.index[name]].type for name in devices)
    return ", ".join(
        f"{own[name]} {name}"
        if own[name] == every[name]
        else f"{own[name]} of {every[name]} {name}"
        for name in every
        if own[name]
    )


def _name_samples(cluster: Cluster, part: Part, batch: float) -> str:
    """By device type where they differ: "9 (v100-32), 5 to 6 (p100)"."""
    if part.sync is Sync.DUPLICATE:
        return "all"
    samples = [batch * (high - low) for low, high in part.rows()]
    if max(samples) - min(samples) < 1e-6 * batch:
        return format_number(samples[0])
    spans: dict[str, list[float]] = {}
    for name, count in zip(part.devices, samples, strict=True):
        spans.setdefault(cluster.devices[cluster.index[name]].type, []).append(count)
    return ", ".join(f"{_span(each)} ({name})" for name, each in spans.items())


def _span(samples: list[float]) -> str:
    low, high = (format_number(count) for count in (min(samples), max(samples)))
    return low if low == high else f"{low} to {high}"


def _name_sync(part: Part, gradient_bytes: float) -> str:
    if part.sync is Sync.DUPLICATE:
        return "none to sum"
    return f"{_SYNCS[part.sync]} {format_bytes(gradient_bytes)}" if gradient_bytes else "-"
