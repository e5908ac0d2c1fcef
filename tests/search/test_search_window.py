"""Bounds from windows against brute force over devices and orders."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_strategies import EXACT, ROUNDED, instances, least_order, least_step

from meshwright.graph.build import GraphBuilder
from meshwright.search.bound.window import longest_path, window_bound
from meshwright.search.bound.window_solve import (
    ENTRY,
    EXIT,
    MOST_OPS,
    SIZE,
    WindowShape,
    least_seconds,
)
from meshwright.search.instance import Instance, make_instance
from small import connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The arguments of `least_seconds`."""

    times: np.ndarray
    units: np.ndarray
    moved: np.ndarray
    is_apart: np.ndarray
    count: int
    num_devices: int

    @property
    def solved(self) -> float:
        shape = WindowShape(self.times, self.units, self.moved, self.is_apart)
        return least_seconds(shape, self.count, self.num_devices)


@st.composite
def windows(draw: st.DrawFn, with_apart: bool, times: tuple[float, ...]) -> Window:
    """Windows of up to five ops, with an entry, an exit, both or none."""
    count = draw(st.integers(1, 5))
    has_entry, has_exit = draw(st.booleans()), draw(st.booleans())
    places = [*range(count), *[ENTRY] * has_entry, *[EXIT] * has_exit]
    seconds, units = np.zeros(SIZE), np.full(SIZE, -1, np.int32)
    seconds[:count] = [draw(st.sampled_from(times)) for _ in range(count)]
    first: dict[int, int] = {}
    for place in places:  # a unit has the number of its first place
        label = draw(st.integers(0, 6))
        units[place] = first.setdefault(label, place) if label < 2 else place
    moved, is_apart = np.full((SIZE, SIZE), -1.0), np.zeros((SIZE, SIZE), np.bool_)
    for one, other in itertools.combinations(range(count), 2):
        moved[one, other] = draw(st.sampled_from([-1.0, -1.0, 0.0, 0.5, 3.0]))
    for place in places:
        if has_entry and place != ENTRY:
            moved[ENTRY, place] = draw(st.sampled_from([-1.0, 0.0, 0.5, 3.0]))
        if has_exit and place < count:
            moved[place, EXIT] = draw(st.sampled_from([-1.0, 0.0, 0.5, 3.0]))
    if with_apart:
        one, other = draw(st.sampled_from(places)), draw(st.sampled_from(places))
        for a, b in itertools.product(places, repeat=2):
            pair = {int(units[a]), int(units[b])}
            is_apart[a, b] = len(pair) == 2 and pair == {int(units[one]), int(units[other])}
    return Window(
        times=seconds,
        units=units,
        moved=moved,
        is_apart=is_apart,
        count=count,
        num_devices=draw(st.integers(1, 3)),
    )


def brute_force(window: Window) -> float:
    """The earliest that the exit can start, over all devices of all places and all orders."""
    places = [*range(window.count), *(end for end in (ENTRY, EXIT) if window.units[end] >= 0)]
    best = math.inf
    for homes in itertools.product(range(window.num_devices), repeat=len(places)):
        home = dict(zip(places, homes, strict=True))
        pairs = itertools.combinations(places, 2)
        if all(
            not (window.units[a] == window.units[b] and home[a] != home[b])
            and not (window.is_apart[a, b] and home[a] == home[b])
            for a, b in pairs
        ):
            best = min(best, best_order(window, home, best))
    return best


def best_order(window: Window, home: dict[int, int], best: float) -> float:
    """The entry runs first and the exit last, both in no time and on no device's time."""
    number = window.count

    def lag(one: int, other: int) -> float:
        return float(window.moved[one, other]) if home[one] != home[other] else 0.0

    waits = [
        [(i, lag(i, op)) for i in range(number) if window.moved[i, op] >= 0] for op in range(number)
    ]
    devices = [home[op] for op in range(number)]
    own = [float(each) for each in window.times[:number]]
    if ENTRY in home:
        start = number  # one op more: the entry
        waits.append([])
        own.append(0.0)
        devices.append(-1)
        for op in range(number):
            late = lag(ENTRY, op) if window.moved[ENTRY, op] >= 0 else 0.0
            waits[op].append((start, late))
    if EXIT in home:
        late = lag(ENTRY, EXIT) if ENTRY in home and window.moved[ENTRY, EXIT] >= 0 else 0.0
        waits.append(
            [(i, lag(i, EXIT) if window.moved[i, EXIT] >= 0 else 0.0) for i in range(number)]
            + ([(number, late)] if ENTRY in home else [])
        )
        own.append(0.0)
        devices.append(-2)
    return least_order(waits, own, devices, best)


def window_path(window: Window) -> float:
    """The longest path of ops alone, which is said where the decisions cannot be kept."""
    ends = [0.0] * window.count
    for op in range(window.count):
        before = [ends[i] for i in range(op) if window.moved[i, op] >= 0]
        ends[op] = max(before, default=0.0) + window.times[op]
    return max(ends)


@given(windows(with_apart=False, times=EXACT))
@settings(max_examples=150)
def test_the_least_time_of_a_window_is_that_of_brute_force(window: Window) -> None:
    assert window.solved == pytest.approx(brute_force(window), rel=1e-12, abs=0)


@given(windows(with_apart=False, times=ROUNDED))
@settings(max_examples=100)
def test_rounding_hides_no_schedule_of_a_window(window: Window) -> None:
    # (0.1 + 0.7) - 0.7 is not 0.1: a start must not be worked out from an end.
    assert window.solved == pytest.approx(brute_force(window), rel=1e-12, abs=0)


@given(windows(with_apart=True, times=EXACT))
@settings(max_examples=100)
def test_units_that_are_kept_apart_count_in_a_window(window: Window) -> None:
    best = brute_force(window)
    if window.num_devices == 1:
        best = float(window.times[: window.count].sum())
    if best == math.inf:
        best = window_path(window)
    assert window.solved == pytest.approx(best, rel=1e-12, abs=0)


@given(instances(max_ops=6, max_devices=2))
@settings(max_examples=60)
def test_no_placement_of_six_ops_is_below_the_bound(instance: Instance) -> None:
    assert window_bound(instance) <= least_step(instance)


@given(instances(min_ops=3, max_ops=5, min_devices=3, times=ROUNDED))
@settings(max_examples=40)
def test_no_placement_on_three_devices_is_below_the_bound(instance: Instance) -> None:
    assert window_bound(instance) <= least_step(instance)


@given(instances(max_ops=16))
@settings(max_examples=60)
def test_windows_are_as_long_as_the_longest_path_at_least(instance: Instance) -> None:
    path = longest_path(instance, instance.seconds.min(axis=1))
    assert window_bound(instance) >= path * (1 - 1e-9)


def small_window(
    times: list[float], moved: dict[tuple[int, int], float], num_devices: int = 2
) -> Window:
    """Ops of these times without ends, each a unit of its own."""
    seconds, units = np.zeros(SIZE), np.full(SIZE, -1, np.int32)
    seconds[: len(times)], units[: len(times)] = times, range(len(times))
    table = np.full((SIZE, SIZE), -1.0)
    for pair, each in moved.items():
        table[pair] = each
    return Window(
        times=seconds,
        units=units,
        moved=table,
        is_apart=np.zeros((SIZE, SIZE), np.bool_),
        count=len(times),
        num_devices=num_devices,
    )


def test_an_op_of_no_time_runs_before_one_of_a_smaller_number() -> None:
    # On d0: op 0 [0, 5], op 2 at 5 in no time, op 1 [5, 7]; on d1 op 3 [5, 7].
    window = small_window([5.0, 2.0, 0.0, 2.0], {(0, 1): 3.0, (0, 2): 3.0, (2, 3): 0.0})
    assert window.solved == brute_force(window) == 7


def test_two_ops_that_start_together_do_so_whatever_their_ends_round_to() -> None:
    # 0.27... + 0.87... - 0.87... is not 0.27...
    times = [0.2700868532410188, 0.8787904961125762, 0.08685448364087245]
    window = small_window(times, {(0, 1): 0.0, (0, 2): 0.0})
    assert window.solved == brute_force(window) == times[0] + times[1]


def fork_join(moved: float, group: tuple[int, ...] = ()) -> Instance:
    """An op of 1 s, two of 4 s that read it, one of 1 s that reads both; tensors take `moved`."""
    builder = GraphBuilder("fork and join")
    for number, seconds in enumerate([1.0, 4.0, 4.0, 1.0]):
        builder.add_op(f"o{number}", seconds={"any": seconds}, group=0 if number in group else -1)
    builder.add_tensor(0, moved, [1, 2])
    builder.add_tensor(1, moved, [3])
    builder.add_tensor(2, moved, [3])
    return make_instance(builder.finish(), connected(2))


@pytest.mark.parametrize(
    ("moved", "seconds"),
    [
        (0.0, 6.0),  # side by side: 1 + 4 + 1
        (1.0, 7.0),  # one branch and the join elsewhere: 1 + (1 + 4) + 1, like 1 + (4 + 1) + 1
        (4.0, 10.0),  # as long as both on one device: 1 + (4 + 4) + 1
        (9.0, 10.0),  # 1 + 4 + 4 + 1
    ],
)
def test_two_branches_take_their_transfers_or_each_other(moved: float, seconds: float) -> None:
    assert window_bound(fork_join(moved)) == pytest.approx(seconds)
    assert least_step(fork_join(moved)) == seconds


def test_branches_of_one_group_take_each_other() -> None:
    assert window_bound(fork_join(0.0, group=(1, 2))) == pytest.approx(10.0)


def test_windows_along_a_path_add_up() -> None:
    # Three forks and joins in a row, each 7 s, with a transfer that is never needed between them.
    builder = GraphBuilder("three in a row")
    last = None
    for number in range(3):
        ops = [
            builder.add_op(f"{number}-{place}", seconds={"any": seconds})
            for place, seconds in enumerate([1.0, 4.0, 4.0, 1.0])
        ]
        if last is not None:
            builder.add_tensor(last, 1.0, [ops[0]])
        builder.add_tensor(ops[0], 1.0, [ops[1], ops[2]])
        builder.add_tensor(ops[1], 1.0, [ops[3]])
        builder.add_tensor(ops[2], 1.0, [ops[3]])
        last = ops[3]
    instance = make_instance(builder.finish(), connected(2))
    assert window_bound(instance) == pytest.approx(21.0)
    assert window_bound(make_instance(instance.graph, connected(1))) == pytest.approx(30.0)


def test_more_ops_than_a_window_takes_leave_the_path() -> None:
    # Eleven branches between a fork and a join: too many, so 1 + 4 + 1 of the path is said.
    builder = GraphBuilder("wide")
    fork = builder.add_op("fork", seconds={"any": 1.0})
    branches = [builder.add_op(f"o{i}", seconds={"any": 4.0}) for i in range(MOST_OPS + 1)]
    join = builder.add_op("join", seconds={"any": 1.0})
    builder.add_tensor(fork, 1.0, branches)
    for branch in branches:
        builder.add_tensor(branch, 1.0, [join])
    assert window_bound(make_instance(builder.finish(), connected(2))) == pytest.approx(6.0)
