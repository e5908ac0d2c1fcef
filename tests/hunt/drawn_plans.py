"""Random plans of every kind for a graph and a cluster, most of them bad and nearly all legal."""

from collections.abc import Sequence

import numpy as np

from meshwright.graph.graph import Graph, Phase
from meshwright.plan.part import Discipline, Part, Recompute, Schedule, ScheduleKind, Sync
from meshwright.plan.plan import Plan
from meshwright.plan.stage import DraftStage
from meshwright.search.instance import Instance, order_plan, placement_plan
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.scope import list_frames, list_sizes
from meshwright.search.method.hybrid.space import HybridSpace
from meshwright.search.method.hybrid.table import option_fits
from meshwright.search.method.pipeline.consecutive import possible_microbatches

Rng = np.random.Generator


def draw_placement(rng: Rng, instance: Instance) -> Plan:
    """Every op on one device, by any order or priority."""
    device = rng.integers(instance.num_devices, size=instance.num_units)[instance.unit_of]
    if rng.random() < 0.5:
        return order_plan(instance, device.tolist(), rng.permutation(instance.num_ops).tolist())
    discipline = Discipline.FIFO if rng.random() < 0.5 else Discipline.PRIORITY
    return placement_plan(instance, device.tolist(), rng.random(instance.num_ops), discipline)


def draw_replicas(rng: Rng, instance: Instance) -> Plan:
    """Parts of units, each on some devices, with any shares and synchronisation."""
    label = rng.integers(3, size=instance.num_units)[instance.unit_of]
    parts = [_part(rng, instance, np.flatnonzero(label == each)) for each in np.unique(label)]
    return Plan(parts=tuple(parts))


def draw_pipeline(rng: Rng, instance: Instance) -> Plan:
    """Stages of forward ops in a row, backward ops no later than their sources, with a schedule."""
    graph = instance.graph
    stage = _stages(rng, graph, int(rng.integers(1, 4)))
    parts = [_part(rng, instance, np.flatnonzero(stage == each)) for each in np.unique(stage)]
    most = max(len(part.devices) for part in parts)
    schedule = Schedule(
        kind=ScheduleKind(str(rng.choice(list(ScheduleKind)))),
        microbatches=int(rng.choice(possible_microbatches(graph, most)[:4])),
    )
    return Plan(parts=tuple(parts), schedule=schedule)


def _part(rng: Rng, instance: Instance, ops: Sequence[int] | np.ndarray) -> Part:
    count = int(rng.integers(1, instance.num_devices + 1))
    sync = Sync(str(rng.choice(list(Sync))))
    saves = rng.random() < 0.3  # memory; of what duplicates nothing is divided
    names = [each.name for each in instance.cluster.devices]
    weights = rng.choice([1.0, 1.0, 2.0, 5.0], size=count)
    return Part(
        ops=tuple(instance.graph.op_names[op] for op in ops),
        devices=tuple(str(each) for each in rng.choice(names, size=count, replace=False)),
        shares=tuple((weights / weights.sum()).tolist()) if rng.random() < 0.5 else (),
        sync=sync,
        zero=int(rng.integers(4)) if saves and sync is not Sync.DUPLICATE else 0,
        recompute=Recompute(str(rng.choice(list(Recompute)))) if saves else Recompute.NONE,
    )


def _stages(rng: Rng, graph: Graph, count: int) -> np.ndarray:
    """For each op a stage, which no rule for phases forbids."""
    stage = np.zeros(graph.num_ops, dtype=np.int64)
    cuts = np.sort(rng.integers(graph.num_ops, size=count - 1))
    for op in range(graph.num_ops):
        before = graph.predecessors[op]
        if graph.phase[op] == Phase.FORWARD:
            stage[op] = max([int((cuts <= op).sum()), *stage[before].tolist()])
        elif graph.phase[op] == Phase.BACKWARD:
            same = before[graph.phase[before] == Phase.BACKWARD]
            start = stage[graph.partner[op]] if graph.partner[op] >= 0 else count - 1
            stage[op] = min([int(start), *stage[same].tolist()])
        else:
            stage[op] = int(rng.integers(count))
    return stage


def draw_draft(rng: Rng, space: HybridSpace) -> HybridDraft | None:
    """Layers cut anywhere, every stage with any option that fits it; None: no stage fits."""
    frames = list(list_frames(space.scope, space.batch, space.cluster.num_devices))
    frame = frames[int(rng.integers(len(frames)))]
    pod = space.cluster.num_devices // frame.pods
    left, offset, stages = space.stack.num_layers, 0, []
    while left and offset < pod:
        size = int(rng.choice([each for each in list_sizes(pod) if each <= pod - offset]))
        options = [each for each in space.options if option_fits(space.prices, frame, size, each)]
        if not options:
            return None
        is_last = offset + size >= pod or rng.random() < 0.3
        layers = left if is_last else int(rng.integers(1, left + 1))
        first = space.stack.num_layers - left
        stages.append(
            DraftStage(
                first=first,
                after=first + layers,
                offset=offset,
                size=size,
                option=options[int(rng.integers(len(options)))],
            )
        )
        left, offset = left - layers, offset + size
    kinds = [each for each in ScheduleKind if each is not ScheduleKind.INTERLEAVED]
    kind = ScheduleKind.ONE_F_ONE_B if len(stages) == 1 else kinds[int(rng.integers(len(kinds)))]
    draft = HybridDraft(frame=frame, kind=kind, stages=tuple(stages), estimate_seconds=0.0)
    return draft if left == 0 and space.allows(draft) else None
