"""The hybrid search against every plan of its scope, written out and simulated one by one."""

from dataclasses import replace
from functools import partial
from itertools import combinations, islice, pairwise, product
from typing import Any

import pytest
from hybrid_strategies import small_model
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.cluster.build import fully_connected, hierarchical
from meshwright.cost.layer.team import Team, team_fits
from meshwright.errors import InputError
from meshwright.graph.stack.find import find_layers
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind
from meshwright.search.judge import try_plan
from meshwright.search.method.hybrid import hybrid as module
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import search_by
from meshwright.simulate.simulate import simulate
from quick import few

hybrid = partial(search_by, "hybrid")

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


@st.composite
def instances(draw: Any) -> Any:
    """Arguments of a model, of a cluster and of a scope."""
    model = {
        "hidden": draw(st.sampled_from([32, 256, 1024])),
        "sequence": draw(st.sampled_from([32, 64])),
        "batch": draw(st.sampled_from([4, 6])),
    }
    cluster = (
        draw(st.sampled_from([2, 4])),
        draw(st.sampled_from([2, 3, 4])),
        draw(st.sampled_from([1e9, 2e10, 3e11])),
        draw(st.sampled_from([1e8, 1e10])),
        draw(st.sampled_from([None, 1e8, 3e8])),
    )
    assume(cluster[0] * cluster[1] <= 8)
    scope = {
        "tensor": draw(st.sampled_from([(1, 2), (2,), (1,), (4,)])),
        "context": draw(st.sampled_from([(1,), (1, 2), (2,)])),
        "zero": draw(st.sampled_from([(0,), (1,), (2,), (3,), (0, 1)])),
        "recompute": draw(st.sampled_from([(each,) for each in Recompute])),
        "microbatches": (draw(st.sampled_from([1, 2, 3])),),
        "schedules": draw(
            st.sampled_from(
                [
                    (ScheduleKind.ONE_F_ONE_B,),
                    (ScheduleKind.GPIPE,),
                    (ScheduleKind.ZERO_BUBBLE,),
                    (ScheduleKind.GPIPE, ScheduleKind.ZERO_BUBBLE),
                    (ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED),
                ]
            )
        ),
        "mixed": draw(st.booleans()),
        "pipeline": draw(st.sampled_from([(), (), (2,), (1, 3)])),
        "data": draw(st.sampled_from([(), (), (1,), (2,), (1, 2)])),
    }
    return model, cluster, scope


EIGHT = (2, 4, 3e11, 1e10, None)
EVERY = tuple(ScheduleKind)
NONE, FULL = (Recompute.NONE,), (Recompute.FULL,)


def scope_of(**more: Any) -> Any:
    return {
        "tensor": (2,), "context": (1,), "zero": (0,), "recompute": NONE, "microbatches": (2,),
        "schedules": (ScheduleKind.ONE_F_ONE_B,), "mixed": True, **more,
    }  # fmt: skip


LARGE = {"hidden": 1024, "sequence": 64, "batch": 4}


def is_best_of_all(instance: Any) -> Any:
    """Whether the search finds it; None: there are too many plans to look at."""
    model, shape, chosen = instance
    graph, cluster, scope = small_model(**model), small_cluster(*shape), Scope(**chosen)
    found = best_of_all(graph, cluster, scope)
    if found is None:
        return None
    answer = hybrid(graph, cluster, scope=scope, budget_seconds=120)
    if found[0] == float("inf"):
        return answer.plan is None
    assert answer.statistics["layer_seconds"] == pytest.approx(found[0], rel=1e-9)
    return answer.statistics["whole"] == 1.0


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        (EIGHT, {"schedules": (ScheduleKind.ZERO_BUBBLE,)}),
        (EIGHT, {"tensor": (1,), "zero": (1,), "schedules": (ScheduleKind.ZERO_BUBBLE,)}),
        (EIGHT, {"tensor": (1,), "context": (2,), "zero": (3,)}),
        (EIGHT, {"recompute": FULL, "schedules": (ScheduleKind.INTERLEAVED,)}),
        (EIGHT, {"pipeline": (2,), "data": (2,), "chunks": (1, 2), "schedules": EVERY}),
        (EIGHT, {"tensor": (1, 2), "pipeline": (3,), "zero": (1,), "data": (2,)}),
        (
            EIGHT,
            {"tensor": (1,), "data": (1, 2), "zero": (0, 1), "chunks": (1,), "recompute": FULL},
        ),
        (EIGHT, {"pipeline": (2,), "chunks": (2,), "recompute": FULL, "schedules": EVERY}),
        (EIGHT, {"tensor": (4,), "pipeline": (2,), "data": (1,), "zero": (1,)}),
        # ZeRO has something to do on four devices only, so that one of many sizes is left.
        ((4, 2, 3e11, 1e10, 1.5e8), {"zero": (3,), "recompute": FULL}),
    ],
)
def test_on_eight_devices_the_plan_equals_brute_force(shape: Any, chosen: Any) -> None:
    assert is_best_of_all((LARGE, shape, scope_of(**chosen)))


ALONE: list[dict[str, Any]] = [
    {"tensor": (1, 2), "zero": (0, 3)},
    {"tensor": (1,), "context": (1, 2), "schedules": (ScheduleKind.GPIPE,)},
    {"tensor": (1, 2, 4), "pipeline": (2,), "recompute": tuple(Recompute)},
    {"tensor": (1, 2), "schedules": EVERY, "zero": (1,)},
]


@pytest.mark.parametrize("chosen", few(ALONE, ALONE[1], ALONE[3]))
def test_settings_alone_find_the_plan_of_brute_force(
    chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stages are of one size, and not every plan is looked at."""
    monkeypatch.setattr(module, "_SMALL_DEVICES", 0)
    graph, cluster = small_model(**LARGE), small_cluster(*EIGHT)
    scope = Scope(**scope_of(**chosen, mixed=False))
    found = best_of_all(graph, cluster, scope)
    assert found is not None
    answer = hybrid(graph, cluster, scope=scope, budget_seconds=120)
    assert answer.statistics["whole"] == 0.0
    assert answer.statistics["layer_seconds"] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.slow
@given(instances())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)  # some scopes have thousands of plans
def test_the_plan_equals_brute_force_over_the_scope(instance: Any) -> None:
    is_best = is_best_of_all(instance)
    assume(is_best is not None)
    assert is_best


def test_the_plan_of_two_layers_on_four_devices_is_the_best_of_all() -> None:
    graph = small_model()
    cluster = fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e10)
    scope = Scope(
        tensor=(1, 2),
        context=(1,),
        zero=(0,),
        recompute=(Recompute.NONE,),
        microbatches=(2,),
        schedules=(ScheduleKind.ONE_F_ONE_B,),
    )
    expected, count = best_of_all(graph, cluster, scope)
    answer = hybrid(graph, cluster, scope=scope, budget_seconds=60)
    assert count > 20
    assert answer.statistics["layer_seconds"] == pytest.approx(expected, rel=1e-9)
    assert answer.statistics["whole"] == 1.0
    assert answer.plan is not None
    by_op = simulate(graph, cluster, answer.plan, granularity="op").step_seconds
    assert answer.step_seconds == by_op
    assert expected * 0.9 < by_op < expected * 1.1
