"""Ideas for degrees, schedules and memory: what all stages of a plan have in common, doubled,
halved or done another way."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.explain.neighbour import Idea
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import has_layers
from meshwright.plan.degrees import Degrees
from meshwright.plan.describe import span, words
from meshwright.plan.part import Keys, Part, Recompute, Schedule, ScheduleKind, Sync
from meshwright.plan.plan import Plan
from meshwright.units import format_count

_WIDTHS = ("tensor", "context", "data")
"""Degrees that divide a stage's own devices; what is left of them are replicas."""


def width_ideas(graph: Graph, cluster: Cluster, plan: Plan) -> list[Idea]:
    """Each degree doubled while another is halved, on the same devices."""
    if not has_layers(graph):
        return []
    degrees = plan.degrees(graph, cluster)
    ideas = list(_within_stages(plan))
    if degrees is not None:
        ideas += _across_stages(graph, cluster, plan, degrees)
    return ideas


def _within_stages(plan: Plan) -> Iterator[Idea]:
    for more, less in permutations(_WIDTHS, 2):
        before = [_degree(part, less) for part in plan.parts]
        if min(before) > 1:
            factors = {
                name: 2.0 if name == more else 0.5 if name == less else 1.0
                for name in ("tensor", "context")
            }
            yield Idea(
                decision=_name(plan.parts, more, less),
                change=f"{more} doubled, {less} halved",
                make=partial(_widened, plan, factors),
            )
    if any(part.expert > 1 for part in plan.parts):
        for factor, text in ((2.0, "doubled"), (0.5, "halved")):
            yield Idea(
                decision=f"expert {span(part.expert for part in plan.parts)}",
                change=f"expert {text}",
                make=partial(_widened, plan, {"expert": factor}),
            )


def _degree(part: Part, name: str) -> int:
    return part.num_replicas if name == "data" else int(getattr(part, name))


def _name(parts: Sequence[Part], more: str, less: str) -> str:
    names = sorted((more, less), key=_WIDTHS.index)
    return ", ".join(f"{name} {span(_degree(part, name) for part in parts)}" for name in names)


def _widened(plan: Plan, factors: dict[str, float]) -> Plan:
    """The plan with widths of its teams times factors; who has a share of the batch changes with
    them."""
    parts = []
    for part in plan.parts:
        widths = {name: int(getattr(part, name) * factor) for name, factor in factors.items()}
        if any(width < 1 for width in widths.values()):
            raise InputError(f"{min(widths, key=lambda name: widths[name])}: must be at least 1")
        sequence = part.sequence and widths.get("tensor", part.tensor) > 1
        keys = part.keys if widths.get("context", part.context) > 1 else Keys.GATHERED
        changed: dict[str, Any] = {**widths, "shares": (), "sequence": sequence, "keys": keys}
        parts.append(replace(part, **changed))
    return replace(plan, parts=tuple(parts))


def _across_stages(graph: Graph, cluster: Cluster, plan: Plan, degrees: Degrees) -> Iterator[Idea]:
    """The pipeline longer or shorter, with layers cut anew by their work, and pods."""
    every = ("pipeline", *_WIDTHS)
    of = partial(_of_degrees, graph, cluster, plan, degrees)
    for more, less in permutations(every, 2):
        if "pipeline" in (more, less) and getattr(degrees, less) % 2 == 0:
            changed = {
                more: 2 * getattr(degrees, more),
                less: getattr(degrees, less) // 2,
                "layers": (),
            }
            names = (name for name in every if name in (more, less))
            yield Idea(
                decision=", ".join(f"{name} {getattr(degrees, name)}" for name in names),
                change=f"{more} doubled, {less} halved",
                make=partial(of, changed),
            )
    if degrees.data > 1 and degrees.pipeline > 1:
        for pods in sorted({1, degrees.data} - {degrees.pods}):
            near = "replicas" if pods == 1 else "stages"
            yield Idea(
                decision=f"{degrees.pods} of {degrees.data:,} replicas in pods of their own",
                change=f"{near} next to each other",
                make=partial(of, {"pods": pods}),
            )


def _of_degrees(
    graph: Graph, cluster: Cluster, plan: Plan, degrees: Degrees, changed: dict[str, Any]
) -> Plan:
    """The plan with other degrees; what does not go with them falls back to what does."""
    fields: dict[str, Any] = {n: getattr(degrees, n) for n in Degrees.__dataclass_fields__}
    fields |= changed
    if fields["tensor"] == 1:
        fields["sequence_parallel"] = False
    if fields["context"] == 1:
        fields["keys"] = Keys.GATHERED
    if fields["pipeline"] == 1:
        fields |= {"chunks": 1, "schedule": None, "layers": ()}
    fields["pods"] = min(fields["pods"], fields["data"])
    return replace(Plan.from_degrees(graph, cluster, **fields), runtime=plan.runtime)


def schedule_ideas(graph: Graph, cluster: Cluster, plan: Plan) -> list[Idea]:
    """Twice and half as many microbatches, the other schedules, and other numbers of chunks."""
    schedule = plan.schedule
    if schedule is None:
        return []
    now, kind = schedule.microbatches, schedule.kind
    ideas = [
        Idea(
            decision=format_count(now, "microbatch"),
            change=f"{text} to {count}",
            make=partial(_scheduled, plan, kind, count),
        )
        for count, text in ((2 * now, "doubled"), (now // 2, "halved"))
        if not graph.mixes.any() and (count > now or now % 2 == 0)
    ]
    if len(plan.parts) == 1:
        return ideas
    ideas += [
        Idea(
            decision=f"schedule {kind}",
            change=str(other),
            make=partial(_scheduled, plan, other, now),
        )
        for other in ScheduleKind
        if other not in (kind, ScheduleKind.INTERLEAVED)
    ]
    return ideas + _chunk_ideas(graph, cluster, plan)


def _chunk_ideas(graph: Graph, cluster: Cluster, plan: Plan) -> list[Idea]:
    """Other numbers of stages for each run of devices."""
    degrees = plan.degrees(graph, cluster)
    if degrees is None or degrees.pipeline == 1:
        return []
    return [
        Idea(
            decision=f"schedule {degrees.kind}, {format_count(degrees.chunks, 'chunk')}",
            change=format_count(chunks, "chunk"),
            make=partial(
                _of_degrees, graph, cluster, plan, degrees,
                {"chunks": chunks, "layers": (), "schedule": None},
            ),
        )
        for chunks in sorted({1, 2, 2 * degrees.chunks} - {degrees.chunks})
    ]  # fmt: skip


def _scheduled(plan: Plan, kind: ScheduleKind, microbatches: int) -> Plan:
    return replace(plan, schedule=Schedule(kind=kind, microbatches=microbatches))


def memory_ideas(graph: Graph, plan: Plan) -> list[Idea]:
    """What is kept, computed again or divided: other recomputation, ZeRO and sequence parallelism
    of all stages alike."""
    if not has_layers(graph) or any(part.sync is not Sync.ALL_REDUCE for part in plan.parts):
        return []
    parts = plan.parts
    ideas = [
        _all_parts(
            plan,
            f"recompute {words(part.recompute for part in parts)}",
            f"{each}",
            "recompute",
            each,
        )
        for each in Recompute
    ]
    if any(part.num_replicas * part.context > 1 for part in parts):
        now = f"zero {span(part.zero for part in parts)}"
        ideas += [_all_parts(plan, now, str(each), "zero", each) for each in range(4)]
    if all(part.tensor > 1 for part in parts):
        has = all(part.sequence for part in parts)
        now, other = (
            ("sequence parallel", "rows whole") if has else ("rows whole", "sequence parallel")
        )
        ideas.append(_all_parts(plan, now, other, "sequence", not has))
    return ideas


def _all_parts(plan: Plan, decision: str, change: str, name: str, value: object) -> Idea:
    """One field of every part set to a value; ZeRO stays away from parts with nothing to divide."""

    def make() -> Plan:
        parts = [
            part
            if name == "zero" and part.num_replicas * part.context == 1
            else replace(part, **{name: value})  # type: ignore[arg-type]
            for part in plan.parts
        ]
        return replace(plan, parts=tuple(parts))

    return Idea(decision=decision, change=change, make=make)
