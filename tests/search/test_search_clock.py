"""The clock of a search: its end, its parts, and Ctrl-C."""

import math

import pytest

from counted import counted_clock
from meshwright.plan.answer import Stop
from meshwright.search.clock import Clock


def test_a_clock_is_over_at_the_look_that_meets_its_end() -> None:
    with counted_clock(1.0):  # a second a look
        clock = Clock(3.0)  # looks at 1, ends at 4
        assert [clock.is_over for _ in range(3)] == [False, False, True]
    assert clock.is_cut
    assert clock.stop is Stop.LIMIT


def test_a_clock_without_end_is_never_over() -> None:
    clock = Clock()
    assert not clock.is_over
    assert clock.left == clock.seconds == math.inf
    assert clock.rest(0.5).until == clock.first(0.5).until == math.inf
    assert clock.within(2.0).seconds == pytest.approx(2.0)
    assert clock.stop is Stop.ENDED


def test_parts_end_earlier() -> None:
    with counted_clock(1.0):
        clock = Clock(100.0)  # at 1, ends at 101
        assert clock.first(0.25).until == 1.0 + 25.0
        assert clock.rest(0.5).until == 2.0 + 0.5 * 99.0
        assert clock.within(10.0).until == 3.0 + 10.0
        assert clock.within(1000.0).until == 101.0
        assert clock.sooner(5.0).until == 96.0
        assert clock.more(1000.0).until == 5.0 + 1000.0
        assert clock.elapsed == 5.0
        assert clock.left == 101.0 - 7.0


def test_what_a_part_cuts_counts_for_the_whole_if_it_tells() -> None:
    for tells in (True, False):
        clock = Clock(1e6)
        part = clock.first(1e-12, tells=tells).first(0.5)
        assert part.is_over
        assert part.stop is Stop.LIMIT
        assert not clock.is_over
        assert clock.stop is (Stop.LIMIT if tells else Stop.ENDED)


def test_ctrl_c_ends_a_block_and_all_parts() -> None:
    clock = Clock()
    part, more = clock.first(0.5, tells=False), clock.more(10.0)
    passed = []
    with part.heard():
        passed.append("before")
        raise KeyboardInterrupt
    assert passed == ["before"]
    for each in (clock, part, more, clock.rest(1.0)):
        assert each.is_interrupted
        assert each.is_over
        assert each.stop is Stop.INTERRUPTED
        assert not each.is_cut, "it is no limit that has ended it"


def test_other_exceptions_leave_a_block() -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="ours"), clock.heard():
        raise ValueError("ours")
    assert not clock.is_interrupted


def test_a_time_that_is_cut_for_another_reason_goes_on() -> None:
    clock = Clock(1e6)
    clock.cut()
    assert not clock.is_over
    assert clock.stop is Stop.LIMIT
