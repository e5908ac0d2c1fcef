"""What ranks' ends say of their hosts, and who answers when the roll is called."""

import signal
from pathlib import Path

import pytest

from meshwright.execute.lost import find_gone, find_lost_hosts, ranks_beside
from meshwright.execute.roll import Reached, StepNote, answer_roll, call_roll, read_reached

HOSTS = ["h0", "h0", "h1", "h1", "h2"]
KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("codes", "silent", "lost"),
    [
        ([None, None, KILLED, KILLED, None], [], ("h1",)),
        ([KILLED, KILLED, 1, 1, 1], [], ("h0",)),
        ([KILLED, None, None, None, KILLED], [], ("h2",)),  # of h0 one rank is there
        ([KILLED, 1, None, None, None], [], ()),  # the other said that it lost a connection
        ([None, None, -signal.SIGTERM, -signal.SIGHUP, 1], [], ("h1",)),
        ([None, None, None, None, -signal.SIGSEGV], [], ()),  # a program's own fault
        ([None, None, None, None, -signal.SIGABRT], [], ()),
        ([None, None, None, None, 1], [], ()),
        ([0, 0, 0, 0, 0], [], ()),
        ([1, 1, None, None, None], [2, 3], ("h1",)),  # stopped, and does not answer
        ([1, 1, None, None, None], [2], ()),
        ([1, 1, KILLED, None, 1], [3], ("h1",)),
        ([1, 1, 1, 1, 1], [2, 3], ()),  # who has ended is not silent
        ([KILLED] * 5, [], ("h0", "h1", "h2")),
    ],
)
def test_a_host_is_lost_when_none_of_its_ranks_is_there(
    codes: list[int | None], silent: list[int], lost: tuple[str, ...]
) -> None:
    assert find_lost_hosts(HOSTS, find_gone(codes, silent)) == lost


def test_ranks_beside_others_are_those_of_their_hosts() -> None:
    assert ranks_beside(HOSTS, [3]) == [2, 3]
    assert ranks_beside(HOSTS, [4, 0]) == [0, 1, 4]
    assert ranks_beside(HOSTS, [-1, 7]) == []  # the store of torchrun's agent


def test_who_is_there_answers(tmp_path: Path) -> None:
    ended = [answer_roll(tmp_path, rank) for rank in (0, 2)]
    assert call_roll(tmp_path, [0, 1, 2], seconds=3.0) == {1}
    for each in ended:
        each.set()


def test_the_first_rank_notes_how_far_it_came(tmp_path: Path) -> None:
    assert read_reached(tmp_path) is None
    note = StepNote(tmp_path, 20)
    note.add(21)
    first = read_reached(tmp_path)
    note.add(22)
    assert first is not None
    assert read_reached(tmp_path) == Reached(began_after=20, step=22, first_time=first.first_time)
    (tmp_path / "reached").write_bytes(b"cut")
    assert read_reached(tmp_path) is None
    StepNote(tmp_path / "gone", 0).add(1)  # nobody is left to read it
