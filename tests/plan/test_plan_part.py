import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.degrees import Degrees
from meshwright.plan.plan import (
    Allocation,
    Discipline,
    Keys,
    Part,
    Plan,
    Recompute,
    Schedule,
    ScheduleKind,
    Sync,
    place_ops,
)
from meshwright.search.method.hybrid.scope import Scope


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ops": ()}, "part of 0 ops on 'd0, d1': must have at least one op"),
        ({"devices": ()}, "part of 2 ops on '': must have at least one device"),
        (
            {"devices": ("d0", "d1", "d1")},
            "part of 2 ops on 'd0, d1, d1': replicas must be on different devices, "
            "'d1' stands twice",
        ),
        ({"shares": (1.0,)}, "part of 2 ops on 'd0, d1': shares must be one a device (2), got 1"),
        (
            {"shares": (0.5, math.nan)},
            "part of 2 ops on 'd0, d1': a share must be above 0 and at most 1, got nan",
        ),
        (
            {"shares": (0.0, 1.0)},
            "part of 2 ops on 'd0, d1': a share must be above 0 and at most 1, got 0.0",
        ),
        ({"shares": (0.5, 0.25)}, "part of 2 ops on 'd0, d1': shares must add up to 1, got 0.75"),
        ({"zero": 4}, "part of 2 ops on 'd0, d1': zero must be 0, 1, 2 or 3, got 4"),
        (
            {"tensor": 0},
            "part of 2 ops on 'd0, d1': tensor must be a whole number of at least 1, got 0",
        ),
        (
            {"tensor": 2, "context": 2},
            "part of 2 ops on 'd0, d1': devices must be a multiple of tensor x context (2 x 2), "
            "got 2",
        ),
        (
            {"expert": 3},
            "part of 2 ops on 'd0, d1': expert must divide the number of replicas (2), got 3",
        ),
        (
            {"tensor": 2, "shares": (0.5, 0.5)},
            "part of 2 ops on 'd0, d1': shares must be one a replica (1), got 2",
        ),
        (
            {"keys": Keys.RING},
            "part of 2 ops on 'd0, d1': keys ring needs a context width above 1, got 1",
        ),
        (
            {"sequence": True},
            "part of 2 ops on 'd0, d1': sequence needs a tensor width above 1, got 1",
        ),
        (
            {"priorities": (1.0,)},
            "part of 2 ops on 'd0, d1': priorities must be one an op (2), got 1",
        ),
        (
            {"priorities": (1.0, math.inf)},
            "part of 2 ops on 'd0, d1': priorities must be finite, got inf for op 'b'",
        ),
    ],
)
def test_a_bad_part_is_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"ops": ("a", "b"), "devices": ("d0", "d1")}
    Part(**good)
    with pytest.raises(InputError) as caught:
        Part(**good | change)
    assert str(caught.value) == message


def test_devices_stand_team_after_team() -> None:
    part = Part(ops=("a",), devices=tuple("abcdefgh"), tensor=2, context=2, shares=(0.25, 0.75))
    assert (part.width, part.num_replicas) == (4, 2)
    assert part.teams() == (tuple("abcd"), tuple("efgh"))
    assert part.rows() == ((0.0, 0.25), (0.25, 1.0))


@pytest.mark.parametrize(
    "change",
    [{"tensor": 2}, {"context": 2}, {"expert": 2}, {"zero": 1}, {"recompute": Recompute.FULL}],
)
def test_a_plan_is_plain_while_devices_run_whole_ops_alone(change: dict[str, Any]) -> None:
    part = Part(ops=("a",), devices=("d0", "d1"))
    assert Plan(parts=(part,)).is_plain
    assert not Plan(parts=(part, Part(ops=("b",), devices=("d0", "d1"), **change))).is_plain


def test_recomputation_given_as_a_truth_value_is_all_or_nothing() -> None:
    chosen = [
        Part(ops=("a",), devices=("d0",), recompute=each).recompute  # type: ignore[arg-type]
        for each in (False, True)
    ]
    assert chosen == [Recompute.NONE, Recompute.FULL]


def test_a_part_of_thousands_of_devices_gives_a_short_message() -> None:
    with pytest.raises(InputError) as caught:
        Part(ops=("a",), devices=tuple(f"device{i}" for i in range(5000)), zero=9)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("microbatches", [0, -1, 1_000_001])
def test_microbatches_have_limits(microbatches: int) -> None:
    with pytest.raises(InputError) as caught:
        Schedule(kind=ScheduleKind.GPIPE, microbatches=microbatches)
    assert str(caught.value) == (
        f"schedule gpipe: microbatches must be from 1 to 1000000, got {microbatches}"
    )


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_bad_allocation_is_refused(rate: float) -> None:
    with pytest.raises(InputError) as caught:
        Allocation(source="h0", target="h1", bytes_per_second=rate)
    assert str(caught.value) == (
        f"allocation h0 -> h1: bytes_per_second must be positive and finite, got {rate}"
    )


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.5, 0.6), "shares must add up to 1, got 1.1"),
        ((1.5, -0.5), "a share must be from 0 to 1, got 1.5"),
        ((math.nan, 1.0), "a share must be from 0 to 1, got nan"),
    ],
)
def test_shares_of_an_allocation_are_parts_of_it(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Allocation(source="h0", target="h1", bytes_per_second=1.0, shares=shares)
    assert str(caught.value) == f"allocation h0 -> h1: {message}"


def test_a_plan_has_parts_and_one_allocation_a_pair() -> None:
    with pytest.raises(InputError, match="plan: must have at least one part"):
        Plan(parts=())
    part = Part(ops=("a",), devices=("d0",))
    there = Allocation(source="h0", target="h1", bytes_per_second=1)
    back = Allocation(source="h1", target="h0", bytes_per_second=1)
    Plan(parts=(part,), allocations=(there, back))
    with pytest.raises(InputError) as caught:
        Plan(parts=(part,), allocations=(back, there, there))
    assert str(caught.value) == (
        "plan: allocations must name a pair of hosts once, h0 -> h1 stands 2 times"
    )


def _part(*shares: float, count: int = 0) -> Part:
    devices = tuple(f"d{i}" for i in range(count or len(shares)))
    return Part(ops=("a",), devices=devices, shares=shares)


def test_unequal_shares_give_unequal_rows() -> None:
    assert _part(0.5, 0.25, 0.25).rows() == ((0.0, 0.5), (0.5, 0.75), (0.75, 1.0))


def test_shares_that_add_up_roughly_still_cover_the_batch() -> None:
    # 0.9999999 within the tolerance: scaled to one, so that the last replica keeps its rows
    rows = _part(0.5, 0.4999999 - 1e-9, 1e-9).rows()
    assert rows[-1][1] == 1.0
    assert all(start < end for start, end in rows)


@pytest.mark.parametrize("count", [1, 3, 7, 10, 49])
def test_equal_shares_are_the_same_rows_written_out_or_not(count: int) -> None:
    expected = tuple((i / count, (i + 1) / count) for i in range(count))
    assert _part(count=count).rows() == expected
    assert _part(*[1 / count] * count).rows() == expected


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40))
def test_rows_follow_each_other_and_cover_the_batch(weights: list[int]) -> None:
    shares = [weight / sum(weights) for weight in weights]
    rows = _part(*shares).rows()
    assert rows[0][0] == 0.0
    assert rows[-1][1] == 1.0
    for share, (start, end) in zip(shares, rows, strict=True):
        assert end - start == pytest.approx(share, rel=1e-9)
    assert all(one[1] == two[0] for one, two in pairwise(rows))


def test_placing_ops_makes_a_part_a_device() -> None:
    plan = place_ops(("a", "b", "c"), (1, 0, 1), ("d0", "d1", "d2"), (3, 2, 1))
    assert plan.parts == (
        Part(ops=("b",), devices=("d0",), priorities=(2.0,)),
        Part(ops=("a", "c"), devices=("d1",), priorities=(3.0, 1.0)),
    )
    assert place_ops(("a",), (0,), ("d0",)).parts[0].priorities == ()


def test_the_gap_of_an_answer_is_relative_to_its_bound() -> None:
    plan = place_ops(("a",), (0,), ("d0",))

    def gap(plan: Plan | None, step: float, bound: float) -> float:
        return Answer(
            method="m", plan=plan, step_seconds=step, bound_seconds=bound, stop=Stop.LIMIT
        ).gap

    assert gap(plan, 3.0, 2.0) == 0.5
    assert gap(plan, 2.0, 2.0) == 0.0
    assert gap(plan, 2.0, 0.0) == math.inf
    assert gap(plan, 0.0, 0.0) == 0.0
    assert gap(None, math.inf, 1.0) == math.inf


PLAIN: dict[str, Any] = {"ops": ("a", "b"), "devices": ("d0", "d1")}


def test_choices_may_be_written_by_their_texts() -> None:
    part = Part(**PLAIN, recompute="selective", sync="ring", tensor=1)  # type: ignore[arg-type]
    assert part == Part(**PLAIN, recompute=Recompute.SELECTIVE, sync=Sync.RING)
    team = Part(**PLAIN, context=2, keys="ring")  # type: ignore[arg-type]
    assert team.keys is Keys.RING
    schedule = Schedule(kind="1f1b", microbatches=2)  # type: ignore[arg-type]
    assert schedule.kind is ScheduleKind.ONE_F_ONE_B
    plan = Plan(parts=(part,), discipline="fifo")  # type: ignore[arg-type]
    assert plan.discipline is Discipline.FIFO
    assert Part(**PLAIN, recompute=True).recompute is Recompute.FULL  # type: ignore[arg-type]
    scope = Scope(recompute=("full",), schedules="gpipe", keys=("ring",))  # type: ignore[arg-type]
    assert scope.recompute == (Recompute.FULL,)
    assert scope.schedules == (ScheduleKind.GPIPE,)
    assert scope.keys == (Keys.RING,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Part(**PLAIN, recompute="selectiv"),  # type: ignore[arg-type]
            r"part of 2 ops on 'd0, d1': recompute: must be one of none, selective, full, got "
            r"'selectiv'",
        ),
        (lambda: Part(**PLAIN, recompute=None), "recompute: must be one of .*, got None"),  # type: ignore[arg-type]
        (lambda: Part(**PLAIN, recompute=1), "recompute: must be one of .*, got 1"),  # type: ignore[arg-type]
        (lambda: Part(**PLAIN, sync="star"), "sync: must be one of all_reduce, ring, tree, "),  # type: ignore[arg-type]
        (lambda: Part(**PLAIN, keys="all"), "keys: must be one of gathered, ring, got 'all'"),  # type: ignore[arg-type]
        (lambda: Part(**PLAIN, tensor="2"), "tensor must be a whole number of at least 1, got '2'"),  # type: ignore[arg-type]
        (lambda: Part(**PLAIN, expert=1.0), r"expert must be a whole number of .*, got 1\.0"),  # type: ignore[arg-type]
        (
            lambda: Schedule(kind="gpip", microbatches=2),  # type: ignore[arg-type]
            "schedule: kind: must be one of gpipe, 1f1b, interleaved-1f1b, zero-bubble, got 'gpip'",
        ),
        (
            lambda: Schedule(kind=ScheduleKind.GPIPE, microbatches="4"),  # type: ignore[arg-type]
            "schedule gpipe: microbatches must be a whole number, got '4'",
        ),
        (
            lambda: Plan(parts=(Part(**PLAIN),), discipline="lifo"),  # type: ignore[arg-type]
            "plan: discipline: must be one of priority, fifo, order, got 'lifo'",
        ),
        (
            lambda: Scope(recompute=("some",)),  # type: ignore[arg-type]
            "scope: recompute: must be one of none, selective, full, got 'some'",
        ),
    ],
)
def test_other_texts_and_types_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


PAIR: dict[str, Any] = {"source": "a", "target": "b"}


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (Part, PLAIN | {"tensor": True}, "tensor must be a whole number of at least 1, got True"),
        (Part, PLAIN | {"zero": True}, "zero must be 0, 1, 2 or 3, got True"),
        (Part, PLAIN | {"zero": 1.0}, "zero must be 0, 1, 2 or 3, got 1.0"),
        (Part, PLAIN | {"sequence": "no"}, "sequence: must be True or False, got 'no'"),
        (Part, PLAIN | {"shares": ("half", 0.5)}, "at most 1, got 'half'"),
        (Part, PLAIN | {"priorities": ("high", 1.0)}, "must be finite, got 'high' for op"),
        (Schedule, {"kind": "1f1b", "microbatches": True}, "must be a whole number, got True"),
        (Plan, {"parts": (Part(**PLAIN),), "batch_statistics": "no"}, "True or False, got 'no'"),
        (
            Allocation,
            PAIR | {"bytes_per_second": "1 GB/s"},
            "allocation a -> b: bytes_per_second must be a number, got '1 GB/s'",
        ),
        (
            Allocation,
            PAIR | {"bytes_per_second": 1e9, "shares": ("all",)},
            "a share must be from 0 to 1, got 'all'",
        ),
        (Allocation, PAIR | {"source": 0, "bytes_per_second": 1e9}, "source: must be a host"),
        (Degrees, {"tensor": 2, "sequence_parallel": "no"}, "True or False, got 'no'"),
        (Degrees, {"schedule": ""}, "schedule: must be one of gpipe, .*, got ''"),
        (Degrees, {"pipeline": 2, "layers": (True, 3)}, "got"),
    ],
)
def test_what_only_looks_like_a_value_is_refused(
    make: Callable[..., object], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make(**given)
