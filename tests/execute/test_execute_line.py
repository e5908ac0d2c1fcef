"""Collectives that wait for each other."""

import threading
from collections.abc import Callable

import pytest

from meshwright.execute.work import Line


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
    works, log, line = {"one": Slow(), "two": Slow()}, list[str](), Line()
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

    line, good = Line(), Slow()
    good.may_end.set()
    bad, after = line.add(Bad), line.add(lambda: good)
    with pytest.raises(RuntimeError, match="closed by peer"):
        bad.wait()
    after.wait()
    line.close()


def test_what_was_asked_for_before_the_end_still_runs() -> None:
    line, good = Line(), Slow()
    good.may_end.set()
    works = [line.add(lambda: good) for _ in range(3)]
    line.close()
    assert not line.thread.is_alive()
    for work in works:
        work.wait()  # not for ever
