"""What is searched: a graph, a cluster, and what a caller asks of the search.

Built once and given to every method; what is computed from the graph and the cluster alone is
computed at most once for all of them.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.lower import choose_granularity
from meshwright.search.bound.work import placement_bound, plan_bound
from meshwright.search.check import AnyScope
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance, make_instance
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.deploy.tree.tree import Prior
from meshwright.search.order.heft import schedule_heft
from meshwright.search.pool.engine import Engine

S = TypeVar("S", bound=AnyScope)


class _Derived:
    """What follows from a graph and a cluster, computed when it is first asked for."""

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        self._graph, self._cluster = graph, cluster
        self.schedules: list[tuple[Floats, Floats, tuple[Ints, Ints, float]]] = []
        """HEFT's schedules, each with the bytes that devices might and do fill."""

    @cached_property
    def instance(self) -> Instance:
        """The graph and the cluster as arrays."""
        return make_instance(self._graph, self._cluster)

    @cached_property
    def placement_bound(self) -> float:
        """No plan that runs every op whole on one device is faster."""
        return placement_bound(self.instance)

    @cached_property
    def plan_bound(self) -> float:
        """No plan that divides ops by their samples only is faster."""
        return plan_bound(self.instance)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A training step, the devices to run it on, and the limits of the search for a plan."""

    graph: Graph
    cluster: Cluster
    sharing: str = "fair"
    """How transfers share links, as the simulator has it."""
    seed: int = 0
    clock: Clock = field(default_factory=Clock)
    """When to stop: the end of the budget, or Ctrl-C."""
    engine: Engine | None = None
    """What simulates the drafts of `hybrid`; None: this process, and others where that is slow."""
    microbatches: tuple[int, ...] = ()
    """The numbers of microbatches that pipelines may have; none: those that suit."""
    scope: AnyScope | None = None
    """What a method looks at, for the method that has this kind of scope."""
    gap: float = 0.0
    """The search ends when nothing can be faster by more than this part of the bound."""
    prior: Prior | None = None
    """What `deploy` believes at first; None: the network that comes with the package."""
    runtime: str = MESHWRIGHT.name
    """Who will run the plan, as `RUNTIMES` has them."""
    allocate: bool = False
    """Whether each host's network interfaces are shared out to the destinations, too."""
    starts: tuple[Plan, ...] = ()
    """Plans that the search starts from and stays near; none: it looks at everything."""
    known: _Derived | None = None
    """What other problems of the same graph and cluster have computed; None: nothing yet."""

    def __post_init__(self) -> None:
        if self.known is None:
            object.__setattr__(self, "known", _Derived(self.graph, self.cluster))

    def within(self, clock: Clock) -> "Problem":
        """The same problem with another time to stop; what is computed is shared."""
        return replace(self, clock=clock)

    @property
    def _facts(self) -> _Derived:
        assert self.known is not None, "it is made with the problem"
        return self.known

    @property
    def instance(self) -> Instance:
        """The graph and the cluster as the arrays that searches work on."""
        return self._facts.instance

    @property
    def placement_bound(self) -> float:
        """No plan that runs every op whole on one device is faster, in seconds."""
        return self._facts.placement_bound

    @property
    def plan_bound(self) -> float:
        """No plan that divides ops by their samples only is faster, in seconds."""
        return self._facts.plan_bound

    def scope_of(self, kind: type[S]) -> S:
        """What was asked of a method with this kind of scope; by default everything."""
        return self.scope if isinstance(self.scope, kind) else kind()

    def schedule_heft(self, limits: Floats) -> tuple[Ints, Ints, float]:
        """HEFT's placement, order and time where devices may fill so many bytes.

        A schedule that was made with more room is the same if it keeps to less: the device on which
        an op ends first is the one that it went to, and has room.
        """
        for might, filled, schedule in self._facts.schedules:
            is_within = (filled <= limits * (1 - 1e-9)).all() and (limits <= might).all()
            if is_within or (limits == might).all():
                return schedule
        instance = self.instance
        schedule = schedule_heft(instance, limits)
        device_of_unit = schedule[0][instance.unit_ops[instance.unit_start[:-1]]]
        filled = np.zeros(instance.num_devices)
        np.add.at(filled, device_of_unit, instance.unit_bytes)
        self._facts.schedules.append((limits, filled, schedule))
        return schedule

    def settle(self, plan: Plan) -> Verdict:
        """What the simulator says of a plan as finely as plans of its size are answered."""
        return self.try_plan(plan, choose_granularity(plan))

    def try_plan(self, plan: Plan, granularity: str = "op") -> Verdict:
        """What the simulator says of a plan."""
        return try_plan(self.graph, self.cluster, plan, self.sharing, granularity)
