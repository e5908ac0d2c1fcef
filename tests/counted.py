"""A clock for searches in tests. It counts the looks at it, so that a budget is an amount of work
and no test depends on how fast, or how busy, the machine is."""

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from time import perf_counter
from types import ModuleType

import pytest

import meshwright.search
from meshwright.search import portfolio

TICK_SECONDS = 2.0**-10
"""What passes between two looks. A power of two, so that sums are exact wherever a test begins."""
_OF_PROCESSES = ("pool.process", "pool.ray", "beside")
"""Modules that wait for other processes, for which no look at a clock here stands."""


@dataclass
class CountedClock:
    """Goes on by one tick with every look; called like `perf_counter`."""

    tick_seconds: float = TICK_SECONDS
    looks: int = 0

    def __call__(self) -> float:
        """The time now, in seconds."""
        self.looks += 1
        return self.looks * self.tick_seconds


@contextmanager
def counted_clock(tick_seconds: float = TICK_SECONDS) -> Iterator[CountedClock]:
    """All searches look at such a clock in place of the machine's, and know of one core: methods
    that processes run beside them would look at another clock."""
    clock = CountedClock(tick_seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio, "num_cores", lambda: 1)
        for module in _modules_with_clock():
            patch.setattr(module, "perf_counter", clock)
        yield clock


@cache
def _modules_with_clock() -> tuple[ModuleType, ...]:
    """The modules of `search` that look at the clock."""
    folder = meshwright.search
    names = [each.name for each in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}.")]
    modules = [import_module(name) for name in names if not name.endswith(_OF_PROCESSES)]
    return tuple(each for each in modules if vars(each).get("perf_counter") is perf_counter)
