"""Steps of the walk over placements: what they leave behind against what is worked out afresh."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_strategies import (
    instances,
    is_topological,
    list_waits,
    random_devices,
    random_order,
)

from meshwright.array import Floats, Ints
from meshwright.graph.build import GraphBuilder
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.placement.move import anneal
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk
from meshwright.search.order.decode import OrderDecoder
from small import connected, dag
from synthetic import synthetic_gpt

SEEDS = st.integers(0, 2**32)
ROOMY = st.sampled_from([0.0, 0.4, 0.6, 1.0, 10.0])
"""Of all that units hold, what each device may hold; with 0 they never fit."""


def make_limits(instance: Instance, part: float) -> Floats:
    return np.full(instance.num_devices, part * float(instance.unit_bytes.sum()))


def begun(
    instance: Instance, part: float, seed: int, hot: float = 0.3
) -> tuple[PlacementWalk, Placed]:
    """A warm walk at a random placement: many of its steps are accepted."""
    walker = PlacementWalk(instance, make_limits(instance, part), seed)
    start = walker.time(random_devices(instance, seed))
    walker.begin(start, 200, hot, 0.01)
    return walker, start


def take_steps(walker: PlacementWalk, steps: int) -> None:
    """The kernel alone, without what `PlacementWalk.run` puts right after it."""
    anneal(walker.state, steps)


def progress(walker: PlacementWalk) -> Any:
    """Where a walk stands, by name."""
    return walker.state.progress.view(np.recarray)[0]


def held(instance: Instance, devices: Ints) -> Floats:
    used = np.bincount(devices, instance.unit_bytes, instance.num_devices)
    return used.astype(np.float64)


def lacking(instance: Instance, devices: Ints, limits: Floats) -> float:
    return float(np.maximum(held(instance, devices) - limits, 0.0).sum())


def fresh_seconds(instance: Instance, devices: Ints, order: Ints) -> float:
    return OrderDecoder(instance).seconds(devices[instance.unit_of].astype(np.int32), order)


def check_state(walker: PlacementWalk) -> None:
    """All that the kernel keeps, against what it was made of."""
    instance, ops = walker.instance, walker.decoder.ops
    devices, order = walker.state.units["device"][:-1], walker.decoder.order
    np.testing.assert_array_equal(ops["device"][:-1], devices[instance.unit_of])
    np.testing.assert_allclose(walker.state.rooms["used"], held(instance, devices), atol=1e-9)
    assert is_topological(instance, order, np.zeros(instance.num_ops, np.int32))
    np.testing.assert_array_equal(walker.state.turns["place"][order], np.arange(instance.num_ops))
    assert progress(walker).now == fresh_seconds(instance, devices, order)
    best, best_order = walker.state.units["best_device"][:-1], walker.state.turns["best"]
    assert progress(walker).best == fresh_seconds(instance, best, best_order.copy())
    assert np.isfinite(instance.unit_seconds[np.arange(len(best)), instance.type_of[best]]).all()


@given(instances(min_devices=2, max_ops=14), ROOMY, SEEDS)
@settings(max_examples=60)
def test_the_arrays_agree_after_every_step(instance: Instance, part: float, seed: int) -> None:
    walker, _ = begun(instance, part, seed)
    for steps in [1] * 8 + [20]:
        take_steps(walker, steps)
        check_state(walker)
    assert progress(walker).tried == 28


@given(instances(min_devices=2, max_ops=14), SEEDS)
@settings(max_examples=40)
def test_the_path_explains_the_time_of_the_step(instance: Instance, seed: int) -> None:
    walker, _ = begun(instance, 10.0, seed)
    take_steps(walker, 30)
    path = walker.state.path[: progress(walker).path_length].tolist()
    if not progress(walker).accepted:
        assert not path
        return
    devices = walker.state.units["device"][:-1][instance.unit_of]
    decoder = OrderDecoder(instance)
    seconds = decoder.seconds(devices, walker.decoder.order.copy())
    assert decoder.ops["finish"][path[0]] == seconds
    assert decoder.ops["start"][path[-1]] == 0
    waits = list_waits(instance, devices)
    for op, cause in pairwise(path):
        lags = [moved for source, moved in waits[op] if source == cause]
        lags += [0.0] if devices[op] == devices[cause] else []
        assert decoder.ops["start"][op] - decoder.ops["finish"][cause] in lags


@given(instances(min_devices=2, max_ops=14), ROOMY, SEEDS)
@settings(max_examples=60)
def test_memory_is_never_given_up_again(instance: Instance, part: float, seed: int) -> None:
    limits = make_limits(instance, part)
    walker, start = begun(instance, part, seed)
    lack = start.lacking_bytes
    for _ in range(20):
        take_steps(walker, 5)
        now = lacking(instance, walker.state.units["device"][:-1], limits)
        best = lacking(instance, walker.state.units["best_device"][:-1], limits)
        assert best == now <= lack  # what fits better is the best, however long it takes
        lack = now


@given(instances(max_ops=14), ROOMY, SEEDS)
@settings(max_examples=60)
def test_a_walk_returns_what_a_fresh_decoding_gives(
    instance: Instance, part: float, seed: int
) -> None:
    limits = make_limits(instance, part)
    walker, start = begun(instance, part, seed)
    rank = start.rank
    for steps in (0, 1, 7, 40, 40):
        found = walker.run(steps)
        assert found.rank <= rank
        rank = found.rank
        assert found.seconds == fresh_seconds(instance, found.device_of_unit, found.order)
        assert found.lacking_bytes == lacking(instance, found.device_of_unit, limits)
        assert is_topological(instance, found.order, np.zeros(instance.num_ops, np.int32))
        if instance.num_devices > 1:
            devices, order = walker.state.units["device"][:-1], walker.decoder.order
            assert progress(walker).now == fresh_seconds(instance, devices, order)
            take_steps(walker, 3)
            np.testing.assert_allclose(
                walker.state.rooms["used"], held(instance, devices), atol=1e-9
            )


@given(instances(min_devices=2), SEEDS)
@settings(max_examples=20)
def test_one_seed_gives_one_walk(instance: Instance, seed: int) -> None:
    one, other = begun(instance, 0.6, seed)[0].run(80), begun(instance, 0.6, seed)[0].run(80)
    assert one.rank == other.rank
    np.testing.assert_array_equal(one.device_of_unit, other.device_of_unit)
    np.testing.assert_array_equal(one.order, other.order)


@given(instances(min_devices=2), SEEDS)
@settings(max_examples=30)
def test_the_longest_path_ends_with_the_step(instance: Instance, seed: int) -> None:
    walker = PlacementWalk(instance, make_limits(instance, 10.0), seed)
    placed = walker.time(random_devices(instance, seed))
    path = walker.longest_path(placed)
    decoder = OrderDecoder(instance)
    devices = placed.device_of_unit[instance.unit_of]
    assert decoder.seconds(devices, placed.order) == decoder.ops["finish"][path[0]]
    assert decoder.ops["start"][path[-1]] == 0
    np.testing.assert_array_equal(decoder.ops["cause"][path[:-1]], path[1:])


def test_a_walk_of_many_steps_over_a_transformer_keeps_its_arrays() -> None:
    instance = make_instance(synthetic_gpt(300), connected(3, 1e9, 1e-6))
    walker, start = begun(instance, 0.5, 3, hot=0.02)
    for _ in range(10):
        take_steps(walker, 40)
        check_state(walker)
    assert 20 < walker.statistics["accepted"] < walker.statistics["moves"] == 400
    assert progress(walker).best < start.seconds


def test_a_walk_puts_two_branches_side_by_side() -> None:
    # 1 + 4 + 1 with the branches on two devices; nothing takes time to move.
    edges = {(0, 1): 0.0, (0, 2): 0.0, (1, 3): 0.0, (2, 3): 0.0}
    instance = make_instance(dag([1.0, 4.0, 4.0, 1.0], edges), connected(2))
    walker = PlacementWalk(instance, make_limits(instance, 1.0), 0)
    walker.begin(walker.time(np.zeros(4, np.int32)), 100, 0.1, 0.01)
    assert walker.run(100).seconds == 6


def test_a_walk_pulls_the_urgent_op_forward() -> None:
    # On d0 o0 (1), which o2 (5, on d1) reads, after o1 (4) takes 4 + 1 + 5; before it 6. No unit
    # can move: each op runs on one type only.
    builder = GraphBuilder("one way")
    for number, (kind, seconds) in enumerate([("unit", 1.0), ("unit", 4.0), ("other", 5.0)]):
        times = {"unit": np.inf, "other": np.inf, kind: seconds}
        builder.add_op(f"o{number}", seconds=times)
    builder.add_tensor(0, 0.0, [2])
    instance = make_instance(builder.finish(), connected(2, types=["unit", "other"]))
    walker = PlacementWalk(instance, make_limits(instance, 1.0), 0)
    slow = walker.time(np.array([0, 0, 1], np.int32), np.array([1, 0, 2], np.int32))
    assert slow.seconds == 10
    assert walker.best_order(slow).seconds == 6
    walker.begin(slow, 50, 1e-6, 1e-6)
    assert walker.longest_path(slow).tolist() == [2, 0, 1]  # else known once a step is accepted
    take_steps(walker, 50)
    assert progress(walker).best == 6
    assert walker.run(0).seconds == 6


@pytest.mark.parametrize("hot", [1e-6, 0.5])
def test_orders_that_are_pulled_or_put_back_are_those_that_are_timed(hot: float) -> None:
    # Thirty ops that cannot move: all accepted steps change the order, the others leave it.
    generator = np.random.default_rng(0)
    builder = GraphBuilder("orders")
    for number in range(30):
        times = {"unit": np.inf, "other": np.inf}
        times[str(generator.choice(["unit", "other"]))] = float(generator.integers(1, 9))
        builder.add_op(f"o{number}", seconds=times)
    for source in range(29):
        for target in generator.choice(np.arange(source + 1, 30), 2):
            builder.add_tensor(source, float(generator.integers(0, 4)), [int(target)])
    instance = make_instance(builder.finish(), connected(2, types=["unit", "other"]))
    for seed in range(4):
        walker = PlacementWalk(instance, make_limits(instance, 1.0), seed)
        start = walker.time(random_devices(instance, 0), random_order(instance, seed))
        walker.begin(start, 300, hot, hot / 2)
        walker.longest_path(start)
        for _ in range(60):
            take_steps(walker, 5)
            check_state(walker)
        assert progress(walker).accepted > 0


def test_units_leave_a_device_that_is_too_full_whatever_it_costs() -> None:
    # Two ops that exchange much, each with 3 bytes; no device may hold more than 4.
    instance = replace_bytes(make_instance(dag([1.0, 1.0], {(0, 1): 50.0}), connected(2)), 3.0)
    walker = PlacementWalk(instance, np.array([4.0, 4.0]), 0)
    together = walker.time(np.zeros(2, np.int32))
    assert together.rank == (2.0, 2.0)
    walker.begin(together, 50, 1e-3, 1e-4)
    assert walker.run(50).rank == (0.0, 52.0)


def replace_bytes(instance: Instance, each: float) -> Instance:
    return replace(instance, unit_bytes=np.full(instance.num_units, each))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_step_of_one_op_is_walked(num_devices: int) -> None:
    instance = make_instance(dag([2.0], {}), connected(num_devices))
    walker = PlacementWalk(instance, make_limits(instance, 1.0), 0)
    walker.begin(walker.time(np.zeros(1, np.int32)), 50, 0.1, 0.01)
    assert walker.run(50).seconds == 2


def test_a_step_of_no_time_is_walked() -> None:
    instance = make_instance(dag([0.0, 0.0], {(0, 1): 1.0}), connected(2))
    walker = PlacementWalk(instance, make_limits(instance, 1.0), 0)
    walker.begin(walker.time(np.zeros(2, np.int32)), 50, 0.1, 0.01)
    assert walker.run(50).seconds == 0
