"""The exhaustive search against plain enumeration of plans in the simulator."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import make_cluster

from counted import counted_clock
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cost.memory import usable_bytes
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Discipline
from meshwright.search.clock import Clock
from meshwright.search.instance import (
    Instance,
    devices_of_units,
    make_instance,
    order_plan,
    placement_plan,
)
from meshwright.search.judge import MEMORY_TOLERANCE, try_plan
from meshwright.search.method.placement.exhaustive.bound import list_placements
from meshwright.search.method.placement.exhaustive.search import MAX_OPS, exhaust
from meshwright.simulate.simulate import simulate
from small import star

SHARINGS = ("none", "fair")


@st.composite
def steps(draw: st.DrawFn, min_ops: int, max_ops: int, num_lanes: int = 0) -> Graph:
    """Graphs with everything that decides times or memory, ops of no time and ties included.

    With lanes every op reads from the one before it in its lane, so that there are few orders.
    """
    num_ops = draw(st.integers(min_ops, max_ops))
    builder = GraphBuilder("random", 4)
    is_inference = draw(st.integers(0, 3)) == 0
    phases = sorted(draw(st.sampled_from(Phase)) for _ in range(num_ops))
    phases = [Phase.FORWARD] * num_ops if is_inference else phases
    times = st.sampled_from([0.0, 1.0, 2.0, 2.5, 7.0])
    sizes = st.sampled_from([0.0, 0.0, 1.0, 3.0])
    # Hosts launch ops in microseconds.
    is_captured = is_inference or draw(st.integers(0, 5)) == 0
    unit = 1e-5 if is_captured else 1.0
    for number, phase in enumerate(phases):
        forward = [i for i in range(number) if phases[i] == Phase.FORWARD]
        has_partner = phase == Phase.BACKWARD and forward and draw(st.booleans())
        builder.add_op(
            f"op{number}",
            phase=phase,
            split=Split.NONE if phase == Phase.UPDATE else draw(st.sampled_from(Split)),
            group=draw(st.sampled_from([-1, -1, -1, 0, 1])),
            partner=draw(st.sampled_from(forward)) if has_partner else -1,
            seconds={
                "fast": unit * draw(times),
                "slow": unit * draw(st.sampled_from([1.0, 3.0, math.inf])),
            },
            calls=draw(st.integers(int(is_inference), 3)) if is_captured else 0,
            state_bytes=draw(sizes),
            saved_bytes=draw(sizes) if phase == Phase.FORWARD else 0.0,
            workspace_bytes=draw(sizes),
        )
    lanes = [draw(st.integers(1, num_lanes)) if num_lanes else -op for op in range(num_ops)]
    for source in range(num_ops - 1):
        after = [op for op in range(source + 1, num_ops) if lanes[op] == lanes[source]]
        if after:
            builder.add_tensor(source, draw(st.sampled_from([0.0, 1.0, 2.0])), after[:1])
        later = st.sampled_from(range(source + 1, num_ops))
        for _ in range(draw(st.integers(0, 2))):
            size = draw(st.sampled_from([0.0, 0.7, 1.0, 4.0]))
            builder.add_tensor(source, size, draw(st.lists(later, max_size=3, unique=True)))
    return builder.finish()


@st.composite
def machines(draw: st.DrawFn, graph: Graph, max_devices: int) -> Cluster:
    """Devices of two types, joined pair by pair or by a switch, with plenty of memory or little."""
    num_devices = draw(st.integers(2, max_devices))
    names = [f"d{place}" for place in range(num_devices)]
    kinds = [draw(st.sampled_from(["fast", "fast", "slow"])) for _ in names]
    is_even, latency = draw(st.booleans()), draw(st.sampled_from([0.0, 0.3]))
    unit = 1e-5 if graph.calls.any() else 1.0
    rate = st.just(1.0) if is_even else st.sampled_from([0.5, 1.0, 3.0, 100.0])
    pairs = [(a, b) for a in names for b in names if a != b]
    if has_switch := draw(st.booleans()):
        pairs = [pair for name in names for pair in ((name, "switch"), ("switch", name))]
    total = float((graph.state_bytes + graph.workspace_bytes + graph.saved_bytes).sum())
    total += float(graph.tensor_bytes.sum()) + 1.0
    share = st.sampled_from([0.1, 0.3, 0.4, 0.5, 0.6, 0.8, 10.0])
    shares = [draw(share)] * num_devices if draw(st.booleans()) else [draw(share) for _ in names]
    return Cluster(
        name="random",
        types={
            kind: DeviceType(
                name=kind,
                flops_per_second={"fp32": 1.0},
                memory_bytes=1e12,
                memory_bytes_per_second=1.0,
                library_bytes=1.0,
                is_asynchronous=kind == "fast",
            )
            for kind in dict.fromkeys(kinds)
        },
        devices=tuple(
            Device(name=name, type=kind, host=f"h{name}", memory_bytes=share * total)
            for name, kind, share in zip(names, kinds, shares, strict=True)
        ),
        switches=("switch",) if has_switch else (),
        links=tuple(
            Link(
                source=a,
                target=b,
                bytes_per_second=draw(rate) / unit,
                latency_seconds=latency * unit,
            )
            for a, b in pairs
        ),
    )


@st.composite
def instances(
    draw: st.DrawFn,
    min_ops: int = 2,
    max_ops: int = 4,
    max_devices: int = 3,
    num_lanes: int = 0,
) -> Instance:
    graph = draw(steps(min_ops, max_ops, num_lanes))
    return make_instance(graph, draw(machines(graph, max_devices)))


def every_plan(instance: Instance, sharing: str) -> Iterator[tuple[float, float]]:
    """Bytes that are missing and seconds, of every placement with every order on every device."""
    for devices in every_placement(instance):
        mine = [[op for op, d in enumerate(devices) if d == each] for each in set(devices)]
        for orders in itertools.product(*map(itertools.permutations, mine)):
            yield from simulated(instance, devices, orders, sharing)


def every_merged_plan(instance: Instance, sharing: str) -> Iterator[tuple[float, float]]:
    """The same, for more ops: only orders that follow the graph, found as parts of orders of all.

    The rest wait for each other.
    """
    edges = list(zip(*(ends.tolist() for ends in instance.graph.edges), strict=True))
    merged = list(topological_orders(edges, frozenset(range(instance.num_ops))))
    for devices in every_placement(instance):
        used = sorted(set(devices))
        parts = {tuple(tuple(op for op in o if devices[op] == d) for d in used) for o in merged}
        for orders in parts:
            yield from simulated(instance, devices, orders, sharing)


def every_placement(instance: Instance) -> Iterator[list[int]]:
    for units in itertools.product(range(instance.num_devices), repeat=instance.num_units):
        yield [units[unit] for unit in instance.unit_of.tolist()]


def simulated(
    instance: Instance, devices: list[int], orders: Sequence[Sequence[int]], sharing: str
) -> Iterator[tuple[float, float]]:
    """Bytes that are missing and seconds; nothing where ops wait for each other or cannot run."""
    place = {op: at for order in orders for at, op in enumerate(order)}
    priorities = [-float(place[op]) for op in range(instance.num_ops)]
    plan = placement_plan(instance, devices, priorities, Discipline.ORDER)
    try:
        timeline = simulate(instance.graph, instance.cluster, plan, sharing=sharing)
    except InputError:
        return
    usable = usable_bytes(instance.graph, instance.cluster)
    over = np.array(timeline.peak_bytes) - usable * (1 + MEMORY_TOLERANCE)
    yield float(np.maximum(over, 0).sum()), timeline.step_seconds


def topological_orders(
    edges: list[tuple[int, int]], left: frozenset[int]
) -> Iterator[tuple[int, ...]]:
    if not left:
        yield ()
    for op in sorted(left):
        if not any(target == op and source in left for source, target in edges):
            for rest in topological_orders(edges, left - {op}):
                yield (op, *rest)


def check_against(plans: list[tuple[float, float]], instance: Instance, sharing: str) -> None:
    """The plan that is found is the best of these, which are all."""
    found = exhaust(instance, sharing=sharing)
    assert found.is_complete
    if not plans:
        assert found.verdict is None
        return
    assert found.verdict is not None
    assert found.plan is not None
    assert try_plan(instance.graph, instance.cluster, found.plan, sharing) == found.verdict
    fitting = [seconds for missing, seconds in plans if missing == 0]
    assert found.verdict.fits == bool(fitting)
    if fitting:
        assert found.verdict.step_seconds == pytest.approx(min(fitting), rel=1e-10, abs=0)
    else:
        least = min(missing for missing, _ in plans)
        assert found.verdict.missing_bytes == pytest.approx(least, rel=1e-9)


@given(instances(max_ops=4), st.sampled_from(SHARINGS))
@settings(max_examples=15)
def test_no_plan_of_up_to_four_ops_is_better(instance: Instance, sharing: str) -> None:
    check_against(list(every_plan(instance, sharing)), instance, sharing)


@given(instances(min_ops=5, max_ops=6, max_devices=2, num_lanes=2), st.sampled_from(SHARINGS))
@settings(max_examples=6)
def test_no_plan_of_six_ops_is_better(instance: Instance, sharing: str) -> None:
    check_against(list(every_merged_plan(instance, sharing)), instance, sharing)


@pytest.mark.slow
@given(instances(min_ops=3, max_ops=5), st.sampled_from(SHARINGS))
@settings(max_examples=60)
def test_no_plan_of_five_ops_on_three_devices_is_better(instance: Instance, sharing: str) -> None:
    check_against(list(every_merged_plan(instance, sharing)), instance, sharing)


@pytest.mark.slow
@given(instances(min_ops=8, max_ops=8, max_devices=2, num_lanes=2), st.sampled_from(SHARINGS))
@settings(max_examples=8)
def test_no_plan_of_eight_ops_is_better(instance: Instance, sharing: str) -> None:
    check_against(list(every_merged_plan(instance, sharing)), instance, sharing)


@given(instances(min_ops=2, max_ops=9), st.sampled_from(SHARINGS), st.randoms())
@settings(max_examples=30)
def test_what_the_walk_takes_for_granted_is_what_the_simulator_does(
    instance: Instance, sharing: str, random: Random
) -> None:
    graph, cluster = instance.graph, instance.cluster
    units = [random.randrange(instance.num_devices) for _ in range(instance.num_units)]
    devices = [units[unit] for unit in instance.unit_of.tolist()]
    # Near the graph's order, and made to follow it by the plan.
    near = sorted(range(instance.num_ops), key=lambda op: op + random.choice([0, 1.5]))
    plan = order_plan(instance, devices, near)
    priority = {
        name: value
        for part in plan.parts
        for name, value in zip(part.ops, part.priorities, strict=True)
    }
    order = sorted(range(instance.num_ops), key=lambda op: -priority[graph.op_names[op]])
    try:
        alone = simulate(graph, cluster, plan, sharing="none")
    except InputError:  # an op that has no time on its device
        return
    num_ops = instance.num_ops
    verdict = try_plan(graph, cluster, plan, sharing)
    # Sharing makes no fixed order faster ...
    assert verdict.step_seconds >= alone.step_seconds * (1 - 1e-12)
    # ... and other disciplines no plan faster than the order that they come to.
    for discipline in (Discipline.FIFO, Discipline.PRIORITY):
        other = placement_plan(instance, devices, [float(-op) for op in order], discipline)
        timeline = simulate(graph, cluster, other, sharing=sharing)
        # Of ops that start at one moment those that take no time come first.
        times = timeline.finish[:num_ops], timeline.start[:num_ops]
        came_to = np.lexsort((np.arange(num_ops), *times))
        again = simulate(
            graph, cluster, order_plan(instance, devices, came_to.tolist()), sharing=sharing
        )
        assert again.step_seconds == pytest.approx(timeline.step_seconds, rel=1e-11, abs=0)


@given(instances(min_ops=2, max_ops=7), st.sampled_from(SHARINGS))
@settings(max_examples=30)
def test_listed_bounds_hold_for_what_is_found(instance: Instance, sharing: str) -> None:
    found = exhaust(instance, sharing=sharing)
    if found.verdict is None or found.plan is None:
        return
    rows, bounds, is_whole = list_placements(instance, sharing, math.inf, Clock())
    assert is_whole
    devices = devices_of_units(instance, found.plan)[instance.unit_of]
    at = [number for number, row in enumerate(rows) if (row == devices).all()]
    assert len(at) == 1
    lack, seconds = bounds[at[0]]
    assert lack <= found.verdict.missing_bytes * (1 + 1e-9) + 1e-9
    assert seconds <= found.verdict.step_seconds * (1 + 1e-12)


@given(instances(min_ops=2, max_ops=6), st.sampled_from(SHARINGS))
@settings(max_examples=30)
def test_an_incumbent_is_beaten_or_proved(instance: Instance, sharing: str) -> None:
    best = exhaust(instance, sharing=sharing)
    if best.verdict is None or not best.verdict.fits:
        return
    seconds = best.verdict.step_seconds
    again = exhaust(instance, sharing=sharing, incumbent_seconds=seconds)
    assert again.is_complete
    assert again.verdict is None
    better = exhaust(instance, sharing=sharing, incumbent_seconds=seconds * 1.01 + 1e-9)
    assert better.is_complete
    assert better.verdict is not None
    assert better.verdict.step_seconds == pytest.approx(seconds, rel=1e-10, abs=0)


def make_step(times: list[float], edges: list[tuple[int, int, float]]) -> Graph:
    builder = GraphBuilder("step")
    for number, seconds in enumerate(times):
        builder.add_op(f"op{number}", seconds={"any": seconds})
    for source, target, size in edges:
        builder.add_tensor(source, size, [target])
    return builder.finish()


def test_memory_decides_for_the_slower_plan() -> None:
    # a and b take 3 s and hold 2 bytes; c takes 1 s, holds 8 and reads 2 bytes of each at 1 byte/s.
    # a beside b, c: 3 + 2 + 1 = 6 s; c's device holds 2 + 8 and both tensors, 14 bytes.
    # a, b beside c: 3 + 3 + 2 + 1 = 9 s; 8 bytes there, 8 and both tensors, 12 bytes, here.
    builder = GraphBuilder("three")
    for name, needed, size in (("a", 3.0, 2.0), ("b", 3.0, 2.0), ("c", 1.0, 8.0)):
        builder.add_op(name, seconds={"any": needed}, state_bytes=size)
    for source in (0, 1):
        builder.add_tensor(source, 2.0, [2])
    graph = builder.finish()
    seconds = {}
    for memory in (20.0, 14.0, 13.0, 12.0, 11.0):
        found = exhaust(make_instance(graph, make_cluster(["fast"] * 2, memory_bytes=memory)))
        assert found.is_complete
        assert found.verdict is not None
        seconds[memory] = found.verdict.step_seconds if found.verdict.fits else math.inf
    assert seconds == {20.0: 6.0, 14.0: 6.0, 13.0: 9.0, 12.0: 9.0, 11.0: math.inf}


def test_that_nothing_fits_is_told_by_the_plan_that_lacks_least() -> None:
    # 8 and 6 bytes of state on devices of 5: apart they lack 3 + 1, on one device 9.
    builder = GraphBuilder("large")
    for name, size in (("a", 8.0), ("b", 6.0)):
        builder.add_op(name, seconds={"any": 1.0}, state_bytes=size)
    cluster = make_cluster(["fast", "fast"], memory_bytes=5.0)
    found = exhaust(make_instance(builder.finish(), cluster))
    assert found.is_complete
    assert found.verdict is not None
    assert found.verdict.missing_bytes == pytest.approx(4.0)
    assert found.verdict.binding == (
        "device 'd0' needs 8 B, has 5 B: 3 B (3 bytes) are missing; 3 devices of 5 B would do by "
        "the memory bound"
    )


def test_shared_links_are_part_of_the_optimum() -> None:
    # One op feeds three, 4 bytes each, over a switch at 1 byte/s: two go to other devices.
    graph = make_step([1.0, 9.0, 9.0, 9.0], [(0, 1, 4.0), (0, 2, 4.0), (0, 3, 4.0)])
    cluster = star([1.0, 1.0, 1.0])
    seconds = {}
    for sharing in SHARINGS:
        found = exhaust(make_instance(graph, cluster), sharing=sharing)
        assert found.verdict is not None
        seconds[sharing] = found.verdict.step_seconds
    # Alone: 1 + 4 + 9. Shared: both leave d0 by one link, at half the rate: 1 + 8 + 9.
    assert seconds == {"none": 14.0, "fair": 18.0}


def count_placements(graph: Graph, cluster: Cluster, sharing: str) -> int:
    return len(list_placements(make_instance(graph, cluster), sharing, math.inf, Clock())[0])


def test_devices_that_are_alike_are_tried_once() -> None:
    graph = make_step([1.0, 1.0, 1.0], [])
    for sharing in SHARINGS:
        # Three ops in at most three unnamed sets: 1 + 3 + 1.
        assert count_placements(graph, make_cluster(["fast"] * 3), sharing) == 5
        # One, two or all three ops on the slow device, the rest in two unnamed sets:
        # 1 + 3 x 1 + 3 x 2 + 4.
        assert count_placements(graph, make_cluster(["fast", "fast", "slow"]), sharing) == 14
    rates = np.ones((3, 3))
    rates[2, 0] = 2.0
    assert count_placements(graph, make_cluster(["fast"] * 3, rates=rates), "none") == 27


def test_links_that_are_shared_tell_devices_apart() -> None:
    # Alone all pairs are alike; but d0 and d1 reach d2 by one link, and it reaches them by two.
    pairs = ("d0 d1", "d1 d0", "d2 d0", "d2 d1", "d0 s", "d1 s", "s d2")
    even = make_cluster(["fast"] * 3)
    links = [Link(source=a, target=b, bytes_per_second=1.0) for a, b in map(str.split, pairs)]
    cluster = replace(even, switches=("s",), links=tuple(links))
    counts = [count_placements(make_step([1.0] * 3, []), cluster, each) for each in SHARINGS]
    assert counts == [5, 14]


def heavy_step(num_ops: int, seed: int) -> Graph:
    """Every op reads from up to two before it, mostly more than it computes."""
    random, builder = Random(seed), GraphBuilder("heavy")
    for number in range(num_ops):
        builder.add_op(
            f"op{number}", seconds={"any": random.choice([1.0, 2.0, 2.5])},
            saved_bytes=random.choice([0.0, 1.0]), workspace_bytes=random.choice([0.0, 1.0]),
        )  # fmt: skip
    for target in range(1, num_ops):
        for source in {random.randrange(target) for _ in range(2)}:
            builder.add_tensor(source, random.choice([0.7, 1.0, 4.0]), [target])
    return builder.finish()


@pytest.mark.parametrize(
    ("num_ops", "num_devices", "memory_bytes", "fits", "most_nodes"),
    # Without bounds on memory along an order, or where devices are not told to be alike: 8,452 and
    # more, 15,622 and more, 13,574 and more, 2,095.
    [
        (9, 2, 8.0, False, 2_000),
        (9, 3, 6.0, False, 1_700),
        (11, 2, 8.0, False, 3_100),
        (11, 2, 99.0, True, 500),
    ],
)
def test_bounds_leave_few_beginnings_of_orders(
    num_ops: int, num_devices: int, memory_bytes: float, fits: bool, most_nodes: int
) -> None:
    cluster = make_cluster(["fast"] * num_devices, memory_bytes=memory_bytes)
    found = exhaust(make_instance(heavy_step(num_ops, 1), cluster), clock=Clock(1e9))
    assert found.is_complete
    assert found.verdict is not None
    assert found.verdict.fits == fits
    assert found.num_nodes <= most_nodes


def test_it_gives_up_when_time_is_over() -> None:
    graph = make_step([1.0 + 0.1 * k for k in range(11)], [(k, k + 3, 1.0) for k in range(8)])
    instance = make_instance(graph, make_cluster(["fast", "slow", "slow"]))
    with counted_clock() as clock:
        assert exhaust(instance, clock=Clock()).is_complete
    with counted_clock() as shorter:
        assert not exhaust(instance, clock=Clock(4 * shorter.tick_seconds)).is_complete
    assert shorter.looks == 5 < clock.looks


def test_more_placements_or_ops_than_can_be_tried_are_left() -> None:
    for num_ops, kinds in ((22, ["fast", "fast"]), (MAX_OPS + 1, ["fast"])):
        instance = make_instance(make_step([1.0] * num_ops, []), make_cluster(kinds))
        found = exhaust(instance)
        assert not found.is_complete
        assert found.verdict is None


def test_a_graph_without_ops_is_refused() -> None:
    instance = make_instance(GraphBuilder("nothing").finish(), make_cluster(["fast"]))
    with pytest.raises(InputError, match="graph nothing: must have ops to place, got none"):
        exhaust(instance)
