"""Random training steps and clusters, legal but odd, for hunts of crashes and false bounds.

They are drawn by a seeded generator, not by Hypothesis: a hunt looks at many thousands of them, and
a seed is all that is needed to see one again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.cluster.build import fully_connected, hierarchical
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.build import GraphBuilder
from meshwright.graph.column import OP_LINES
from meshwright.graph.graph import Graph, Phase, Split

Rng = np.random.Generator

_EXTREMES = (0.0, 5e-324, 1e-12, 1.0, 1e9, 1e22)
"""Legal sizes, from the smallest to nearly the largest: sums are limited, too."""

_KERNELS = ("mm", "bmm", "convolution", "convolution_backward", "attention", "add", "sum", "relu")
"""Kinds of captured ops that curves, or bytes alone, are fitted to."""
_TYPES = ("h200", "slow")


def draw_graph(rng: Rng, most: int = 12) -> Graph:
    """Some ops of all phases, with partners, groups, partial sums, and ops that mix samples."""
    batch = float(rng.choice([1, 2, 4, 6, 8, 2.5]))
    builder = GraphBuilder("hunted", batch)
    num_ops = int(rng.integers(1, most + 1))
    phases = [Phase(int(each)) for each in rng.choice(3, size=num_ops, p=[0.5, 0.35, 0.15])]
    if rng.random() < 0.8:
        phases.sort()
    source = _Source(rng)
    for number, phase in enumerate(phases):
        forward = [other for other in range(number) if phases[other] is Phase.FORWARD]
        has_partner = phase is Phase.BACKWARD and forward and rng.random() < 0.6
        builder.add_op(
            f"op{number}",
            phase=phase,
            group=int(rng.choice([-1, -1, -1, 0, 1])) if source.has_groups else -1,
            partner=int(rng.choice(forward)) if has_partner else -1,
            **source.op(phase),
        )
    _add_tensors(builder, source, num_ops)
    return builder.finish()


class _Source:
    """What ops of one graph have in common, and their sizes."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.is_captured = rng.random() < 0.4
        self.has_groups = rng.random() < 0.5
        self.mixing = rng.random() < 0.3
        self.has_saved = rng.random() < 0.4
        self.is_extreme = rng.random() < 0.1
        self.mixes: list[bool] = []
        self.splits: list[Split] = []

    def op(self, phase: Phase) -> dict[str, Any]:
        """The columns of one op."""
        rng = self.rng
        mixes = self.mixing and phase is not Phase.UPDATE and rng.random() < 0.3
        split = Split(int(rng.integers(3)))
        if mixes or (phase is Phase.UPDATE and rng.random() < 0.9):
            split = Split.NONE
        self.mixes.append(mixes)
        self.splits.append(split)
        columns: dict[str, Any] = {"split": split, "mixes": mixes}
        scale = 1e9 if self.is_captured else 1.0
        for name in OP_LINES[:3]:
            columns |= self._parts(name, self.size([0.0, 1.0, 2.5, 7.0], scale), mixes)
        if self.is_captured:
            columns |= self._kernel(mixes)
        elif rng.random() < 0.5:
            times = [0.0, 5e-324, 1e8, np.inf] if self.is_extreme else [0.0, 1.0, 2.5, 7.0]
            seconds = rng.choice(times, size=len(_TYPES)).tolist()
            columns["seconds"] = dict(zip(_TYPES, seconds, strict=True))
        for name in ("state_bytes", "workspace_bytes"):
            columns[name] = self.size([0.0, 0.0, 5.0, 40.0])
        if self.has_saved:
            columns["saved_bytes"] = self.size([0.0, 0.0, 3.0, 20.0])
        columns["parameter_bytes"] = columns["state_bytes"] * float(rng.choice([0.0, 0.5]))
        return columns

    def size(self, usual: Sequence[float], scale: float = 1.0) -> float:
        return (
            float(self.rng.choice(_EXTREMES))
            if self.is_extreme
            else scale * float(self.rng.choice(usual))
        )

    def _parts(self, name: str, whole: float, mixes: bool) -> dict[str, float]:
        shares = self.rng.choice([0.0, 0.25, 0.5], size=3)
        columns = {name: whole, f"fixed_{name}": whole * float(self.rng.choice([0, 0.25, 1]))}
        if mixes:
            columns |= {
                f"fixed_{name}": whole * shares[0] / 2,
                f"square_{name}": whole * shares[1],
                f"cube_{name}": whole * shares[2] / 2,
            }
        return columns

    def _kernel(self, mixes: bool) -> dict[str, Any]:
        rng = self.rng
        columns: dict[str, Any] = {"kind": str(rng.choice(_KERNELS)), "calls": 1.0}
        for name in OP_LINES[3:]:
            columns |= self._parts(name, self.size([1.0, 8.0, 300.0]), mixes)
        columns["product_alignment"] = float(rng.choice([0.0, 4.0, 16.0]))
        return columns


def _add_tensors(builder: GraphBuilder, source: _Source, num_ops: int) -> None:
    rng = source.rng
    for op in range(num_ops - 1):
        for _ in range(int(rng.integers(0, 3))):
            later = rng.choice(np.arange(op + 1, num_ops), size=int(rng.integers(0, 4)))
            size = source.size([0.0, 1.0, 4.0])
            steep: dict[str, Any] = {}
            if all(source.mixes[each] for each in (op, *later.tolist())):
                steep["square_tensor_bytes"] = size * float(rng.choice([0.0, 0.5]))
            fixed = float(rng.choice([0.0, 0.5])) * size
            if source.splits[op] is not Split.BATCH and not source.mixes[op]:
                fixed = size
            builder.add_tensor(op, size, later.tolist(), fixed_bytes=fixed, **steep)


def draw_cluster(rng: Rng, most: int = 5) -> Cluster:
    """Devices of one or two types, by links of every pair or around a switch, on some hosts."""
    count = int(rng.integers(1, most + 1))
    memory = float(rng.choice([1e12, 1e12, 1e12, 120.0]))
    if rng.random() < 0.3:
        memory = 1e12
    types = {
        name: DeviceType(
            name=name,
            flops_per_second={"fp32": 1e12 if name == "h200" else 5e11},
            memory_bytes=memory,
            memory_bytes_per_second=float(rng.choice([1e9, 1e12])),
            is_asynchronous=bool(rng.random() < 0.5),
        )
        for name in _TYPES
    }
    kinds = [str(each) for each in rng.choice(_TYPES[: int(rng.integers(1, 3))], size=count)]
    hosts = sorted(int(each) for each in rng.integers(0, count, size=count))
    devices = tuple(
        Device(name=f"d{place}", type=kind, host=f"h{host}", memory_bytes=memory)
        for place, (kind, host) in enumerate(zip(kinds, hosts, strict=True))
    )
    names = [device.name for device in devices]
    is_star = rng.random() < 0.4
    pairs = [(a, b) for a in names for b in names if a != b]
    if is_star:
        pairs = [pair for name in names for pair in ((name, "switch"), ("switch", name))]
    rates, latencies = [0.3, 1.0, 50.0, 1e10], [0.0, 1e-6, 0.5]
    if rng.random() < 0.1:
        rates, latencies = [1e-6, 0.05, 1e12, 1e30], [0.0, 5e-324, 1e8]
    links = tuple(
        Link(
            source=a,
            target=b,
            bytes_per_second=float(rng.choice(rates)),
            latency_seconds=float(rng.choice(latencies)),
        )
        for a, b in pairs
    )
    return Cluster(
        name="hunted",
        types={name: types[name] for name in dict.fromkeys(kinds)},
        devices=devices,
        switches=("switch",) if is_star else (),
        links=links,
    )


NUM_MODELS, NUM_NETWORKS = 4, 4


def small_model(number: int) -> Graph:
    """One of `NUM_MODELS` language models of a few layers, the last with experts."""
    sizes: dict[str, Any] = {"heads": 4, "sequence": 32, "vocabulary": 128, "batch": 12}
    sizes["name"] = "hunted"
    if number == NUM_MODELS - 1:
        return mixtral(hidden=64, layers=2, intermediate=96, experts=4, key_heads=2, **sizes)
    hidden, layers, precision = ((64, 2, "bf16"), (1024, 4, "bf16"), (256, 6, "fp32"))[number]
    return gpt(hidden=hidden, layers=layers, positions=64, precision=precision, **sizes)


def small_network(number: int) -> Cluster:
    """One of `NUM_NETWORKS` clusters of a few devices, the last with a way out that crawls."""
    if number == 0:
        return fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e10)
    shapes = ((2, [2], 3e11, 1e10), (2, [3], 2e10, 1e9), (4, [2], 3e11, 7.0))
    per_host, branching, device, host = shapes[number - 1]
    return hierarchical(
        devices_per_host=per_host,
        branching=branching,
        device_bytes_per_second=device,
        host_bytes_per_second=host,
    )


def spoil_graph(rng: Rng, graph: Graph) -> Graph | None:
    """The graph with some ops or tensors changed at random; None where that is not legal."""
    columns: dict[str, Any] = {}

    def column(name: str) -> Any:
        return columns.setdefault(name, getattr(graph, name).copy())

    for _ in range(int(rng.integers(1, 4))):
        op, tensor = int(rng.integers(graph.num_ops)), int(rng.integers(graph.num_tensors))
        changes: list[tuple[str, int, Any]] = [
            ("phase", op, rng.integers(3)),
            ("split", op, rng.integers(3)),
            ("group", op, rng.choice(graph.group)),
            ("partner", op, rng.integers(-1, graph.num_ops)),
            ("flops", op, 1e20),
            ("saved_bytes", op, 1e6),
            ("state_bytes", op, rng.choice([0.0, 1e12])),
            ("tensor_partial", tensor, rng.random() < 0.5),
            ("tensor_bytes", tensor, graph.tensor_bytes[tensor] + rng.choice([1e3, 1e12])),
        ]
        name, place, value = changes[int(rng.integers(len(changes)))]
        column(name)[place] = value
        if rng.random() < 0.2:
            times = np.full(graph.num_ops, np.nan)
            times[op] = rng.choice([0.0, 1.0, np.inf])
            columns["seconds"] = {"any": times}
    try:
        return replace(graph, **columns)
    except InputError:
        return None
