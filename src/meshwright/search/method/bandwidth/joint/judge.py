"""Turns a placement under rates into a plan with allocations, and simulates it."""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Floats, Ints, marked
from meshwright.plan.plan import Plan
from meshwright.search.instance import Instance, order_plan
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.bandwidth.joint.space import RateSpace
from meshwright.search.method.bandwidth.joint.timing import Shared
from meshwright.search.method.bandwidth.rate.allocate import FLOOR, allocate
from meshwright.search.method.bandwidth.rate.divide import divide_allocations
from meshwright.search.method.bandwidth.rate.room import Pair, even_rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedPlan:
    """A plan, what the simulator says of it, and what it was made of."""

    plan: Plan
    verdict: Verdict
    shared: Shared | None = None
    """None: the plan is not from this search, or rates are no help to it."""
    least_seconds: float = 0.0
    """No rates make it faster, as it is ordered; zero: not known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judge:
    """Makes plans of one instance, and simulates them."""

    instance: Instance
    space: RateSpace
    sharing: str
    allocates: bool = True
    """Whether plans have allocations; else bandwidth is uniform."""

    def simulate(self, shared: Shared, order: Ints) -> JudgedPlan:
        """The plan whose devices run their ops in this order, under the rates."""
        device_of_op = shared.placed.device_of_unit[self.instance.unit_of].astype(np.int32)
        plan = order_plan(self.instance, device_of_op, order)
        if self.allocates:
            rates = self._rates_in_use(shared)
            plan = replace(plan, allocations=divide_allocations(self.instance.cluster, rates))
        return JudgedPlan(plan=plan, verdict=self.try_plan(plan), shared=shared)

    def try_plan(self, plan: Plan) -> Verdict:
        """What the simulator says."""
        return try_plan(self.instance.graph, self.instance.cluster, plan, self.sharing)

    def polish(self, found: JudgedPlan) -> JudgedPlan:
        """The same plan with the best rates for its orders as the simulator has them."""
        if not self.allocates:
            return found
        graph, cluster = self.instance.graph, self.instance.cluster
        allocated = allocate(graph, cluster, found.plan, sharing=self.sharing)
        plan, shared = allocated.plan, found.shared
        if shared is not None:
            shared = replace(shared, rates=self._rates_of(plan))
        if not plan.allocations:
            shared = None
        return JudgedPlan(
            plan=plan,
            verdict=self.try_plan(plan),
            shared=shared,
            least_seconds=allocated.bound_seconds,
        )

    def _rates_of(self, plan: Plan) -> Floats:
        number = {host: place for place, host in enumerate(self.instance.cluster.hosts)}
        rates = np.zeros_like(self.space.most)
        for each in plan.allocations:
            rates[number[each.source], number[each.target]] = each.bytes_per_second
        return rates

    def _rates_in_use(self, shared: Shared) -> dict[Pair, float]:
        """Of the pairs of hosts in use, with a little for those that nothing is sent between."""
        hosts = self.space.hosts
        used = hosts.host_of[shared.placed.device_of_unit]
        in_use = marked(self.space.num_hosts, used)
        numbers = np.array(
            [k for k, (here, there) in enumerate(hosts.pairs) if in_use[here] and in_use[there]],
            dtype=np.int64,
        )
        even = even_rates(hosts.room.picked(numbers))
        return {
            hosts.pairs[k]: (1 - FLOOR) * float(shared.rates[hosts.pairs[k]]) + FLOOR * least
            for k, least in zip(numbers.tolist(), even.tolist(), strict=True)
        }
