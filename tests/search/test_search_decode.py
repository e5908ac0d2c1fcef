"""The compiled decoder against lists of busy times, and against the simulator."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_strategies import (
    instances,
    is_topological,
    list_edges,
    list_waits,
    own_seconds,
    random_devices,
    random_order,
    run_in_order,
)

from meshwright.array import Ints
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Phase
from meshwright.plan.plan import Discipline
from meshwright.search.instance import Instance, make_instance, placement_plan
from meshwright.search.order.decode import OrderDecoder
from meshwright.search.order.list_schedule import order_seconds
from meshwright.simulate.simulate import simulate
from small import connected, dag

SEEDS = st.integers(0, 2**32)


def plain_decode(instance: Instance, devices: Ints, order: Ints) -> list[tuple[float, float]]:
    """Start and finish of each op: the earliest time from `ready` on that no busy time is in."""
    waits, own = list_waits(instance, devices), own_seconds(instance, devices)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(instance.num_devices)]
    done = [(0.0, 0.0)] * instance.num_ops
    for op in order.tolist():
        here, needed = busy[devices[op]], own[op]
        ready = max((done[source][1] + moved for source, moved in waits[op]), default=0.0)
        begins = [ready, *(end for _, end in here if end > ready)]
        start = min(
            begin
            for begin in begins
            if all(begin + needed <= first or end <= begin for first, end in here)
        )
        done[op] = start, start + needed
        busy[devices[op]] = united([*here, done[op]])
    return done


def united(times: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Times that touch as one: nothing runs between them, not even in no time."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(times):
        if found and start <= found[-1][1]:
            start, end = found[-1][0], max(found[-1][1], end)
            found.pop()
        found.append((start, end))
    return found


def decoded(instance: Instance, seed: int) -> tuple[OrderDecoder, Ints, float]:
    """A random placement in a random order, or in the decoder's own."""
    devices = random_devices(instance, seed)[instance.unit_of]
    decoder = OrderDecoder(instance)
    order = decoder.rank(devices) if seed % 2 else random_order(instance, seed)
    return decoder, devices, decoder.seconds(devices, order)


@given(instances(max_ops=16), SEEDS)
@settings(max_examples=80)
def test_ops_start_in_the_earliest_gap(instance: Instance, seed: int) -> None:
    decoder, devices, seconds = decoded(instance, seed)
    done = plain_decode(instance, devices, decoder.order)
    found = (decoder.ops[name][:-1].tolist() for name in ("start", "finish"))
    assert list(zip(*found, strict=True)) == done
    assert seconds == max(finish for _, finish in done)


@given(instances(max_ops=16), SEEDS)
@settings(max_examples=40)
def test_a_decoded_schedule_is_legal(instance: Instance, seed: int) -> None:
    decoder, devices, seconds = decoded(instance, seed)
    start, finish = decoder.ops["start"], decoder.ops["finish"]
    for op, waits in enumerate(list_waits(instance, devices)):
        assert finish[op] <= seconds
        assert all(start[op] >= finish[source] + moved for source, moved in waits)
        for other in range(op):
            if devices[op] == devices[other]:
                assert finish[op] <= start[other] or finish[other] <= start[op]


@given(instances(max_ops=16), SEEDS)
@settings(max_examples=40)
def test_an_op_starts_when_its_cause_lets_it(instance: Instance, seed: int) -> None:
    decoder, devices, _ = decoded(instance, seed)
    ops, waits = decoder.ops, list_waits(instance, devices)
    for op in range(instance.num_ops):
        cause = int(ops["cause"][op])
        if cause < 0:
            assert ops["start"][op] == 0
            continue
        reasons = [ops["finish"][source] + moved for source, moved in waits[op] if source == cause]
        if devices[cause] == devices[op]:
            reasons.append(ops["finish"][cause])
        assert ops["start"][op] in reasons


@given(instances(max_ops=16), SEEDS)
@settings(max_examples=40)
def test_the_order_of_starts_gives_no_later_step(instance: Instance, seed: int) -> None:
    decoder, devices, seconds = decoded(instance, seed)
    order = decoder.start_order()
    assert is_topological(instance, order, devices)
    assert run_in_order(instance, devices, order) <= seconds
    cut = [size < 0 and devices[a] != devices[b] for a, b, size in list_edges(instance)]
    if not any(cut):  # there `order_seconds` waits for what is saved elsewhere
        assert order_seconds(instance, devices, order) <= seconds
    assert decoder.seconds(devices, order) <= seconds


@given(instances(max_ops=12), SEEDS)
@settings(max_examples=60)
def test_the_simulator_needs_no_longer(instance: Instance, seed: int) -> None:
    decoder, devices, seconds = decoded(instance, seed)
    priorities = np.empty(instance.num_ops)
    priorities[decoder.start_order()] = -np.arange(instance.num_ops, dtype=np.float64)
    plan = placement_plan(instance, devices, priorities, Discipline.ORDER)
    timeline = simulate(instance.graph, instance.cluster, plan, sharing="none")
    assert timeline.step_seconds <= seconds * (1 + 1e-9)


@given(instances(max_ops=16), SEEDS, st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0, 1.01, 2.0]))
@settings(max_examples=50)
def test_beyond_the_limit_a_time_is_infinite(instance: Instance, seed: int, part: float) -> None:
    decoder, devices, seconds = decoded(instance, seed)
    limited = decoder.seconds(devices, decoder.order.copy(), part * seconds)
    assert limited == (seconds if seconds <= part * seconds else math.inf)


@given(instances(max_ops=16), SEEDS)
@settings(max_examples=40)
def test_the_order_by_urgency_is_topological(instance: Instance, seed: int) -> None:
    devices = random_devices(instance, seed)[instance.unit_of]
    order = OrderDecoder(instance).rank(devices)
    assert is_topological(instance, order, np.zeros(instance.num_ops, np.int32))


def test_a_gap_that_waiting_leaves_is_filled() -> None:
    # On d0: o0 [0, 1]; o2 reads o1 (d1, [0, 3], 2 to move) and runs [5, 6]. o3 takes 4 and comes
    # last: the gap [1, 5] is as long as it needs.
    instance = make_instance(dag([1.0, 3.0, 1.0, 4.0], {(0, 2): 0.0, (1, 2): 2.0}), connected(2))
    decoder = OrderDecoder(instance)
    devices = np.array([0, 1, 0, 0], np.int32)
    assert decoder.seconds(devices, np.array([0, 1, 2, 3], np.int32)) == 6
    assert decoder.ops["start"][:-1].tolist() == [0, 0, 5, 1]
    assert decoder.start_order().tolist() == [0, 1, 3, 2]


def test_a_gap_that_is_too_short_is_left() -> None:
    # As before, but o3 takes 4.5: after o2.
    instance = make_instance(dag([1.0, 3.0, 1.0, 4.5], {(0, 2): 0.0, (1, 2): 2.0}), connected(2))
    decoder = OrderDecoder(instance)
    devices = np.array([0, 1, 0, 0], np.int32)
    assert decoder.seconds(devices, np.arange(4, dtype=np.int32)) == 10.5


def test_the_most_urgent_op_is_the_one_with_the_longest_way() -> None:
    # From o0: 1 + 2 (moved) + 5 = 8; o1 6; o2 5. On one device o0 has 1 + 5 = 6 and comes first.
    instance = make_instance(dag([1.0, 6.5, 5.0], {(0, 2): 2.0}), connected(2))
    decoder = OrderDecoder(instance)
    assert decoder.rank(np.array([0, 0, 1], np.int32)).tolist() == [0, 1, 2]
    assert decoder.rank(np.array([0, 0, 0], np.int32)).tolist() == [1, 0, 2]


def test_an_op_where_it_cannot_run_takes_for_ever() -> None:
    builder = GraphBuilder("one type only")
    op = builder.add_op("o0", seconds={"unit": 1.0, "other": math.inf})
    builder.add_tensor(op, 1.0, [builder.add_op("o1", seconds={"any": 1.0})])
    instance = make_instance(builder.finish(), connected(2, types=["unit", "other"]))
    decoder, order = OrderDecoder(instance), np.arange(2, dtype=np.int32)
    assert decoder.seconds(np.array([0, 1], np.int32), order) == 3
    assert decoder.seconds(np.array([1, 0], np.int32), order) == math.inf
    assert decoder.rank(np.array([1, 0], np.int32)).tolist() == [0, 1]


def test_what_is_saved_elsewhere_is_not_waited_for() -> None:
    # b1 saves nothing but reads what f0 saved: after it on one device, at once on two.
    builder = GraphBuilder("saved")
    first = builder.add_op("f0", seconds={"any": 3.0}, saved_bytes=8.0)
    builder.add_op("b1", phase=Phase.BACKWARD, seconds={"any": 1.0}, partner=first)
    instance = make_instance(builder.finish(), connected(2))
    decoder, order = OrderDecoder(instance), np.arange(2, dtype=np.int32)
    assert decoder.seconds(np.array([0, 0], np.int32), order) == 4
    assert decoder.seconds(np.array([0, 1], np.int32), order) == 3
