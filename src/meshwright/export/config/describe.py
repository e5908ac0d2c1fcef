"""What of a plan other programs can be told: one set of degrees for all stages. Decides which
degrees are nearest to a plan that has none; knows no program's words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.export.config.model import find_numbers
from meshwright.export.config.setup import Setup, find_ends
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.degrees import Degrees
from meshwright.plan.part import Part, Schedule, ScheduleKind, Sync
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.simulate.footprint import footprint
from meshwright.simulate.simulate import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A plan as a setup, and what of it that leaves out."""

    setup: Setup
    left_out: tuple[str, ...] = ()
    """A sentence each."""


def describe_plan(request: Request, plan: Plan, runtime: str) -> Described:
    """The setup that comes nearest to a plan, for a program that has all words."""
    graph, cluster = request.graph, request.cluster
    left_out = list(_left_out(plan))
    degrees = _exact(graph, cluster, plan)
    if degrees is None:
        degrees, more = _nearest(request, plan)
        left_out += more
    exact = Plan.from_degrees(graph, cluster, **_words(degrees))
    is_spread = degrees.pipeline > 1 and degrees.pods > 1
    if is_spread and degrees.pods != degrees.data:
        left_out.append(
            f"replicas spread over {degrees.pods} pods: replicas of a stage are next to each other"
        )
        is_spread = False
    precision, optimizer = find_numbers(graph)
    batch = int(graph.batch)
    if batch != graph.batch:
        raise InputError(f"batch: must be whole to be exported, got {graph.batch:g} samples")
    setup = Setup(
        runtime=runtime,
        **{
            name: getattr(degrees, name)
            for name in (
                "tensor", "sequence_parallel", "context", "keys", "expert", "pipeline", "chunks",
                "schedule", "zero", "recompute", "microbatches",
            )
        },
        blocks=_blocks(graph, exact),
        data=exact.parts[0].num_replicas,
        spread=is_spread,
        batch=batch,
        samples=batch // (exact.parts[0].num_replicas * degrees.microbatches),
        precision=precision,
        optimizer=optimizer,
    )  # fmt: skip
    return Described(setup=setup, left_out=tuple(left_out))


def _left_out(plan: Plan) -> Iterator[str]:
    """What beside degrees a plan may have."""
    if plan.allocations:
        yield "bandwidth allocations: `meshwright network` writes them; without, transfers compete"
    if plan.batch_statistics:
        yield "batch norm over all replicas: each takes statistics of its own samples"


def _exact(graph: Graph, cluster: Cluster, plan: Plan) -> Degrees | None:
    """The degrees that give a plan, whatever the order in which its parts name their ops."""
    if plan.schedule is None and len(plan.parts) > 1:
        return None
    schedule = plan.schedule or Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=1)
    plain = Plan(parts=plan.parts, schedule=schedule)
    found = plain.degrees(graph, cluster)
    if found is not None:
        return found
    for degrees in _candidates(graph, cluster, plain):
        try:
            made = Plan.from_degrees(graph, cluster, **_words(degrees))
        except InputError:
            continue
        if [_essence(each) for each in made.parts] == [_essence(each) for each in plain.parts]:
            return degrees
    return None


def _essence(part: Part) -> Part:
    """A part without what changes nothing: the order of its ops, and shares that are equal."""
    is_equal = len(set(part.shares)) <= 1
    sync = Sync.ALL_REDUCE if part.num_replicas == 1 else part.sync
    return replace(
        part,
        ops=tuple(sorted(part.ops)),
        priorities=(),
        shares=() if is_equal else part.shares,
        sync=sync,
    )


def _nearest(request: Request, plan: Plan) -> tuple[Degrees, list[str]]:
    """Of the degrees that one of the stages has, for all stages, those with the fastest step; first
    those that fit into memory."""
    if plan.schedule is None:
        raise InputError(
            "plan: places single ops or unequal replicas, which no other program can be told; plan "
            "again with --method hybrid"
        )
    graph, cluster = request.graph, request.cluster
    best: tuple[tuple[bool, float], Degrees] | None = None
    for degrees in _candidates(graph, cluster, plan):
        try:
            made = Plan.from_degrees(graph, cluster, **_words(degrees))
        except InputError:
            continue
        timeline = simulate(graph, cluster, made, sharing=request.sharing)
        held = footprint(graph, cluster, timeline)
        fails = bool(np.any(held.peak_bytes > held.usable_bytes))
        if best is None or (fails, timeline.step_seconds) < best[0]:
            best = (fails, timeline.step_seconds), degrees
    if best is None:
        raise InputError(
            "plan: its stages are unlike, and no degrees of one of them can be had by all, so no "
            "other program can be told it"
        )
    return best[1], [_word_difference(plan, best[1])]


def _word_difference(plan: Plan, degrees: Degrees) -> str:
    """What stages differ in, and what all have in its place."""
    names = ("tensor", "sequence", "context", "keys", "expert", "zero", "recompute")
    unlike = [name for name in names if len({getattr(each, name) for each in plan.parts}) > 1]
    if not unlike:
        return "the order of devices: stages take devices in the cluster's own order"
    there = ", ".join(
        f"{name} {getattr(degrees, 'sequence_parallel' if name == 'sequence' else name)}"
        for name in unlike
    )
    return f"stages that differ in {', '.join(unlike)}: all have {there}"


def _candidates(graph: Graph, cluster: Cluster, plan: Plan) -> Iterator[Degrees]:
    """For each way in which a stage runs, the degrees with which all do, the layers of the stages
    as they are."""
    num_runs = len({part.devices for part in plan.parts})
    layers = _stage_layers(graph, plan.parts)
    chunks, schedule = max(1, len(plan.parts) // num_runs), plan.schedule
    assert schedule is not None
    seen = set()
    for part in plan.parts:
        replicas = cluster.num_devices // num_runs // part.width
        words = (part.tensor, part.sequence, part.context, part.keys, part.expert, part.zero,
                 part.recompute)  # fmt: skip
        if words in seen or not replicas:
            continue
        seen.add(words)
        for pods in {1, replicas}:
            try:
                yield Degrees(
                    tensor=part.tensor, sequence_parallel=part.sequence, context=part.context,
                    keys=part.keys, expert=part.expert, zero=part.zero, recompute=part.recompute,
                    pipeline=num_runs, chunks=chunks, data=replicas, schedule=schedule.kind,
                    microbatches=schedule.microbatches, pods=pods,
                    layers=layers if num_runs > 1 else (),
                )  # fmt: skip
            except InputError:  # a stage alone has what its degrees do not allow
                continue


def _stage_layers(graph: Graph, parts: Sequence[Part]) -> tuple[int, ...]:
    if len(parts) == 1:
        return ()
    layer_of_op = find_layers(graph).layer_of_op
    return tuple(
        len(np.unique(layer_of_op[[graph.index[op] for op in part.ops]])) for part in parts
    )


def _blocks(graph: Graph, plan: Plan) -> tuple[int, ...]:
    """How many repeated layers each stage has; none: there is one stage."""
    layers = list(_stage_layers(graph, plan.parts))
    if not layers:
        return ()
    before, after = find_ends(find_layers(graph))
    layers[0] -= before
    layers[-1] -= after
    return tuple(layers)


def _words(degrees: Degrees) -> dict[str, object]:
    return {name: getattr(degrees, name) for name in Degrees.__dataclass_fields__}
