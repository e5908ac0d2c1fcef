"""How a program is set up to train, in this program's words, and the plan that this is for a graph
on a cluster. Knows no program's own words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Keys, Recompute, ScheduleKind
from meshwright.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a program is told of how to train; 0 and empty stand for what is not said."""

    runtime: str
    """Who trains, as `RUNTIMES` has them."""
    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    keys: Keys = Keys.GATHERED
    expert: int = 1
    pipeline: int = 1
    chunks: int = 1
    blocks: tuple[int, ...] = ()
    """How many of the model's repeated layers each stage has; the embedding is with the first
    stage, the head with the last. Empty: as many in each."""
    counts_ends: bool = False
    """Whether, without `blocks`, embedding and head count as layers where stages are cut."""
    schedule: ScheduleKind | None = None
    data: int = 0
    """Replicas; 0: as many as there are devices left."""
    spread: bool = False
    """Whether the stages of a pipeline are next to each other, and its replicas far apart."""
    zero: int = 0
    recompute: Recompute = Recompute.NONE
    batch: int = 0
    """Samples of a step."""
    samples: int = 0
    """Samples of one microbatch of one replica."""
    microbatches: int = 0
    sequence: int = 0
    """Tokens of a sample."""
    model: str = ""
    """The model, as `load_graph` takes it."""
    num_blocks: int = 0
    """How many repeated layers the model has."""
    precision: str = ""
    """fp32, tf32, bf16, fp16 or mixed."""
    optimizer: str = ""
    remarks: tuple[str, ...] = ()
    """What was said and is not looked at, or is not as it is predicted: a sentence each."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By name of a field here: the file, the line and the key that say it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedSetup:
    """A setup for one model on one cluster."""

    graph: Graph
    """At the batch that the setup says."""
    plan: Plan


def plan_setup(setup: Setup, graph: Graph, cluster: Cluster) -> PlannedSetup:
    """The plan that a setup is; InputError, with the lines that say so, where it is none."""
    try:
        data = _replicas(setup, cluster)
        batch, microbatches = _batch(setup, graph, data)
        sized = graph if batch == graph.batch else graph.at_batch(batch)
        words = {
            name: getattr(setup, name)
            for name in (
                "tensor", "sequence_parallel", "context", "keys", "expert", "pipeline", "chunks",
                "zero", "recompute", "schedule",
            )
        }  # fmt: skip
        plan = Plan.from_degrees(
            sized,
            cluster,
            **words,
            data=data,
            microbatches=microbatches,
            layers=_layers(setup, sized),
            pods=data if setup.spread and setup.pipeline > 1 else 1,
        )
    except InputError as error:
        raise InputError(f"{_where(setup, str(error))}{error}") from None
    return PlannedSetup(graph=sized, plan=replace(plan, runtime=setup.runtime))


def _replicas(setup: Setup, cluster: Cluster) -> int:
    """Replicas, which with the other degrees take all devices."""
    others = setup.tensor * setup.context * setup.pipeline
    data = setup.data or max(1, cluster.num_devices // others)
    if data * others != cluster.num_devices:
        raise InputError(
            f"tensor x context x pipeline x data: must be the {cluster.num_devices:,} devices of "
            f"cluster {cluster.name}, got {setup.tensor} x {setup.context} x {setup.pipeline} x "
            f"{data} = {data * others:,}"
        )
    return data


def _batch(setup: Setup, graph: Graph, data: int) -> tuple[float, int]:
    """Samples of a step, and into how many microbatches those of a replica are divided."""
    if not setup.samples:
        return setup.batch or graph.batch, setup.microbatches or 1
    alone = setup.samples * data
    batch = setup.batch or alone * (setup.microbatches or 1)
    if batch % alone:
        raise InputError(
            f"batch: must be a multiple of samples x data ({setup.samples} x {data}), got {batch}"
        )
    if setup.microbatches and alone * setup.microbatches != batch:
        raise InputError(
            f"batch: must be samples x microbatches x data ({setup.samples} x "
            f"{setup.microbatches} x {data} = {alone * setup.microbatches}), got {batch}"
        )
    return batch, batch // alone


def _layers(setup: Setup, graph: Graph) -> tuple[int, ...]:
    """How many layers each stage has, embedding and head counted; none: there is one stage."""
    num_stages = setup.pipeline * setup.chunks
    if num_stages == 1:
        return ()
    stack = find_layers(graph)
    before, after = find_ends(stack)
    num_blocks = stack.num_layers - before - after
    if setup.blocks:
        blocks = setup.blocks
        if sum(blocks) != num_blocks:
            raise InputError(
                f"blocks: must add up to the {num_blocks} repeated layers of model {graph.name}, "
                f"got {sum(blocks)}"
            )
    elif setup.counts_ends:
        return split_evenly(stack.num_layers, num_stages)
    else:
        if num_blocks % num_stages:
            raise InputError(
                f"pipeline x chunks: must divide the {num_blocks} repeated layers of model "
                f"{graph.name}, got {setup.pipeline} x {setup.chunks}"
            )
        blocks = (num_blocks // num_stages,) * num_stages
    return tuple(
        count + before * (number == 0) + after * (number == num_stages - 1)
        for number, count in enumerate(blocks)
    )


def find_ends(stack: Stack) -> tuple[int, int]:
    """Whether a model has an embedding before its repeated layers, and a head after them: 1 or 0
    each."""
    first, last = stack.layer_name(0), stack.layer_name(stack.num_layers - 1)
    return int(first == "embedding"), int(last == "head")


def split_evenly(count: int, num_parts: int) -> tuple[int, ...]:
    """Parts whose sizes differ by one at most, the larger ones first."""
    size, more = divmod(count, num_parts)
    return tuple(size + (number < more) for number in range(num_parts))


def _where(setup: Setup, message: str) -> str:
    """The lines that say what a message is about: whose names stand before its colon."""
    head = message.partition(":")[0]
    names = re.findall(r"[a-z_]+", head)
    found = [setup.origins[name] for name in names if name in setup.origins]
    return f"{', '.join(found)}: " if found else ""
