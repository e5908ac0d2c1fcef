"""Smaller instances against what they were made of."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_strategies import (
    instances,
    is_topological,
    list_edges,
    random_devices,
    random_order,
)

from meshwright.array import Ints
from meshwright.graph.build import GraphBuilder
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.placement.level import CoarseLevel, make_levels, merge_units
from meshwright.search.order.decode import OrderDecoder
from small import connected, dag, layers
from synthetic import synthetic_gpt

SEEDS = st.integers(0, 2**32)


def sums(values: np.ndarray, label: Ints, count: int) -> np.ndarray:
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, label, values)
    return total


def random_union(instance: Instance, seed: int) -> Ints:
    """Units united at random, but only what can run on one device; numbered from zero."""
    generator = np.random.default_rng(seed)
    can_run = np.isfinite(instance.unit_seconds).all(axis=1)
    label = generator.integers(0, 3, instance.num_units)
    label = np.where(can_run, label, 3 + np.arange(instance.num_units))
    return np.unique(label, return_inverse=True)[1].astype(np.int32)


def check_level(level: CoarseLevel, below: Instance) -> None:
    """What holds for every level."""
    above = level.instance
    # Ops and units of the level are numbered without gaps, and ops are where their units are.
    assert sorted(set(level.op_of.tolist())) == list(range(above.num_ops))
    assert sorted(set(level.unit_of.tolist())) == list(range(above.num_units))
    np.testing.assert_array_equal(above.unit_of[level.op_of], level.unit_of[below.unit_of])
    for unit in range(above.num_units):
        ops = above.unit_ops[above.unit_start[unit] : above.unit_start[unit + 1]]
        np.testing.assert_array_equal(ops, np.flatnonzero(above.unit_of == unit))
    # Seconds and bytes add up.
    for found, values, label in [
        (above.seconds, below.seconds, level.op_of),
        (above.unit_seconds, below.unit_seconds, level.unit_of),
        (above.unit_bytes, below.unit_bytes, level.unit_of),
    ]:
        np.testing.assert_allclose(found, sums(values, label, len(found)), rtol=1e-12)
    np.testing.assert_allclose(
        above.unit_seconds, sums(above.seconds, above.unit_of, above.num_units), rtol=1e-12
    )
    assert np.isfinite(above.unit_seconds).any(axis=1).all()
    # Every edge between different ops is there, as long as the longest of those it stands for.
    longest: dict[tuple[int, int], float] = {}
    for source, target, size in list_edges(below):
        pair = int(level.op_of[source]), int(level.op_of[target])
        assert pair[0] <= pair[1]  # a topological order of the level
        if pair[0] != pair[1]:
            longest[pair] = max(longest.get(pair, size), size)
    assert {(a, b): size for a, b, size in list_edges(above)} == longest
    incoming = zip(
        above.in_edges["op"].tolist(),
        np.repeat(np.arange(above.num_ops), np.diff(above.in_start)).tolist(),
        above.in_edges["bytes"].tolist(),
        strict=True,
    )
    assert sorted(incoming) == sorted(list_edges(above))


def nowhere(instance: Instance) -> Ints:
    """A placement of ops under which nothing saved counts as elsewhere."""
    return np.zeros(instance.num_ops, np.int32)


@given(instances(max_ops=16), SEEDS, st.booleans())
@settings(max_examples=40)
def test_a_level_is_the_instance_with_units_united(
    instance: Instance, seed: int, keeps_ops: bool
) -> None:
    level = merge_units(instance, random_union(instance, seed), keeps_ops=keeps_ops)
    check_level(level, instance)
    if keeps_ops:
        assert level.instance.num_ops == instance.num_ops


@given(instances(min_ops=4, max_ops=16), SEEDS)
@settings(max_examples=40)
def test_an_order_of_a_level_is_one_of_the_level_below(instance: Instance, seed: int) -> None:
    level = merge_units(instance, random_union(instance, seed))
    order = random_order(level.instance, seed)
    expanded = level.expand_order(order)
    assert is_topological(instance, expanded, nowhere(instance))
    is_first = np.append(True, np.diff(level.op_of[expanded]) != 0)
    np.testing.assert_array_equal(level.op_of[expanded][is_first], order)


@given(instances(min_ops=4, max_ops=16), SEEDS)
@settings(max_examples=60)
def test_a_placement_takes_no_longer_on_the_level_below(instance: Instance, seed: int) -> None:
    level = merge_units(instance, random_union(instance, seed))
    above = level.instance
    devices = random_devices(above, seed)
    decoder = OrderDecoder(above)
    on_ops = devices[above.unit_of]
    seconds = decoder.seconds(on_ops, decoder.rank(on_ops))
    # In the order of starts each op finds its merged op's time free. In the order of decoding one
    # that is ready earlier may take the gap of another: 83 of 3,000 random steps took longer.
    order = level.expand_order(decoder.start_order())
    below = OrderDecoder(instance).seconds(devices[level.unit_of][instance.unit_of], order)
    assert below <= seconds * (1 + 1e-12)


def chain_of_levels(
    levels: list[CoarseLevel], instance: Instance
) -> list[tuple[CoarseLevel, Instance]]:
    """Each level with the instance that it was made of."""
    below = [instance, *(level.instance for level in levels)]
    return list(zip(levels, below, strict=False))


def transformer(types: list[str]) -> Instance:
    return make_instance(synthetic_gpt(400), connected(len(types), 1e9, 1e-6, types))


def test_levels_shrink_to_some_dozens_of_units() -> None:
    instance = transformer(["unit", "other", "unit"])
    levels = make_levels(instance, 40, seed=3)
    counts = [instance.num_units, *(level.instance.num_units for level in levels)]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == len(counts) > 1
    assert counts[-1] <= 2 * 40
    for level, below in chain_of_levels(levels, instance):
        check_level(level, below)
        assert level.instance.num_ops <= below.num_ops


def test_levels_of_a_placement_unite_what_is_on_one_device() -> None:
    instance = transformer(["unit", "unit", "unit"])
    devices = random_devices(instance, 5)
    levels = make_levels(instance, 40, 3, devices)
    assert levels
    for level, below in chain_of_levels(levels, instance):
        check_level(level, below)
        united = np.full(level.instance.num_units, -1, np.int32)
        united[level.unit_of] = devices
        np.testing.assert_array_equal(united[level.unit_of], devices)
        devices = united


def test_another_seed_makes_other_levels_and_the_same_one_the_same() -> None:
    instance = transformer(["unit", "unit"])
    first, again, other = (make_levels(instance, 40, seed) for seed in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.op_of, two.op_of)
        np.testing.assert_array_equal(one.unit_of, two.unit_of)
    assert (first[0].unit_of != other[0].unit_of).any()


@pytest.mark.parametrize("seed", range(3))
def test_what_runs_on_different_types_only_stays_apart(seed: int) -> None:
    # Every second op runs on one type only; neighbours exchange much, which would unite them.
    builder = GraphBuilder("forced")
    last = None
    for number in range(60):
        forced = {"unit": np.inf, "other": 1.0} if number % 2 else {"unit": 1.0, "other": np.inf}
        op = builder.add_op(f"o{number}", seconds=forced)
        if last is not None:
            builder.add_tensor(last, 1e3, [op])
        if number >= 2:
            builder.add_tensor(op - 2, 1.0, [op])
        last = op
    instance = make_instance(builder.finish(), connected(2, types=["unit", "other"]))
    levels = make_levels(instance, 4, seed)
    assert levels
    for level, below in chain_of_levels(levels, instance):
        check_level(level, below)  # each unit can run somewhere
    merged = levels[-1].instance
    assert np.isfinite(merged.unit_seconds).sum(axis=1).tolist() == [1] * merged.num_units


def test_units_too_large_for_half_a_device_are_not_united() -> None:
    graph = layers(50, activation=1.0)
    instance = make_instance(graph, connected(2))  # devices of 1e12 bytes
    large = replace(instance, unit_bytes=np.full(instance.num_units, 3e11))
    assert make_levels(large, 10, 0) == []
    assert make_levels(instance, 10, 0)


def test_a_step_of_few_units_has_no_levels() -> None:
    assert make_levels(make_instance(dag([1.0, 2.0], {(0, 1): 1.0}), connected(2)), 40, 0) == []


def test_a_step_without_edges_has_no_levels() -> None:
    assert make_levels(make_instance(dag([1.0] * 60, {}), connected(2)), 40, 0) == []


def test_ops_of_a_chain_become_one() -> None:
    # All in one unit and all on the longest path.
    instance = make_instance(dag([1.0, 2.0, 3.0], {(0, 1): 5.0, (1, 2): 5.0}), connected(2))
    level = merge_units(instance, np.zeros(3, np.int32))
    assert level.instance.num_ops == 1
    assert level.instance.seconds.tolist() == [[6.0]]
    assert level.expand_order(np.zeros(1, np.int32)).tolist() == [0, 1, 2]


def test_ops_between_which_another_unit_runs_stay_two() -> None:
    # o1 is of another unit and between o0 and o2.
    instance = make_instance(dag([1.0, 2.0, 3.0], {(0, 1): 5.0, (1, 2): 5.0}), connected(2))
    level = merge_units(instance, np.array([0, 1, 0], np.int32))
    assert level.instance.num_ops == 3
    assert level.instance.unit_seconds.tolist() == [[4.0], [2.0]]
