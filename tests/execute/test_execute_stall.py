import pytest

from meshwright.execute.stall import Post, find_reached, find_stall

DEVICES = ["h0.d0", "h0.d1", "h1.d0", "h1.d1"]
STALL = 30.0


def waiting(*ranks: int, idle: float = 31.0, doing: str = "RECV x") -> Post:
    return Post(doing=doing, waits_for=ranks, idle_seconds=idle)


def running(idle: float, doing: str = "RUN conv1") -> Post:
    return Post(doing=doing, idle_seconds=idle)


def test_a_rank_that_does_not_go_on_is_named_with_who_waits_for_it() -> None:
    posts = {0: waiting(2, idle=31.2), 2: running(33.0)}
    stall = find_stall(0, posts, DEVICES, STALL)
    assert stall is not None
    assert stall.ranks == (2,)
    assert stall.message == (
        "rank 2 (h1.d0) is hung: no progress for 33 s at RUN conv1; "
        "rank 0 (h0.d0) waits for it at RECV x"
    )


def test_the_end_of_a_chain_is_named_not_its_middle() -> None:
    posts = {0: waiting(1), 1: waiting(2, doing="RECV y"), 2: running(40.0)}
    stall = find_stall(0, posts, DEVICES, STALL)
    assert stall is not None
    assert stall.ranks == (2,)
    assert stall.message.endswith("rank 1 (h0.d1) waits for it at RECV y")


def test_a_silent_rank_is_hung_whatever_it_waited_for() -> None:
    # It was stopped while it waited for rank 0, which waits for it.
    stopped = Post(doing="RECV g", waits_for=(0,), idle_seconds=0.2, silent_seconds=16.0)
    stall = find_stall(0, {0: waiting(1), 1: stopped}, DEVICES, STALL)
    assert stall is not None
    assert stall.ranks == (1,)
    assert stall.message == (
        "rank 1 (h0.d1) is hung: no sign of life for 16 s, last seen at RECV g; "
        "rank 0 (h0.d0) waits for it at RECV x"
    )


def test_a_rank_that_has_ended_is_waited_for_in_vain() -> None:
    ended = Post(doing="the end", has_ended=True, silent_seconds=16.0)
    stall = find_stall(0, {0: waiting(1), 1: ended}, DEVICES, STALL)
    assert stall is not None
    assert stall.message == "rank 1 (h0.d1) has ended, but rank 0 (h0.d0) waits for it at RECV x"


def test_a_circle_names_its_members_only() -> None:
    # 0 waits for 1; 1, 2 and 3 wait in a circle.
    posts = {0: waiting(1), 1: waiting(2), 2: waiting(3, doing="SEND y"), 3: waiting(1, idle=30.4)}
    stall = find_stall(0, posts, DEVICES, STALL)
    assert stall is not None
    assert stall.ranks == (1, 2, 3)
    assert stall.message == (
        "rank 1 (h0.d1) at RECV x, rank 2 (h1.d0) at SEND y, rank 3 (h1.d1) at RECV x "
        "wait for each other: no progress for 30 s"
    )


def test_of_a_collective_the_member_that_is_missing_is_named() -> None:
    posts = {
        0: waiting(1, 2, 3, doing="ALL_REDUCE"),
        1: waiting(0, 2, 3, doing="ALL_REDUCE"),
        2: running(35.0),
        3: waiting(0, 1, 2, doing="ALL_REDUCE"),
    }
    stall = find_stall(0, posts, DEVICES, STALL)
    assert stall is not None
    assert stall.ranks == (2,)


@pytest.mark.parametrize(
    "posts",
    [
        {0: running(1000.0)},  # computes for long, and waits for nobody
        {0: waiting(1, idle=29.0), 1: running(1000.0)},  # has not waited long enough
        {0: waiting(1, idle=1000.0), 1: running(2.0)},  # what it waits for makes progress
        {0: waiting(1), 1: waiting(2, idle=3.0), 2: running(20.0)},
        {0: waiting(1), 1: waiting(0, idle=5.0)},  # a circle, but only for now
        {0: waiting(1), 1: Post(doing="", silent_seconds=14.0)},  # missed some ticks
    ],
)
def test_no_stall_is_seen_where_there_may_be_none(posts: dict[int, Post]) -> None:
    assert find_stall(0, posts, DEVICES, STALL) is None


def test_reached_ranks_are_those_on_the_ways_from_the_first() -> None:
    posts = {0: waiting(1, 2), 1: waiting(0), 2: waiting(3)}
    assert find_reached(0, posts, STALL) == [0, 1, 2, 3]
    assert find_reached(1, posts, STALL) == [1, 0, 2, 3]
    assert find_reached(3, posts, STALL) == [3]
