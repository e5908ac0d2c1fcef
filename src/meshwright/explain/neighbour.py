"""What each decision of a plan is worth: plans that differ from it in one decision, simulated.

An idea names the decision and what is done instead, and makes the plan when it is asked to. Ideas
of each sort take turns, so that a small number of simulations still looks at every sort.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.search.judge import try_plan

NO_PLAN = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """A plan that differs from another in one decision."""

    decision: str
    """What the plan does, for people."""
    change: str
    """What is done instead."""
    make: Callable[[], Plan]
    """Makes the plan; InputError where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """What became of an idea."""

    decision: str
    change: str
    plan: Plan | None
    """None: there is no such plan; `obstacle` says why."""
    step_seconds: float
    """Simulated as the plan that it differs from was; infinity without a plan."""
    slower: float
    """By what part the step is longer than the plan's; negative: it is faster."""
    missing_bytes: float = 0.0
    """What all its devices lack together."""
    obstacle: str = ""
    """Why it cannot be run; empty: it can."""

    @property
    def fits(self) -> bool:
        """Whether it is a plan that every device has memory for."""
        return not self.obstacle

    @property
    def is_faster(self) -> bool:
        """Whether it could be run and takes less time."""
        return self.fits and self.slower < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What plans are simulated for, and how."""

    graph: Graph
    cluster: Cluster
    sharing: str
    granularity: str
    """One for all plans that are compared: times at two of them differ by a few per cent."""

    def judge(self, idea: Idea, own: Plan, step_seconds: float) -> Neighbour | None:
        """Simulate an idea, beside a plan that takes so long; None: it is that plan."""
        try:
            plan = idea.make()
            if plan == own:
                return None
            verdict = try_plan(self.graph, self.cluster, plan, self.sharing, self.granularity)
        except InputError as error:
            return Neighbour(
                decision=idea.decision,
                change=idea.change,
                plan=None,
                step_seconds=NO_PLAN,
                slower=NO_PLAN,
                obstacle=str(error),
            )
        return Neighbour(
            decision=idea.decision,
            change=idea.change,
            plan=plan,
            step_seconds=verdict.step_seconds,
            slower=verdict.step_seconds / step_seconds - 1 if step_seconds else 0.0,
            missing_bytes=verdict.missing_bytes,
            obstacle=verdict.binding,
        )


def judge_ideas(
    setting: Setting, plan: Plan, step_seconds: float, ideas: Sequence[Iterable[Idea]], most: int
) -> tuple[tuple[Neighbour, ...], int]:
    """The neighbours of a plan by at most so many simulations, sort after sort, and how many ideas
    were left out for want of them."""
    found: list[tuple[int, Neighbour]] = []
    simulated, left = 0, 0
    for sort, idea in _in_turns(ideas):
        if simulated >= most:
            left += 1
            continue
        neighbour = setting.judge(idea, plan, step_seconds)
        if neighbour is None:
            continue
        simulated += neighbour.plan is not None
        found.append((sort, neighbour))
    return tuple(each for _, each in sorted(found, key=lambda pair: pair[0])), left


def _in_turns(ideas: Sequence[Iterable[Idea]]) -> Iterator[tuple[int, Idea]]:
    """The first idea of each sort, then the second of each, and so on."""
    numbered = [[(sort, idea) for idea in each] for sort, each in enumerate(ideas)]
    return (each for each in chain.from_iterable(zip_longest(*numbered)) if each is not None)
