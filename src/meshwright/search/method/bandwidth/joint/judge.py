"""Times placements under rates that change, shares the network out anew for one of them, and turns
it into a plan with allocations, which is simulated.

Every transfer takes its bytes over its pair's rate, divided by how much transfers of that pair wait
for each other as far as that is known; the simulator decides.
"""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Floats, Ints, marked
from meshwright.plan.plan import Plan
from meshwright.search.instance import Instance, order_plan
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.bandwidth.joint.space import RateSpace
from meshwright.search.method.bandwidth.rate.allocate import FLOOR, allocate
from meshwright.search.method.bandwidth.rate.divide import divide_allocations
from meshwright.search.method.bandwidth.rate.path import optimise_paths
from meshwright.search.method.bandwidth.rate.rates import place_precedence
from meshwright.search.method.bandwidth.rate.room import Pair, even_rates
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk

_GAP = 1e-3
"""How near to the best the rates for a placement are, as a part of the step."""
_TURNS = 3
"""Times that rates are found for the order that ops start in under the last ones."""
_GAIN = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """A placement and the rates that it is timed under."""

    placed: Placed
    rates: Floats
    """By pair of hosts."""
    waits: Floats
    """By pair of hosts: how many times as long as alone its transfers are taken to need."""

    @property
    def rank(self) -> tuple[float, float]:
        """What placements are compared by: the smaller one is better."""
        return self.placed.rank


class Bench:
    """Placements of one instance, timed under any rates."""

    def __init__(self, instance: Instance, space: RateSpace, limits: Floats) -> None:
        self.instance, self.space = instance, space
        self._table = instance.bandwidth.copy()
        # Read-only as those of clusters are, which kernels are compiled for, yet it changes here.
        view = self._table.view()
        view.setflags(write=False)
        self._walk = PlacementWalk(replace(instance, bandwidth=view), limits, 0)
        self._pairs = np.array(space.hosts.pairs).T

    def under(self, rates: Floats, waits: Floats) -> Instance:
        """The instance to search with."""
        return replace(self.instance, bandwidth=self.space.slowed_bandwidth(rates, waits))

    def time(
        self,
        device_of_unit: Ints,
        rates: Floats,
        waits: Floats,
        order: Ints | None = None,
        limit: float = np.inf,
    ) -> Placed:
        """A placement under rates, in the order by urgency or in a given one if that is faster."""
        self._table[:] = self.space.slowed_bandwidth(rates, waits)
        ranked = self._walk.time(device_of_unit, limit=limit)
        if order is None:
            return ranked
        given = self._walk.time(device_of_unit, order, limit)
        return min(ranked, given, key=lambda each: each.rank)

    def longest_path(self, shared: Shared) -> Ints:
        """The ops of its longest path, from the last back."""
        self._table[:] = self.space.slowed_bandwidth(shared.rates, shared.waits)
        return self._walk.longest_path(shared.placed)

    def start_order(self, shared: Shared) -> Ints:
        """The ops as they start."""
        self._table[:] = self.space.slowed_bandwidth(shared.rates, shared.waits)
        placed, decoder = shared.placed, self._walk.decoder
        decoder.seconds(placed.device_of_unit[self.instance.unit_of].astype(np.int32), placed.order)
        return decoder.start_order()

    def reallocate(self, placed: Placed, rates: Floats, waits: Floats) -> Shared:
        """The best rates for a placement, for the order that ops start in under them."""
        best: Shared | None = None
        for _ in range(_TURNS):
            rates = self._best_rates(Shared(placed=placed, rates=rates, waits=waits))
            placed = self.time(placed.device_of_unit, rates, waits, placed.order)
            found = Shared(placed=placed, rates=rates, waits=waits)
            if best is not None and not found.placed.seconds < best.placed.seconds * (1 - _GAIN):
                return min(best, found, key=lambda each: each.rank)
            best = found
        assert best is not None, "there is a turn"
        return best

    def _best_rates(self, shared: Shared) -> Floats:
        """For the order that ops start in when the rates are as they are."""
        order, hosts = self.start_order(shared), self.space.hosts
        device_of_op = shared.placed.device_of_unit[self.instance.unit_of].astype(np.int32)
        precedence = place_precedence(self.instance, hosts, device_of_op, order)
        here, there = self._pairs
        precedence.arcs["amount"] *= shared.waits[here, there][precedence.arcs["pair"]]
        found = optimise_paths(precedence, hosts.room, gap=_GAP, start=shared.rates[here, there])
        rates = np.zeros_like(shared.rates)
        rates[here, there] = found.bytes_per_second
        return rates


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

    def simulate(self, shared: Shared, order: Ints) -> JudgedPlan:
        """The plan whose devices run their ops in this order, under the rates."""
        device_of_op = shared.placed.device_of_unit[self.instance.unit_of].astype(np.int32)
        plan = order_plan(self.instance, device_of_op, order)
        rates = self._rates_in_use(shared)
        plan = replace(plan, allocations=divide_allocations(self.instance.cluster, rates))
        return JudgedPlan(plan=plan, verdict=self.try_plan(plan), shared=shared)

    def try_plan(self, plan: Plan) -> Verdict:
        """What the simulator says."""
        return try_plan(self.instance.graph, self.instance.cluster, plan, self.sharing)

    def polish(self, found: JudgedPlan) -> JudgedPlan:
        """The same plan with the best rates for its orders as the simulator has them."""
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
        number = self.instance.cluster.host_index
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
