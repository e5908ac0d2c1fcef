"""The clusters, models and plans that predictions are held against measurements on.

Every cluster is hosts of one device around one switch. Devices are made so fast that a model takes
a given time on one of them, and batches so small that what crosses the network takes about as long.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hybrid_plans import hybrid_plan
from meshwright.cluster.build import hierarchical
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.compute import op_seconds
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind, Sync
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain, stages_plan
from meshwright.search.method.pipeline.consecutive import equal_stages
from meshwright.search.portfolio import find_plan
from meshwright.source import zoo_graph
from meshwright.units import GIB, MIB

PATH_SECONDS = 1.5e-4
"""What a transfer costs besides its bytes over bandwidth, from gloo to gloo (2026-11-15)."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan of one model on one cluster."""

    model: str
    cluster: Cluster
    megabits: int
    graph: Graph
    plan_name: str
    plan: Plan

    @property
    def group(self) -> tuple[str, int, int]:
        """Cases of one group compete with each other."""
        return self.model, self.cluster.num_devices, self.megabits


def make_cluster(num_hosts: int, megabits: int, device_type: DeviceType) -> Cluster:
    """Hosts of one device around a switch, with the path's latency on the links to it."""
    cluster = hierarchical(
        devices_per_host=1,
        branching=(num_hosts,),
        device_type=device_type,
        device_bytes_per_second=1e12,
        host_bytes_per_second=megabits * 1e6 / 8,
        name=f"star-{num_hosts}x{megabits}",
    )
    return with_path_latency(cluster)


def with_path_latency(cluster: Cluster) -> Cluster:
    """The cluster with the path's latency on the links between hosts and switches only."""
    links = tuple(
        replace(
            link,
            latency_seconds=0.0
            if cluster.index.keys() & {link.source, link.target}
            else PATH_SECONDS / 2,
        )
        for link in cluster.links
    )
    return replace(cluster, links=links)


def make_type(graph: Graph, step_seconds: float) -> DeviceType:
    """A device on which a step of the graph takes so long."""
    draft = DeviceType(
        name="emulated",
        flops_per_second={"fp32": 1e12},
        memory_bytes=256 * GIB,
        memory_bytes_per_second=1e11,
        is_asynchronous=False,
    )
    speed = float(op_seconds(graph, draft, graph.batch).sum()) / step_seconds
    return replace(
        draft,
        flops_per_second={"fp32": 1e12 * speed},
        memory_bytes_per_second=1e11 * speed,
    )


def make_blocks(layers: int, batch: int, *, activation_bytes: float, weight_bytes: float) -> Graph:
    """Equal layers in a row: forward, both gradients in twice its time, and an update."""
    builder = GraphBuilder("blocks", batch=batch)
    work, forwards, gradients = 1e9, [], []
    for layer in range(layers):
        forwards.append(builder.add_op(f"forward{layer}", flops=work))
        if layer:
            builder.add_tensor(forwards[layer - 1], batch * activation_bytes, [forwards[layer]])
    last = forwards[-1]
    for layer in reversed(range(layers)):
        kwargs = {"phase": Phase.BACKWARD, "flops": work, "partner": forwards[layer]}
        gradient = builder.add_op(f"backward{layer}", **kwargs)  # type: ignore[arg-type]
        weight = builder.add_op(f"weight{layer}", split=Split.SUM, **kwargs)  # type: ignore[arg-type]
        builder.add_tensor(last, batch * activation_bytes, [gradient, weight])
        update = builder.add_op(
            f"update{layer}", phase=Phase.UPDATE, split=Split.NONE, flops=work / 100
        )
        builder.add_tensor(weight, weight_bytes, [update])
        gradients.append(gradient)
        last = gradient
    return builder.finish()


Maker = Callable[[Graph, Cluster], Plan | None]


def pipeline(kind: ScheduleKind, stages: int, microbatches: int, replicas: int = 1) -> Maker:
    """Stages of equal time in a row, each on its devices; interleaved: two stages a device."""

    def make(graph: Graph, cluster: Cluster) -> Plan:
        instance = make_instance(graph, cluster)
        chain = make_chain(instance, (0,))
        devices = np.split(np.arange(stages * replicas), stages)
        homes = devices * (2 if kind is ScheduleKind.INTERLEAVED else 1)
        ends = equal_stages(chain.seconds, len(homes))
        plan = stages_plan(graph, cluster, chain, ends, homes, microbatches)
        parts = tuple(replace(part, sync=Sync.RING) for part in plan.parts)
        schedule = Schedule(kind=kind, microbatches=microbatches)
        return replace(plan, parts=parts, schedule=schedule)

    return make


def data_parallel(graph: Graph, cluster: Cluster) -> Plan:
    """Every device has everything, and gradients are added up around a ring, as gloo does."""
    names = tuple(device.name for device in cluster.devices)
    part = Part(ops=graph.op_names, devices=names, sync=Sync.RING)
    return Plan(parts=(part,), schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=1))


def found(method: str, budget_seconds: float = 4.0) -> Maker:
    """What a search finds."""

    def make(graph: Graph, cluster: Cluster) -> Plan | None:
        return find_plan(graph, cluster, method, seed=SEED, budget_seconds=budget_seconds).plan

    return make


def hybrid(**degrees: Any) -> Maker:
    """Stages of whole layers on teams; see `hybrid_plan`."""
    return lambda graph, cluster: hybrid_plan(graph, cluster, **degrees)


GPIPE, ONE_F_ONE_B = ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B
INTERLEAVED, ZERO_BUBBLE = ScheduleKind.INTERLEAVED, ScheduleKind.ZERO_BUBBLE
PLACEMENTS: dict[str, Maker] = {
    "heft": found("heft"),
    "metis": found("metis"),
    "mcmc": found("mcmc"),
}


def pipelines(stages: int, microbatches: int, *kinds: ScheduleKind) -> dict[str, Maker]:
    """A pipeline under several schedules."""
    return {
        f"{kind} {stages} x {microbatches}": pipeline(kind, stages, microbatches) for kind in kinds
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A model on a cluster, and the plans that compete there."""

    model: str
    graph: Callable[[], Graph]
    seconds: float
    """Of a step on one device."""
    ranks: int
    megabits: int
    plans: dict[str, Maker]

    def cases(self) -> Iterator[Case]:
        """Its plans, without those that searches did not find."""
        graph = self.graph()
        cluster = make_cluster(self.ranks, self.megabits, make_type(graph, self.seconds))
        for name, make in self.plans.items():
            plan = make(graph, cluster)
            if plan is not None:
                yield Case(
                    model=self.model,
                    cluster=cluster,
                    megabits=self.megabits,
                    graph=graph,
                    plan_name=name,
                    plan=plan,
                )


def zoo(name: str, batch: int) -> Callable[[], Graph]:
    """A model of the zoo in fp32 at a batch."""
    return lambda: zoo_graph(name, batch, precision="fp32")


def blocks(
    layers: int, batch: int, activation_bytes: float, weight_bytes: float
) -> Callable[[], Graph]:
    """See `make_blocks`."""
    return lambda: make_blocks(
        layers, batch, activation_bytes=activation_bytes, weight_bytes=weight_bytes
    )


def scenarios() -> Sequence[Scenario]:
    """All that is measured."""
    all_kinds = (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE)
    small = blocks(16, 16, MIB / 2, MIB / 2)
    deep = blocks(64, 32, MIB / 8, MIB / 8)
    return (
        Scenario(
            model="blocks-16", graph=small, seconds=3.0, ranks=4, megabits=100,
            plans=pipelines(4, 8, *all_kinds)
            | {"data": data_parallel, "2 x 2": pipeline(ONE_F_ONE_B, 2, 4, replicas=2)},
        ),
        Scenario(
            model="bert-small", graph=zoo("bert-small", 8), seconds=2.0, ranks=4, megabits=200,
            plans=pipelines(4, 8, GPIPE) | pipelines(4, 4, GPIPE) | {"heft": found("heft")},
        ),
        Scenario(
            model="inception-v3", graph=zoo("inception-v3", 4), seconds=3.0, ranks=4, megabits=500,
            plans=PLACEMENTS | pipelines(4, 4, GPIPE, ONE_F_ONE_B, ZERO_BUBBLE),
        ),
        Scenario(
            model="inception-v3", graph=zoo("inception-v3", 2), seconds=3.0, ranks=6, megabits=1000,
            plans=PLACEMENTS,
        ),
        Scenario(
            model="inception-v3", graph=zoo("inception-v3", 2), seconds=2.0, ranks=8, megabits=500,
            plans=PLACEMENTS,
        ),
        Scenario(
            model="alexnet-32", graph=zoo("alexnet-32", 128), seconds=3.0, ranks=4, megabits=1000,
            plans=pipelines(4, 8, GPIPE, ONE_F_ONE_B)
            | {"data": data_parallel, "2 x 2": pipeline(ONE_F_ONE_B, 2, 8, replicas=2)},
        ),
        Scenario(
            model="mlp", graph=zoo("mlp", 64), seconds=2.0, ranks=4, megabits=500,
            plans=pipelines(4, 8, GPIPE, ONE_F_ONE_B, ZERO_BUBBLE),
        ),
        Scenario(
            model="unet", graph=zoo("unet", 4), seconds=4.0, ranks=4, megabits=1000,
            plans=pipelines(2, 4, GPIPE) | pipelines(3, 4, GPIPE, ONE_F_ONE_B),
        ),
        Scenario(
            model="transformer", graph=zoo("transformer", 16), seconds=3.0, ranks=8, megabits=500,
            plans=pipelines(8, 16, GPIPE) | pipelines(4, 8, GPIPE) | {"heft": found("heft")},
        ),
        Scenario(
            model="resnet50", graph=zoo("resnet50", 16), seconds=6.0, ranks=8, megabits=1000,
            plans=pipelines(8, 16, *all_kinds)
            | {"4 x 2": pipeline(ONE_F_ONE_B, 4, 8, replicas=2), "heft": found("heft")},
        ),
        Scenario(
            model="blocks-64", graph=deep, seconds=8.0, ranks=16, megabits=200,
            plans=pipelines(16, 16, GPIPE, ONE_F_ONE_B, ZERO_BUBBLE)
            | {"data": data_parallel, "8 x 2": pipeline(ONE_F_ONE_B, 8, 16, replicas=2)},
        ),
        Scenario(
            model="blocks-64", graph=deep, seconds=6.0, ranks=12, megabits=500,
            plans=pipelines(12, 16, ONE_F_ONE_B, INTERLEAVED)
            | {"6 x 2": pipeline(ONE_F_ONE_B, 6, 16, replicas=2)},
        ),
    )  # fmt: skip


FULL, SELECTIVE = Recompute.FULL, Recompute.SELECTIVE


def make_gpt(**more: Any) -> Graph:
    """A small GPT whose embedding and head are two weights, so that stages divide them."""
    return gpt(**(SHAPE | more), untie=True)


def make_llama(**more: Any) -> Graph:
    """A small Llama."""
    shape = SHAPE | more
    return llama(**shape, intermediate=2 * shape["hidden"])


SHAPE: dict[str, Any] = {
    "hidden": 256, "heads": 8, "layers": 4, "sequence": 64, "vocabulary": 512, "batch": 16,
    "precision": "fp32",
}  # fmt: skip
"""The shape of the models of the hybrid scenarios."""
WIDE: dict[str, Any] = {"hidden": 512, "sequence": 128}
"""For more ranks: a collective of 16 takes two cores milliseconds, however small it is, so messages
must be larger there, or the cores are measured instead of the plan."""
GPT_ON_FOUR: dict[str, Maker] = {
    "zero 1": hybrid(zero=1),
    "zero 2": hybrid(zero=2),
    "zero 3": hybrid(zero=3),
    "zero 3, full": hybrid(zero=3, recompute=FULL),
    "tensor 2": hybrid(tensor=2),
    "tensor 2, zero 3": hybrid(tensor=2, zero=3),
    "tensor 2, sequence": hybrid(tensor=2, sequence=True, zero=1),
    "tensor 4": hybrid(tensor=4),
    "1f1b 2 x 4, tensor 2": hybrid(stages=2, microbatches=4, tensor=2),
    "1f1b 2 x 4, zero 2": hybrid(stages=2, microbatches=4, zero=2),
}
LLAMA_ON_FOUR: dict[str, Maker] = {
    "zero 3, selective": hybrid(zero=3, recompute=SELECTIVE),
    "zero 3 x 4": hybrid(zero=3, microbatches=4),
    "tensor 2, sequence": hybrid(tensor=2, sequence=True),
    "tensor 4, sequence": hybrid(tensor=4, sequence=True),
    "tensor 2, zero 2, full": hybrid(tensor=2, zero=2, recompute=FULL),
    "gpipe 2 x 4, sequence": hybrid(stages=2, microbatches=4, kind=GPIPE, tensor=2, sequence=True),
    "zero-bubble 2 x 4, tensor 2": hybrid(stages=2, microbatches=4, kind=ZERO_BUBBLE, tensor=2),
}
LLAMA_ON_EIGHT: dict[str, Maker] = {
    "tensor 2, zero 3": hybrid(tensor=2, zero=3),
    "tensor 4, sequence, zero 1": hybrid(tensor=4, sequence=True, zero=1),
    "tensor 8": hybrid(tensor=8),
    "1f1b 2 x 4, tensor 2, zero 1": hybrid(stages=2, microbatches=4, tensor=2, zero=1),
    "1f1b 2 x 4, tensor 4": hybrid(stages=2, microbatches=4, tensor=4),
    "1f1b 4 x 8, tensor 2": hybrid(stages=4, microbatches=8, tensor=2),
    "1f1b 4 x 4, zero 3, full": hybrid(stages=4, microbatches=4, zero=3, recompute=FULL),
}
GPT_ON_SIXTEEN: dict[str, Maker] = {
    "tensor 4, zero 3": hybrid(tensor=4, zero=3),
    "tensor 8, sequence": hybrid(tensor=8, sequence=True),
    "1f1b 4 x 4, tensor 2, zero 2": hybrid(stages=4, microbatches=4, tensor=2, zero=2),
    "1f1b 4 x 8, tensor 4": hybrid(stages=4, microbatches=8, tensor=4),
    "1f1b 2 x 4, tensor 4, sequence": hybrid(stages=2, microbatches=4, tensor=4, sequence=True),
    "gpipe 4 x 4, zero 3, selective": hybrid(
        stages=4, microbatches=4, kind=GPIPE, zero=3, recompute=SELECTIVE
    ),
}


def hybrid_scenarios() -> Sequence[Scenario]:
    """Plans with tensor and sequence parallelism, ZeRO, recomputation, and pipelines of them."""
    return (
        Scenario(
            model="gpt", graph=make_gpt, seconds=4.0, ranks=4, megabits=200, plans=GPT_ON_FOUR
        ),
        Scenario(
            model="llama", graph=make_llama, seconds=4.0, ranks=4, megabits=500, plans=LLAMA_ON_FOUR
        ),
        Scenario(
            model="llama", graph=partial(make_llama, **WIDE), seconds=16.0, ranks=8, megabits=200,
            plans=LLAMA_ON_EIGHT,
        ),
        Scenario(
            model="gpt", graph=partial(make_gpt, **WIDE), seconds=32.0, ranks=16, megabits=200,
            plans=GPT_ON_SIXTEEN,
        ),
    )  # fmt: skip
