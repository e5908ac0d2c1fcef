"""The table's rows against stage costs on the devices themselves."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hybrid_strategies import draw_space, draw_stage, small_model
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.build import hierarchical
from meshwright.cost.collective import Collective
from meshwright.cost.group_price import group_prices
from meshwright.cost.layer.team import Team
from meshwright.cost.memory import collective_bytes, kept_bytes
from meshwright.cost.stage import Stage, stage_cost
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.stage import Frame, Option
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.shape import find_shapes
from meshwright.search.method.hybrid.space import make_space
from meshwright.search.method.hybrid.table import OptionTable, make_table, option_fits, samples_of


def cost_at(space: Any, frame: Any, size: Any, option: Any, layers: Any) -> Any:
    """Of a stage at the beginning of every pod."""
    order = space.prices.tiers.order
    pod = len(order) // frame.pods
    devices = [order[each * pod + k] for each in range(frame.pods) for k in range(size)]
    stage = Stage(
        layers=layers,
        devices=tuple(devices),
        team=option.team,
        zero=option.zero,
        recompute=option.recompute,
        samples=samples_of(space.batch, frame, size, option.team),
    )
    return stage_cost(space.stack, group_prices(space.cluster), stage)


def beside_bytes(space: Any, cost: Any) -> Any:
    """What NCCL has on the stage's fullest device beyond what is kept free, by its collectives."""
    once = (*cost.synchronisations, *cost.gathers)
    groups = {group for _, group in cost.calls} | {group for each in once for group in each.groups}
    pairs = {
        pair
        for kind, group in cost.calls
        if kind is Collective.ALL_TO_ALL
        for pair in combinations(group, 2)
    }
    held = collective_bytes(space.stack.graph, space.cluster, groups, pairs).max()
    memory = space.cluster.memory_bytes.min()
    return kept_bytes(memory, 4e8 + held) - kept_bytes(memory, 4e8)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_rows_hold_the_bytes_and_seconds_of_stages(data: Any) -> None:
    space = draw_space(data.draw)
    frame, size, option, search = draw_stage(data.draw, space)
    table = search.table_at(0, size)
    first = data.draw(st.integers(0, space.stack.num_layers - 1))
    after = data.draw(st.integers(first + 1, space.stack.num_layers))
    shape = search.shapes.shape_of[first, after]
    if shape < 0:
        return
    cost = cost_at(space, frame, size, option, range(first, after))
    memory = cost.memory
    assert table.saved_bytes[0, shape] == pytest.approx(memory.saved_bytes, rel=1e-9)
    passing = memory.workspace_bytes + memory.library_bytes + memory.transfer_bytes
    assert table.passing_bytes[0, shape] - passing >= beside_bytes(space, cost) - 1e-6 * passing
    assert table.passing_bytes[0, shape] - passing <= 6e9
    fixed = memory.fixed_bytes - memory.workspace_bytes - memory.library_bytes
    # Under ZeRO 3 twice the largest layer counts as the two largest.
    assert table.fixed_bytes[0, shape] >= fixed * (1 - 1e-9)
    if option.zero < 3:
        assert table.fixed_bytes[0, shape] == pytest.approx(fixed, rel=1e-9)
    seconds = cost.forward_seconds + cost.backward_seconds
    calls = cost.forward_call_seconds + cost.backward_call_seconds
    # Compute is the same, always; what is said on the network where groups stand on whole hosts or
    # parts of one. A team that stands across the border of two is priced as if it did not.
    assert table.fill[0, shape] >= (seconds - calls) * (1 - 1e-9)
    host, pod = space.prices.tiers.host_size, len(space.prices.tiers.order) // frame.pods
    if all(each % host == 0 or host % each == 0 for each in (pod, size, option.team.num_devices)):
        assert abs(table.fill[0, shape] - seconds) <= 0.5 * calls + 1e-9 * seconds


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_on_aligned_groups_fills_are_those_of_stages(zero: Any) -> None:
    # Sixteen devices, four a host: every width is a power of two and stands on whole hosts.
    cluster = hierarchical(
        devices_per_host=4, branching=[4], device_bytes_per_second=3e11, host_bytes_per_second=1e10
    )
    space = make_space(small_model(layers=6, hidden=256, batch=64), cluster, Scope(zero=(zero,)))
    options = [each for each in space.options if each.team.num_devices in (1, 2, 4, 8)]
    num_compared = 0
    for pods, size in ((1, 16), (1, 8), (2, 8), (2, 4), (4, 4)):
        for option in options:
            frame = Frame(pods=pods, microbatches=2)
            if not option_fits(space.prices, frame, size, option):
                continue
            names = cluster.type_names
            table = make_table(space.prices, space.shapes, frame, size, [option], names)
            shape = space.shapes.shape_of[1, 4]
            cost = cost_at(space, frame, size, option, range(1, 4))
            expected = cost.forward_seconds + cost.backward_seconds
            assert table.fill[0, shape] == pytest.approx(expected, rel=0.01)
            num_compared += 1
    assert num_compared > 20


def one_row(**numbers: Any) -> Any:
    names = (
        "load", "fill", "front", "host", "weight", "tail", "fixed_bytes", "passing_bytes",
        "saved_bytes", "deferred_bytes", "output_bytes",
    )  # fmt: skip
    arrays = {name: np.array([[numbers.get(name, 0.0)]]) for name in names}
    option = Option(team=Team(), zero=0, recompute=Recompute.NONE)
    return OptionTable(frame=Frame(pods=1, microbatches=1), size=1, options=(option,), **arrays)


def test_as_many_microbatches_fit_as_there_is_room_for() -> None:
    # 100 bytes, of which 30 are held all the time and 20 while something runs: 50 for 12 each.
    table = one_row(fixed_bytes=30, passing_bytes=20, saved_bytes=12)
    assert table.most_in_flight(100, ScheduleKind.ONE_F_ONE_B) == [[4]]
    assert table.most_in_flight(49, ScheduleKind.ONE_F_ONE_B) == [[0]]


def test_postponed_weight_gradients_take_room() -> None:
    # One backward makes 14 bytes beside what was saved, and all may wait with 14: (50 - 14) / 14.
    table = one_row(fixed_bytes=30, passing_bytes=20, saved_bytes=12, deferred_bytes=14)
    assert table.most_in_flight(100, ScheduleKind.ZERO_BUBBLE) == [[2]]
    assert table.most_in_flight(100, ScheduleKind.GPIPE) == [[4]]


def test_stages_with_equal_layers_and_ends_are_one_shape() -> None:
    space = make_space(small_model(layers=6), small_cluster(), Scope())
    shapes = find_shapes(space.stack)
    of = shapes.shape_of
    assert of[2, 4] == of[3, 5]
    # After the embedding something else comes in, and nothing leaves the last.
    assert of[1, 3] != of[2, 4]
    assert not shapes.has_next[of[5, 8]]
    assert shapes.before_kind[of[0, 3]] == -1


def small_cluster() -> Any:
    return hierarchical(
        devices_per_host=2, branching=[2], device_bytes_per_second=3e11, host_bytes_per_second=1e10
    )
