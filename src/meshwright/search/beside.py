"""Runs a method in a process beside this one, on a core that would be idle.

The process is told the problem and when the time is over, and answers with the method's record. One
that fails or says nothing costs no more than its method's plan. Knows nothing of what is searched
here meanwhile.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from threading import Event, Thread
from time import perf_counter
from typing import IO

from meshwright.plan.moment import Moment
from meshwright.search.clock import GRACE_SECONDS, Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.pool.worker import send, start_worker
from meshwright.search.problem import Problem
from meshwright.search.run import run_method

_LISTEN_SECONDS = 0.05
"""How often Ctrl-C is noticed."""
_LATE_SECONDS = 1.0
"""How long after the end of its time a process may still answer: a last plan is simulated then."""
_END_SECONDS = 1.0
"""How long the thread that talks to a process may take to end after that has been killed."""


class Beside(AbstractContextManager["Beside"]):
    """A method that is run in a process of its own, which ends with this context."""

    def __init__(
        self, name: str, problem: Problem, hear: Callable[[Moment], None] = lambda _: None
    ) -> None:
        """Start the process; its time ends with that of the problem. What it finds meanwhile it
        tells to `hear`, in a thread."""
        self.name, self._hear = name, hear
        self.has_begun = False
        """Whether it has loaded all that it needs, and searches."""
        self._clock, self._attempt = problem.clock, None
        self._is_done = Event()
        self._process = start_worker("meshwright.search.beside")
        # What is known of the problem is worked out again there: it may be large.
        told = replace(problem, clock=Clock(), known=None)
        self._thread = Thread(target=self._talk, args=(told,), daemon=True)
        self._thread.start()

    def _talk(self, problem: Problem) -> None:
        """Tell the process what to do and wait for what it says, in a thread."""
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        with suppress(Exception):  # whatever it says or no longer says
            if pickle.load(answers) == __file__:  # no other installation's
                send(to, (self.name, problem, self._clock.until))
                self.has_begun = pickle.load(answers)
                while isinstance(said := pickle.load(answers), Moment):
                    self._hear(said)
                self._attempt = said
        self._is_done.set()

    @property
    def may_answer(self) -> bool:
        """Whether it searches or has searched, or still loads what it needs."""
        return self.has_begun or not self._is_done.is_set()

    def wait(self, is_enough: Callable[[], bool] = lambda: False) -> Attempt | None:
        """The method's record when it has ended, or None: it failed, or took far too long, or there
        `is_enough` without it. Ctrl-C ends the method, too, and so does that enough was found."""
        end = self._clock.until + _LATE_SECONDS
        is_stopped = False
        while not self._is_done.is_set() and perf_counter() < end and not is_enough():
            if (self._clock.is_interrupted or self._clock.is_satisfied) and not is_stopped:
                is_stopped, end = True, perf_counter() + GRACE_SECONDS
                self._stop()
            with self._clock.heard():
                self._is_done.wait(_LISTEN_SECONDS)
        return self._attempt

    def _stop(self) -> None:
        """Let the method end with what it has."""
        with suppress(OSError, ValueError):
            assert self._process.stdin is not None
            send(self._process.stdin, self._clock.is_interrupted)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._thread.join(_END_SECONDS)
        with suppress(OSError), self._process:  # what was never written cannot be flushed either
            pass


def serve() -> None:
    """Run the method that this process is told on its input, and write what it found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search hears it, and tells us
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        send(target, __file__)
        name, problem, until = pickle.load(sys.stdin.buffer)
        clock = Clock(until - perf_counter())  # which all processes of a machine share
        Thread(target=_listen, args=(sys.stdin.buffer, clock), daemon=True).start()
        send(target, True)
        incumbent = Incumbent(clock, partial(send, target))
        run_method(name, problem.within(clock), incumbent)
        incumbent.tell = None  # which is this process's own
        send(target, incumbent.attempts.get(name))
    finally:
        os._exit(0)  # what went wrong is shown where the method is run without a process


def _listen(source: IO[bytes], clock: Clock) -> None:
    """End the search when told to, and the process with its input."""
    with suppress(EOFError):
        if pickle.load(source):
            clock.interrupt()
        else:
            clock.satisfy()
        pickle.load(source)
    os._exit(0)


if __name__ == "__main__":
    serve()
