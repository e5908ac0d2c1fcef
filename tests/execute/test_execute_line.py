"""Collectives that wait for each other."""

import threading
import weakref
from collections.abc import Callable

import pytest

from meshwright.execute.work import All, LaneQueue, Plain, Together


class Slow:
    """Work that is done when it is let go."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def wait(self) -> None:
        assert self.may_end.wait(10)


def start(works: dict[str, Slow], name: str, log: list[str]) -> Callable[[], Slow]:
    def begin() -> Slow:
        log.append(name)
        return works[name]

    return begin


def test_a_collective_starts_when_the_one_before_is_done() -> None:
    works, log, line = {"one": Slow(), "two": Slow()}, list[str](), LaneQueue()
    one, two = (line.add(start(works, name, log)) for name in works)
    works["one"].may_end.set()
    one.wait()
    works["two"].may_end.set()
    two.wait()
    assert log == ["one", "two"]
    works, log = {"one": Slow(), "two": Slow()}, list[str]()
    one, two = (line.add(start(works, name, log)) for name in works)
    works["two"].may_end.set()
    assert log in ([], ["one"]), "the second waits for the first, although it could be done"
    works["one"].may_end.set()
    two.wait()
    assert log == ["one", "two"]
    line.close()


def test_an_error_reaches_who_waits_and_ends_no_other() -> None:
    class Bad:
        def wait(self) -> None:
            raise RuntimeError("connection closed by peer")

    line, good = LaneQueue(), Slow()
    good.may_end.set()
    bad, after = line.add(Bad), line.add(lambda: good)
    with pytest.raises(RuntimeError, match="closed by peer"):
        bad.wait()
    after.wait()
    line.close()


def test_what_was_asked_for_before_the_end_still_runs() -> None:
    line, good = LaneQueue(), Slow()
    good.may_end.set()
    works = [line.add(lambda: good) for _ in range(3)]
    line.close()
    assert not line.queue.thread.is_alive()
    for work in works:
        work.wait()  # not for ever


def test_what_follows_a_collective_is_done_once_before_who_waits_goes_on() -> None:
    line, slow, done = LaneQueue(), Slow(), list[str]()
    work = line.add(lambda: slow)
    work.then(lambda: done.append("first"))
    work.then(lambda: done.append("second"))
    assert not work.is_done
    assert done == []
    slow.may_end.set()
    work.wait()
    assert work.is_done
    assert done == ["first", "second"]
    work.then(lambda: done.append("late"))  # at once
    assert done == ["first", "second", "late"]
    line.close()


def test_a_line_lets_go_of_what_was_sent() -> None:
    class Sent:
        """Stands for a buffer."""

    line, slow, sent = LaneQueue(), Slow(), Sent()
    gone = weakref.ref(sent)

    def begin(_: Sent = sent) -> Slow:
        return slow

    work = line.add(begin)
    del sent, begin
    slow.may_end.set()
    work.wait()
    assert gone() is None
    line.close()


def test_an_error_of_what_follows_reaches_who_waits() -> None:
    line, slow = LaneQueue(), Slow()
    work = line.add(lambda: slow)
    work.then(lambda: 1 // 0)
    slow.may_end.set()
    with pytest.raises(ZeroDivisionError):
        work.wait()
    line.close()


def test_finishes_of_torchs_own_work_run_when_it_is_waited_for() -> None:
    class Sum:
        def wait(self) -> None:
            pass

        def is_completed(self) -> bool:
            return True

    done = list[str]()
    works = [Plain(Sum(), "kept"), Plain(Together([Sum(), Sum()]), "kept")]
    both = All(works)
    assert both.is_done
    both.then(lambda: done.append("unpacked"))
    assert done == []
    both.wait()
    both.wait()
    assert done == ["unpacked"]
    assert works[0].keep is None
