"""Gives every pair of hosts the rate with which a plan's step is fastest.

The orders of the plan, as simulated, are fixed; the best rates for them follow from a convex
programme, with a proven gap; they are rounded and divided over ways; and the simulator, in which
orders may then be others, has the last word: the programme is solved again for the new orders while
that helps. Decides rates only, not what runs where.
"""

from dataclasses import dataclass, replace

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.compiled import announced_compilation
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.lower import choose_granularity, lower
from meshwright.program.program import Program
from meshwright.search.method.bandwidth.rate.divide import divide_allocations
from meshwright.search.method.bandwidth.rate.order import fix_order
from meshwright.search.method.bandwidth.rate.path import PairRates, optimise_paths
from meshwright.search.method.bandwidth.rate.rates import find_host_pairs
from meshwright.search.method.bandwidth.rate.room import (
    Pair,
    RateRoom,
    divides_alike,
    even_rates,
    make_room,
)
from meshwright.search.method.bandwidth.rate.traffic import (
    Kinship,
    list_traffic,
    pairs_of_collectives,
)
from meshwright.simulate.simulate import run_engine
from meshwright.simulate.tasks import EngineInput

FLOOR = 3e-4
"""The part of every link that all pairs of hosts in use share alike, so that none has nothing: it
costs as much of the time of transfers at most, and keeps connections alive on which a step sends
nothing."""
_MAX_ROUNDS = 4
"""How often rates are found anew for the orders that the last ones led to."""
_BETTER = 1e-4
"""A round that gains less than this part of the step is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """A plan with rates, and what is known about them."""

    plan: Plan
    """With whole kbit/s and shares; without allocations where none are faster."""
    step_seconds: float
    """Simulated."""
    uniform_seconds: float
    """Simulated without allocations."""
    model_seconds: float
    """With the best rates before rounding, orders as simulated, nobody else on a pair's rate."""
    bound_seconds: float
    """No rates are faster with these orders and algorithms of collectives, and with what teams say
    within ops as it is: proven, and true of the simulator as well."""
    gap: float
    """How far `model_seconds` is above the bound, as a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SimulatedRun:
    """A program that was simulated."""

    program: Program
    engine: EngineInput
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Solved:
    """The answer of the programme, and what it is about."""

    rates: PairRates
    room: RateRoom
    pairs: tuple[Pair, ...]
    """Of each pair of the room the first pair of hosts that it stands for."""


def allocate(
    graph: Graph, cluster: Cluster, plan: Plan, *, sharing: str = "fair", gap: float = 1e-3
) -> Allocated:
    """The plan with the rates between hosts that make its step shortest.

    Starts from the orders without allocations, and from those with the ones that it has. Pairs of
    hosts that nothing is sent between get a little of every link (`FLOOR`) if both are in use. A
    plan whose teams talk across hosts within ops gets none.
    """
    with announced_compilation():
        bare = replace(plan, allocations=())
        granularity = choose_granularity(bare) if bare.is_plain else "layer"
        program = lower(graph, cluster, bare, granularity)
        uniform = _run(program, cluster, sharing)
        search = _RateSearch(cluster, sharing, gap, uniform)
        if search.hosts.pairs and not talks_within_ops(cluster, plan):
            search.improve(uniform, prefers_rings=False)
            if plan.allocations:
                given = _run(replace(program, allocations=plan.allocations), cluster, sharing)
                search.keep(given)
                search.improve(given, prefers_rings=False)
            if search.has_collectives:
                search.improve(uniform, prefers_rings=True)
            if search.is_shared:
                search.improve(search.best, prefers_rings=False, is_apart=True)
    return search.answer(plan, uniform)


def talks_within_ops(cluster: Cluster, plan: Plan) -> bool:
    """Whether a team (or replicas that gather or scatter in every microbatch) is on several hosts:
    what it says is within the time of its ops, as without allocations, and no rate is known to be
    enough for it."""
    host = {device.name: device.host for device in cluster.devices}
    for part in plan.parts:
        is_whole = part.expert > 1 or part.zero >= 2
        size = len(part.devices) if is_whole else part.tensor * part.context
        teams = [part.devices[k : k + size] for k in range(0, len(part.devices), size)]
        if any(len({host[name] for name in team}) > 1 for team in teams):
            return True
    return False


def _run(program: Program, cluster: Cluster, sharing: str) -> _SimulatedRun:
    engine, _ = run_engine(program, cluster, sharing)
    launch = float(program.host_seconds.max(initial=0.0))
    seconds = max(float(engine.tasks["finish"][:-1].max(initial=0.0)), launch)
    return _SimulatedRun(program=program, engine=engine, seconds=seconds)


class _RateSearch:
    """The best run so far."""

    def __init__(self, cluster: Cluster, sharing: str, gap: float, uniform: _SimulatedRun) -> None:
        self.cluster, self.sharing, self.gap = cluster, sharing, gap
        self.hosts = find_host_pairs(cluster)
        self.best = uniform
        self.bundles = bool(self.hosts.pairs) and divides_alike(cluster, self.hosts.pairs)
        self.has_collectives = self.is_shared = False

    def keep(self, run: _SimulatedRun) -> None:
        """Keep a run if it is the best by now."""
        if run.seconds < self.best.seconds * (1.0 - 1e-12):
            self.best = run

    def improve(self, run: _SimulatedRun, *, prefers_rings: bool, is_apart: bool = False) -> None:
        """Rates for the orders of a run, then for the orders that these lead to."""
        for _ in range(_MAX_ROUNDS):
            following = self._reallocate(run, prefers_rings, is_apart)
            if following is None or not following.seconds < run.seconds * (1.0 - _BETTER):
                return
            run, prefers_rings = following, False

    def _reallocate(
        self, run: _SimulatedRun, prefers_rings: bool, is_apart: bool
    ) -> _SimulatedRun | None:
        """The program with the best rates for the orders of a run; None: there is nothing to rate,
        or a collective found no way that all its pairs have."""
        traffic = self._traffic(run, prefers_rings)
        collective = pairs_of_collectives(traffic)
        self.has_collectives |= bool(collective)
        users = {(pair, each.user) for each in traffic for pair in each.host_pairs}
        self.is_shared |= len(users) > len({pair for pair, _ in users})
        found, sums = self._solve(run, traffic, is_apart=is_apart)
        if not sums.any():
            return None
        together = [self.hosts.pairs[pair] for pair in sorted(collective)]
        allocations = divide_allocations(
            self.cluster,
            self._floored(sums),
            together=together,
            faint=[pair for pair, rate in zip(self.hosts.pairs, sums, strict=True) if not rate],
            known=None if self.bundles else self._known_ways(found),
        )
        try:
            run = _run(replace(run.program, allocations=allocations), self.cluster, self.sharing)
        except InputError:
            return None
        self.keep(run)
        return run

    def _known_ways(self, found: _Solved) -> dict[Pair, list[float]]:
        """By pair of hosts what the programme has put on each way, a little less."""
        known: dict[Pair, list[float]] = {}
        for number, pair in enumerate(found.pairs):
            own = (1.0 - FLOOR) * found.rates.ways[found.room.pair_of_way == number]
            total = known.setdefault(pair, [0.0] * len(own))
            known[pair] = [one + other for one, other in zip(total, own.tolist(), strict=True)]
        return known

    def _traffic(self, run: _SimulatedRun, prefers_rings: bool) -> list[Kinship]:
        return list_traffic(
            run.program, self.cluster, self.hosts, sharing=self.sharing, prefers_rings=prefers_rings
        )

    def _solve(
        self, run: _SimulatedRun, traffic: list[Kinship], *, is_apart: bool
    ) -> tuple[_Solved, Floats]:
        """The best rates for the orders of a run, and their sums by pair of hosts."""
        pairs = self.hosts.pairs
        ordered = fix_order(
            run.engine, traffic, sharing=self.sharing, is_apart=is_apart, bundles=self.bundles
        )
        bundles = [{pairs[pair]: share for pair, share in own.items()} for own in ordered.shares]
        room = make_room(self.cluster, bundles)
        rates = optimise_paths(ordered.precedence, room, gap=0.5 * self.gap)
        firsts = tuple(next(iter(bundle)) for bundle in bundles)
        sums = ordered.sums(rates.bytes_per_second, len(pairs))
        return _Solved(rates=rates, room=room, pairs=firsts), sums

    def _floored(self, sums: Floats) -> dict[Pair, float]:
        """Rates with a little for every pair of hosts in use."""
        used = {host for pair, rate in zip(self.hosts.pairs, sums, strict=True) if rate > 0
                for host in pair}  # fmt: skip
        picked = [k for k, pair in enumerate(self.hosts.pairs) if used.issuperset(pair)]
        pairs = [self.hosts.pairs[k] for k in picked]
        room = make_room(self.cluster, [{pair: 1.0} for pair in pairs])
        rates = (1.0 - FLOOR) * sums[picked] + FLOOR * even_rates(room)
        return dict(zip(pairs, rates.tolist(), strict=True))

    def answer(self, plan: Plan, uniform: _SimulatedRun) -> Allocated:
        """The best run, and what the programme proves for its orders."""
        solved = [self._solve(self.best, self._traffic(self.best, False), is_apart=False)]
        if self.has_collectives and not self.best.program.allocations:
            solved.append(self._solve(self.best, self._traffic(self.best, True), is_apart=False))
        model = min((each.rates for each, _ in solved), key=lambda each: each.bound_seconds)
        launch = float(uniform.program.host_seconds.max(initial=0.0))
        return Allocated(
            plan=replace(plan, allocations=self.best.program.allocations),
            step_seconds=self.best.seconds,
            uniform_seconds=uniform.seconds,
            model_seconds=max(model.seconds, launch),
            bound_seconds=max(model.bound_seconds, launch),
            gap=model.gap,
        )
