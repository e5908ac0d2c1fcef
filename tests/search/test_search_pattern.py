"""Units that are alike, their anchors, and sweeps over kinds."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_strategies import instances, random_devices

from meshwright.array import Ints
from meshwright.graph.build import GraphBuilder
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.placement.pattern import (
    Kinds,
    _nearest,
    _targets,
    find_kinds,
    sweep_kinds,
)
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk
from meshwright.search.order.decode import OrderDecoder
from small import connected, dag, layers
from synthetic import synthetic_gpt


def deep(count: int, num_devices: int = 2, bandwidth: float = 1.0) -> Instance:
    """A chain of equal layers, each with an op forward, two backward and an update."""
    graph = layers(count, forward=1.0, backward=2.0, weight=1.5, activation=1.0, gradient=3.0)
    return make_instance(graph, connected(num_devices, bandwidth))


def names(instance: Instance, units: Ints) -> set[str]:
    """Of the only op of each unit."""
    return {instance.graph.op_names[int(instance.unit_ops[unit])] for unit in units}


def test_ops_of_one_role_in_middle_layers_are_one_kind() -> None:
    # Of 14 layers those three and more from both ends see no end: 3 to 10.
    instance = deep(14)
    kinds = [names(instance, units) for units in find_kinds(instance).units]
    for role in "fbwu":
        middle = {f"{role}{number}" for number in range(3, 11)}
        (holding,) = [kind for kind in kinds if middle <= kind]
        assert {name[0] for name in holding} == {role}


def test_no_unit_is_of_two_kinds() -> None:
    kinds = find_kinds(make_instance(synthetic_gpt(500), connected(2)))
    units = np.concatenate(kinds.units)
    assert len(kinds.units) > 3
    assert len(np.unique(units)) == len(units)
    assert all(len(each) >= 4 for each in kinds.units)


def test_kinds_with_the_most_time_come_first() -> None:
    instance = deep(14)
    times = [float(instance.unit_seconds[units].sum()) for units in find_kinds(instance).units]
    assert times == sorted(times, reverse=True)


def test_kinds_that_exchange_the_most_come_first_in_pairs() -> None:
    # Gradients (3 bytes, w to u) before activations (1 byte; f to b, f to w and so on).
    instance = deep(14)
    pairs = [names(instance, units) for units in find_kinds(instance).pairs]
    assert {name[0] for name in pairs[0]} == {"w", "u"}
    assert {"f", "b"} in [{name[0] for name in pair} for pair in pairs]


def test_a_step_without_repetition_has_no_kinds() -> None:
    generator = np.random.default_rng(0)
    edges = {(int(a), int(b)): 1.0 for a, b in np.sort(generator.choice(60, (90, 2))) if a < b}
    found = find_kinds(make_instance(dag(generator.random(60).tolist(), edges), connected(2)))
    assert found.units == found.pairs == ()


def test_neighbours_tell_units_apart() -> None:
    # Eight ops of 1 s; four of them read an op of 5 s, four one of 6 s.
    edges = {(op % 2, op): 1.0 for op in range(2, 10)}
    instance = make_instance(dag([5.0, 6.0, *[1.0] * 8], edges), connected(2))
    found = find_kinds(instance).units
    assert sorted(each.tolist() for each in found) == [[2, 4, 6, 8], [3, 5, 7, 9]]


def test_units_fast_on_different_types_are_not_alike() -> None:
    builder = GraphBuilder("two types")
    for number in range(8):
        times = {"unit": 1.0, "other": 2.0} if number % 2 else {"unit": 2.0, "other": 1.0}
        builder.add_op(f"o{number}", seconds=times)
    instance = make_instance(builder.finish(), connected(2, types=["unit", "other"]))
    found = find_kinds(instance).units
    assert sorted(each.tolist() for each in found) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_anchors_are_where_the_most_bytes_come_from_and_go_to() -> None:
    # o2 reads 4 bytes of o0 and 1 of o1; o3 reads 2 of it, o4 8.
    edges = {(0, 2): 4.0, (1, 2): 1.0, (2, 3): 2.0, (2, 4): 8.0}
    read, readers = find_kinds(make_instance(dag([1.0] * 5, edges), connected(2))).anchors
    assert read.tolist() == [0, 1, 0, 2, 2]
    assert readers.tolist() == [2, 2, 4, 3, 4]


def test_units_of_a_kind_have_anchors_of_a_kind() -> None:
    instance = deep(20)
    for anchors in find_kinds(instance).anchors:
        for role in "fbwu":
            found = [
                names(instance, anchors[units_of(instance, [f"{role}{number}"])]).pop()
                for number in range(5, 15)
            ]
            assert len({name[0] for name in found}) == 1
            numbers = [int(name[1:]) for name in found]
            assert all(b - a == 1 for a, b in pairwise(numbers))


def units_of(instance: Instance, ops: list[str]) -> Ints:
    return instance.unit_of[[instance.graph.op_names.index(name) for name in ops]]


def sweep(instance: Instance, devices: Ints, limit: float = 1e12) -> tuple[Placed, Placed]:
    """Before and after."""
    walk = PlacementWalk(instance, np.full(instance.num_devices, limit), 0)
    placed = walk.time(devices)
    return placed, sweep_kinds(walk, placed, find_kinds(instance), lambda: False)


def test_a_sweep_moves_all_gradients_of_weights_at_once() -> None:
    # On one device 14 * (1 + 2 + 1.5). The gradients of weights of the eight middle layers run
    # beside backward on the other one: 8 * 1.5 less, and transfers of 0.01 are hidden.
    instance = deep(14, bandwidth=100.0)
    before, after = sweep(instance, np.zeros(instance.num_units, np.int32))
    assert before.seconds == 63
    assert after.seconds <= 51
    moved = names(instance, np.flatnonzero(after.device_of_unit).astype(np.int32))
    assert {f"w{number}" for number in range(3, 11)} <= moved


@given(instances(min_devices=2, max_ops=14), st.integers(0, 2**32))
@settings(max_examples=25)
def test_a_sweep_never_worsens(instance: Instance, seed: int) -> None:
    # Kinds at random: those of such small graphs are too few to be swept.
    generator = np.random.default_rng(seed)
    walk = PlacementWalk(
        instance, np.full(instance.num_devices, float(instance.unit_bytes.sum()) / 2), 0
    )
    kinds = Kinds(
        units=tuple(
            np.flatnonzero(generator.random(instance.num_units) < 0.4).astype(np.int32)
            for _ in range(3)
        ),
        pairs=(np.arange(instance.num_units, dtype=np.int32),),
        anchors=find_kinds(instance).anchors,
    )
    before = walk.time(random_devices(instance, seed))
    after = sweep_kinds(walk, before, kinds, lambda: False)
    assert after.rank <= before.rank
    devices = after.device_of_unit[instance.unit_of]
    assert after.seconds == OrderDecoder(instance).seconds(devices, after.order)
    can_run = np.isfinite(instance.unit_seconds)[:, instance.type_of]
    assert can_run[np.arange(instance.num_units), after.device_of_unit].all()


def test_a_sweep_that_is_over_changes_nothing() -> None:
    instance = deep(14, bandwidth=100.0)
    walk = PlacementWalk(instance, np.full(2, 1e12), 0)
    placed = walk.time(np.zeros(instance.num_units, np.int32))
    assert sweep_kinds(walk, placed, find_kinds(instance), lambda: True) is placed


def test_a_sweep_tries_no_placement_twice() -> None:
    instance = deep(14, num_devices=3)
    kinds = find_kinds(instance)
    near = _nearest(instance)
    assert near.tolist() == [[1, 2], [2, 0], [0, 1]]  # all as near: the next in number
    devices = random_devices(instance, 1)
    for units in kinds.units:
        tried = [each.tolist() for each in _targets(instance, devices, units, kinds.anchors, near)]
        assert devices.tolist() not in tried
        assert len({tuple(each) for each in tried}) == len(tried)


def test_one_device_has_nothing_to_sweep() -> None:
    instance = deep(14, num_devices=1)
    before, after = sweep(instance, np.zeros(instance.num_units, np.int32))
    assert after is before
