"""Where a search stands while it runs: for whoever watches it, and to end it where that is near
enough to the bound."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from meshwright.plan.moment import Moment
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import is_proved
from meshwright.search.method.name import ENTRIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The best plan and bound so far, and what is searched at the moment."""

    seconds: float
    """Since the search began."""
    budget_seconds: float
    methods: tuple[str, ...]
    """The methods that search now, also those in processes of their own."""
    found_by: str = ""
    """The method that found the best plan that fits; empty while none does."""
    step_seconds: float = math.inf
    """What the best plan that fits takes; infinity while none does."""
    bound_seconds: float = 0.0
    """The bound that an answer would have now; zero while none is proven."""

    @property
    def gap(self) -> float:
        """How far above the bound the best plan may be: step / bound - 1."""
        return (
            max(0.0, self.step_seconds / self.bound_seconds - 1) if self.bound_seconds else math.inf
        )


Watch = Callable[[Standing], None]
"""Is told where a search stands whenever that has changed, by any thread of the search."""


class Lookout:
    """Follows where a search of several methods stands: tells a watch, if there is one, and the
    clock when no plan is faster than the best by more than `gap`, a part of the bound."""

    def __init__(
        self,
        names: Sequence[str],
        clock: Clock,
        watch: Watch | None = None,
        gap: float | None = 0.0,
    ) -> None:
        """`gap`: None lets the search go on, since what comes after it has another bound."""
        self._names, self._clock, self._watch, self._gap = names, clock, watch, gap
        self._lock = Lock()
        self._methods: list[str] = []
        self._ended: set[str] = set()
        self._found_by, self._step = "", math.inf
        self._bounds: dict[str, float] = {}

    @contextmanager
    def searching(self, name: str) -> Iterator[None]:
        """A block within which a method searches."""
        self.begin(name)
        try:
            yield
        finally:
            self.end(name)

    def begin(self, name: str) -> None:
        """Note that a method searches from now on."""
        with self._lock:
            self._methods = [*(each for each in self._methods if each != name), name]
            self._tell()

    def end(self, name: str) -> None:
        """Note that a method has ended."""
        with self._lock:
            self._methods = [each for each in self._methods if each != name]
            self._ended.add(name)
            self._tell()

    def note(self, moment: Moment) -> None:
        """Take over a better plan or bound, from any method and from any process."""
        with self._lock:
            if moment.step_seconds < self._step:
                self._found_by, self._step = moment.method, moment.step_seconds
            if moment.method not in (*self._methods, *self._ended):  # in a process of its own
                self._methods.append(moment.method)
            known = self._bounds.get(moment.claim, 0.0)
            self._bounds[moment.claim] = max(known, moment.bound_seconds)
            self._tell()

    def _tell(self) -> None:
        if self._gap is not None and is_proved(self._step, self._bound * (1 + self._gap)):
            self._clock.satisfy()
        if self._watch is not None:
            self._watch(
                Standing(
                    seconds=self._clock.elapsed,
                    budget_seconds=self._clock.seconds,
                    methods=tuple(self._methods),
                    found_by=self._found_by,
                    step_seconds=self._step,
                    bound_seconds=self._bound,
                )
            )

    @property
    def _bound(self) -> float:
        """What no plan of the search is faster than; of layers that is known once they have been
        searched."""
        layered, whole = (
            self._bounds.get(Claim.LAYERED, 0.0),
            self._bounds.get(Claim.UNDIVIDED, 0.0),
        )
        if len(self._names) == 1:
            return max(self._bounds.values(), default=0.0)
        waits = any(
            ENTRIES[name].claim is Claim.LAYERED and name not in self._ended for name in self._names
        )
        return 0.0 if waits else min(whole, layered or whole)
