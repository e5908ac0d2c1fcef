"""Every plan of a scope of the hybrid search, written out and simulated one by one."""

from dataclasses import replace
from itertools import combinations, islice, pairwise, product
from typing import Any

from meshwright.cluster.build import hierarchical
from meshwright.cost.layer.team import Team, team_fits
from meshwright.errors import InputError
from meshwright.graph.stack.find import find_layers
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.search.judge import try_plan

MOST_PLANS = 700
"""That are simulated one by one, some milliseconds each."""


def every_plan(graph: Any, cluster: Any, scope: Any) -> Any:
    """All plans of a scope, as its description says, on up to 16 devices in their own order."""
    stack = find_layers(graph)
    names = [device.name for device in cluster.devices]
    for pods in range(1, len(names) + 1):
        for microbatches in range(1, int(graph.batch) + 1):
            if graph.batch % (pods * microbatches) or microbatches not in scope.microbatches:
                continue
            pod = len(names) // pods
            for num_stages in range(1, stack.num_layers + 1):
                if num_stages == 1 and pods > 1:
                    continue
                for sizes in product(range(1, pod + 1), repeat=num_stages):
                    if sum(sizes) > pod or not (scope.mixed or len({*sizes}) == 1):
                        continue
                    yield from stage_plans(
                        graph, stack, names, scope, pods, pod, microbatches, sizes
                    )
            if ScheduleKind.INTERLEAVED in scope.schedules:
                yield from interleaved_plans(graph, stack, names, scope, pods, pod, microbatches)


def runs_of_devices(names: Any, pods: Any, pod: Any, sizes: Any) -> Any:
    """The devices of stages that stand at the end of every pod, one after the other."""
    offset = pod - sum(sizes)
    for size in sizes:
        yield tuple(
            name
            for each in range(pods)
            for name in names[each * pod + offset : each * pod + offset + size]
        )
        offset += size


def stage_plans(
    graph: Any,
    stack: Any,
    names: Any,
    scope: Any,
    pods: Any,
    pod: Any,
    microbatches: Any,
    sizes: Any,
) -> Any:
    runs = list(runs_of_devices(names, pods, pod, sizes))
    hows = [list(every_how(graph, stack, scope, len(run), microbatches, pods)) for run in runs]
    kinds = [each for each in scope.schedules if each is not ScheduleKind.INTERLEAVED]
    if len(sizes) == 1:
        kinds = [ScheduleKind.ONE_F_ONE_B]
    for cut in combinations(range(1, stack.num_layers), len(sizes) - 1):
        bounds = (0, *cut, stack.num_layers)
        for how in product(*hows):
            parts = tuple(
                Part(ops=ops_of(stack, *layers), devices=run, **each)
                for layers, run, each in zip(pairwise(bounds), runs, how, strict=True)
            )
            for kind in kinds:
                yield Plan(parts=parts, schedule=Schedule(kind=kind, microbatches=microbatches))


def interleaved_plans(
    graph: Any, stack: Any, names: Any, scope: Any, pods: Any, pod: Any, microbatches: Any
) -> Any:
    for size in range(1, pod + 1):
        for num_runs in range(2, pod // size + 1):
            if microbatches % max(1, microbatches // num_runs):
                continue
            runs = list(runs_of_devices(names, pods, pod, (size,) * num_runs))
            for chunks in range(2, stack.num_layers // num_runs + 1):
                for cut in combinations(range(1, stack.num_layers), chunks * num_runs - 1):
                    bounds = (0, *cut, stack.num_layers)
                    for how in every_how(graph, stack, scope, len(runs[0]), microbatches, pods):
                        yield Plan(
                            parts=tuple(
                                Part(
                                    ops=ops_of(stack, *layers),
                                    devices=runs[number % num_runs],
                                    **how,
                                )
                                for number, layers in enumerate(pairwise(bounds))
                            ),
                            schedule=Schedule(
                                kind=ScheduleKind.INTERLEAVED, microbatches=microbatches
                            ),
                        )


def ops_of(stack: Any, first: Any, after: Any) -> Any:
    return tuple(
        name
        for name, layer in zip(stack.graph.op_names, stack.layer_of_op.tolist(), strict=True)
        if first <= layer < after
    )


def every_how(
    graph: Any, stack: Any, scope: Any, num_devices: Any, microbatches: Any, pods: Any
) -> Any:
    for tensor, context in product(scope.tensor, scope.context):
        if num_devices // pods % (tensor * context):
            continue
        replicas = num_devices // (tensor * context)
        if graph.batch % (microbatches * replicas):
            continue
        sequence = tensor > 1
        if team_fits(stack, Team(tensor=tensor, context=context, sequence=sequence)) is not None:
            sequence = False
            if team_fits(stack, Team(tensor=tensor, context=context)) is not None:
                continue
        zeros = (0,) if scope.data == (1,) and context == 1 else scope.zero
        for zero, recompute in product(zeros, scope.recompute):
            if zero == 0 or replicas * context > 1:
                yield {
                    "tensor": tensor,
                    "context": context,
                    "sequence": sequence,
                    "zero": zero,
                    "recompute": recompute,
                }


def best_of_all(graph: Any, cluster: Any, scope: Any, most: Any = MOST_PLANS) -> Any:
    """The least step of all that fits and how many were simulated; None: there are too many."""
    plans = list(
        islice((p for p in every_plan(graph, cluster, scope) if obeys(p, scope)), most + 1)
    )
    if len(plans) > most:
        return None
    verdicts = []
    for plan in plans:
        try:
            resolve(graph, cluster, plan)
        except InputError:  # tied weights on several stages without teams
            continue
        verdicts.append(try_plan(graph, cluster, plan, granularity="layer"))
    fitting = [each.step_seconds for each in verdicts if each.fits]
    return min(fitting, default=float("inf")), len(verdicts)


def obeys(plan: Any, scope: Any) -> bool:
    """Whether the degrees of a whole plan are within a scope's limits."""
    runs = len({part.devices for part in plan.parts})
    replicas = {part.num_replicas for part in plan.parts}
    chunks = len(plan.parts) // runs
    return (
        (not scope.pipeline or runs in scope.pipeline)
        and (not scope.data or (len(replicas) == 1 and replicas <= {*scope.data}))
        and (not scope.chunks or chunks in scope.chunks)
    )


def small_cluster(
    devices_per_host: Any, hosts: Any, device_rate: Any, host_rate: Any, memory_bytes: Any = None
) -> Any:
    cluster = hierarchical(
        devices_per_host=devices_per_host,
        branching=[hosts],
        device_bytes_per_second=device_rate,
        host_bytes_per_second=host_rate,
    )
    if memory_bytes is None:
        return cluster
    devices = tuple(replace(each, memory_bytes=memory_bytes) for each in cluster.devices)
    return replace(cluster, devices=devices)
