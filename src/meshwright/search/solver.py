"""Runs CP-SAT so that Ctrl-C stays Python's. Knows nothing of what is solved."""

import sys
from threading import Event, Thread
from typing import Any

from meshwright.search.clock import Clock

_LISTEN_SECONDS = 0.1
"""How often Ctrl-C is noticed."""
_LOAD_SECONDS = 4.0
"""CP-SAT's interface imports pandas: 3.3 s on one of two busy cores, 2026-11-19."""


def has_time_to_load(clock: Clock) -> bool:
    """Whether CP-SAT is loaded or can be with time left; what is left out for that is cut."""
    if "ortools.sat.python.cp_model" in sys.modules or clock.left > _LOAD_SECONDS:
        return True
    clock.cut()
    return False


def run_solver(solver: Any, model: Any, clock: Clock) -> Any:
    """The status; Ctrl-C ends the search with what it had, and the clock notes it.

    In a thread: the solver's own handler of Ctrl-C would replace Python's for good.
    """
    statuses: list[Any] = []
    is_done = Event()

    def solve() -> None:
        try:
            statuses.append(solver.solve(model))
        finally:
            is_done.set()

    Thread(target=solve, daemon=True).start()
    # Not Thread.join: in Python 3.11 Ctrl-C within it may mark a running thread as ended.
    while not is_done.is_set():
        with clock.heard():
            is_done.wait(_LISTEN_SECONDS)
        if clock.is_interrupted:
            solver.stop_search()
    assert statuses, "the solver failed"
    return statuses[0]
