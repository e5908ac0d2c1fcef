"""The bound over decisions on pairs of units against brute force."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from placement_strategies import ROUNDED, instances, least_step

from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Phase
from meshwright.search.bound.window import (
    Decisions,
    WindowBounder,
    branch_bound,
    undecided,
    window_bound,
)
from meshwright.search.instance import Instance, make_instance
from small import connected


@given(instances(max_ops=6, min_devices=2, max_devices=2))
@settings(max_examples=40)
def test_no_placement_of_six_ops_is_below_the_bound(instance: Instance) -> None:
    bound = branch_bound(instance)
    assert window_bound(instance) <= bound <= least_step(instance)


@given(instances(min_ops=3, max_ops=5, min_devices=3, times=ROUNDED))
@settings(max_examples=25)
def test_no_placement_on_three_devices_is_below_the_bound(instance: Instance) -> None:
    bound = branch_bound(instance)
    assert window_bound(instance) <= bound <= least_step(instance)


def there_and_back(moved: float) -> Instance:
    """Layers f0 and g0 side by side, f1 reads both, 2 s each; backward the other way round."""
    builder = GraphBuilder("there and back")
    f0, g0, f1 = (
        builder.add_op(name, group=group, seconds={"any": 2.0})
        for group, name in enumerate(["f0", "g0", "f1"])
    )
    b0, c0, b1 = (
        builder.add_op(name, phase=Phase.BACKWARD, group=group, seconds={"any": 2.0})
        for group, name in enumerate(["b0", "c0", "b1"])
    )
    for source, targets in [(f0, [f1]), (g0, [f1]), (f1, [b1]), (b1, [b0, c0])]:
        builder.add_tensor(source, moved, targets)
    return make_instance(builder.finish(), connected(2))


def two_layers(num_between: int) -> Instance:
    """f0, f1, ops of 1 s of f1's layer, b1; then b0 beside c1, which is of f1's layer. Else 2 s.

    What f0 makes takes 9 to move, all else nothing.
    """
    builder = GraphBuilder("two layers")
    names = ["f0", "f1", *(f"m{number}" for number in range(num_between)), "b1"]
    chain = [
        builder.add_op(
            name,
            phase=Phase.BACKWARD if name == "b1" else Phase.FORWARD,
            group=0 if name == "f0" else 1,
            seconds={"any": 1.0 if name[0] == "m" else 2.0},
        )
        for name in names
    ]
    ends = [
        builder.add_op(name, phase=Phase.BACKWARD, group=group, seconds={"any": 2.0})
        for group, name in enumerate(["b0", "c1"])
    ]
    for source, target in pairwise(chain):
        builder.add_tensor(source, 9.0 if source == chain[0] else 0.0, [target])
    builder.add_tensor(chain[-1], 0.0, ends)
    return make_instance(builder.finish(), connected(2))


@pytest.mark.parametrize("moved", [0.0, 0.5, 1.0, 1.5, 2.0, 5.0])
def test_what_is_together_forward_is_together_backward(moved: float) -> None:
    # Beside each other: 2 + moved + 2 + 2 + moved + 2; on one device 12.
    instance = there_and_back(moved)
    assert least_step(instance) == min(8 + 2 * moved, 12)
    assert branch_bound(instance) == pytest.approx(min(8 + 2 * moved, 12))


def test_layers_are_on_one_device_forward_and_backward() -> None:
    # Windows: 2 + 2 forward, 12 between, 2 for b1, then b0 beside c1 at no cost: 20. But layers
    # that are on two devices backward move 9 forward, those on one take turns backward: 22.
    instance = two_layers(12)
    assert window_bound(instance) == pytest.approx(20.0)
    assert branch_bound(instance) == pytest.approx(22.0)
    assert least_step(two_layers(0)) == 10


def test_the_bound_stops_at_its_target() -> None:
    instance = two_layers(12)
    assert branch_bound(instance, target=0.0) == window_bound(instance)
    assert branch_bound(instance, target=20.0) == window_bound(instance)


def test_on_one_device_it_is_the_bound_of_windows() -> None:
    instance = make_instance(there_and_back(1.0).graph, connected(1))
    assert branch_bound(instance) == window_bound(instance) == pytest.approx(12.0)


def test_decisions_hold_on_the_whole_path() -> None:
    # Chains of three ops of 1 s; what the first two exchange takes 3, the others 1.
    builder = GraphBuilder("chain")
    for number in range(3):
        builder.add_op(f"o{number}", seconds={"any": 1.0})
    builder.add_tensor(0, 3.0, [1])
    builder.add_tensor(1, 1.0, [2])
    windows = WindowBounder(make_instance(builder.finish(), connected(2)))
    free = undecided(windows.instance)
    assert windows.bound(free).seconds == 3
    apart = Decisions(label=free.label, apart=np.array([[0, 1], [1, 2]], np.int32))
    assert windows.bound(apart).seconds == 7  # 1 + 3 + 1 + 1 + 1
    assert windows.bound(apart).path.tolist() == [0, 1, 2]
    joined = np.array([0, 0, 2], np.int32)
    half = Decisions(label=joined, apart=np.array([[2, 0]], np.int32))
    assert windows.bound(half).seconds == 4
