"""Sufficient factor broadcasting: gradients that every replica computes whole.

A weight's gradient is made of tensors, its factors, that may be much smaller than itself. With a
small batch it is cheaper to send those to all replicas, and to let each compute all of the
gradient, than to add the gradient up over them (Xie et al., UAI 2016; chosen by an integer
programme in TAG, Zhang et al., IEEE TPDS 2023). Which ops are then run on the whole batch is
decided here from prices (`sfb_price`, `sfb_solve`), and which of these shorten a step by whoever
can time one. How a plan expresses it is none of this module's business.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.kernel.disjoint import DisjointSets
from meshwright.kernel.row import group_values
from meshwright.search.method.deploy.factor.price import FactorPrices, price_factors
from meshwright.search.method.deploy.factor.solve import FactorChoice, Known, Programme

Evaluate = Callable[[frozenset[int]], float]
"""The seconds of a step with these ops duplicated; infinity where that does not fit."""

COMPUTE_WEIGHTS = (1.0, 0.5, 0.25, 0.125, 0.0625, 2.0, 4.0, 8.0)
"""What `choose_duplicated` lets a second of compute count for, against one on the network."""
MOST_VISITS = 100_000
"""Ops that are looked at for single gradients, some half a second; what is left then is taken apart
only into sets that share nothing."""
_MORE_EVALUATIONS = 16
"""How many sets `apply_factors` times beyond two for each halving of the number of factors."""
_NUM_PIECES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A gradient that every replica computes whole, and what it takes."""

    gradient: int
    """The op that makes it; of gradients that pay only together the one that saves most."""
    ops: tuple[int, ...]
    """All that is run on the whole batch for it, itself included, rising."""
    gain_seconds: float
    """By the programme, beyond what the factors before it gain."""
    solve_seconds: float = field(compare=False)


def find_gradients(prices: FactorPrices) -> list[int]:
    """The ops that save anything, the one that saves most first."""
    return sorted(np.flatnonzero(prices.saved > 0).tolist(), key=lambda op: (-prices.saved[op], op))


def _weigh(graph: Graph, prices: FactorPrices, compute_weight: float) -> Programme:
    return Programme(graph, replace(prices, duplicate=prices.duplicate * compute_weight))


def find_factors(
    graph: Graph, prices: FactorPrices, wanted: Sequence[int], compute_weight: float = 1.0
) -> tuple[Factor, ...]:
    """The factors that gain, of the gradients that are wanted, the one that saves most first.

    The programme is solved for all gradients at once, which is where several share what none could
    afford alone. What it chooses is then taken apart gradient by gradient, as TAG solves it: what
    pays for a large weight serves its bias, and other weights that read the same, for nothing. What
    pays only together is one factor. (No gradient that gains alone is missed: gains of sets of ops
    are supermodular, so the best set for one gradient lies in the best set for all.)

    `compute_weight`: what a second of compute counts for, against one on the network (TAG: 1).
    """
    programme = _weigh(graph, prices, compute_weight)
    started = perf_counter()
    best = frozenset(programme.solve_all(wanted).ops)
    all_seconds = perf_counter() - started
    known = programme.nothing_known()
    found: list[Factor] = []
    visits = 0
    for op in wanted:
        if op not in best or known.ops[op] or visits >= MOST_VISITS:
            continue
        started = perf_counter()
        near = programme.find_near(op, known, best)
        visits += len(near)
        choice = programme.solve(op, known, near)
        if choice.ops:
            _add(programme, choice, perf_counter() - started, known, found)
    for choice in _divide(programme, [op for op in sorted(best) if not known.ops[op]], known):
        if choice.gain_seconds > 0:
            _add(programme, choice, all_seconds, known, found)
    return tuple(found)


def _add(
    programme: Programme, choice: FactorChoice, seconds: float, known: Known, found: list[Factor]
) -> None:
    """Make a choice known and a factor of it.

    What makes no gradient is computed again instead of gathered for one that was found before.
    """
    known.add(choice)
    gradient = max(choice.ops, key=lambda op: programme.saved[op])
    if not programme.saved[gradient]:
        gradient = next(
            each.gradient
            for each in found
            if any(
                programme.source[t] in choice.ops for op in each.ops for t in programme.inputs[op]
            )
        )
    found.append(
        Factor(
            gradient=gradient,
            ops=programme.needed((*choice.ops, gradient), known),
            gain_seconds=choice.gain_seconds,
            solve_seconds=seconds,
        )
    )


def _divide(programme: Programme, ops: Sequence[int], known: Known) -> list[FactorChoice]:
    """Ops in sets that share neither ops nor what is gathered for them."""
    sets = DisjointSets(ops)
    reader: dict[int, int] = {}
    gathered = set(programme.price(ops, known).tensors)
    for op in ops:
        for tensor in programme.inputs[op]:
            if programme.source[tensor] in sets:
                sets.join(op, programme.source[tensor])
            elif tensor in gathered:
                sets.join(op, reader.setdefault(tensor, op))
    parts = group_values((sets.find(op), op) for op in ops)
    return [programme.price(part, known) for part in parts.values()]


def choose_duplicated(
    evaluate: Evaluate,
    graph: Graph,
    cluster: Cluster,
    devices: Sequence[int],
    shares: Sequence[float] = (),
    *,
    within: Collection[int] | None = None,
) -> frozenset[int]:
    """The ops to duplicate so that a step is as short as can be found; none where none helps.

    The programme adds up seconds of compute and of the network, but in a step these overlap: where
    devices wait for the network, compute costs less than it says, and the other way round. So it is
    solved for several weights of compute; the sets grow as the weight falls. All are timed, and the
    factors of the best one are then tried by `apply_factors`.
    """
    if len(devices) < 2:
        return frozenset()
    prices = price_factors(graph, cluster, devices, shares, within)
    wanted = find_gradients(prices)
    timed: dict[frozenset[int], float] = {}

    def time(ops: frozenset[int]) -> float:
        if ops not in timed:
            timed[ops] = evaluate(ops)
        return timed[ops]

    sets = {
        weight: frozenset(_weigh(graph, prices, weight).solve_all(wanted).ops)
        for weight in COMPUTE_WEIGHTS
    }
    best = min(COMPUTE_WEIGHTS, key=lambda weight: time(sets[weight]))
    apply_factors(time, find_factors(graph, prices, wanted, best))
    return min(timed, key=lambda ops: (timed[ops], len(ops), sorted(ops)))


def apply_factors(evaluate: Evaluate, factors: Sequence[Factor]) -> frozenset[int]:
    """The ops to duplicate, of sets of factors that are timed the one with the shortest step.

    `evaluate` gives the seconds of a step with these ops duplicated, infinity where that does not
    fit. It is called at most 2 log2(factors) + 16 times: for all factors, for those with the
    largest gains (a half, a quarter, ...; then between the best of these and its neighbours), and
    then with pieces of the list left out or put in, each smaller than the one before.
    """
    ranked = sorted(factors, key=lambda each: (-each.gain_seconds, each.gradient))
    if not ranked:
        return frozenset()
    trial = _Trial(evaluate, ranked)
    trial.search_length()
    trial.toggle_pieces()
    return trial.ops_of(trial.best)


class _Trial:
    """Sets of factors (their places in the list) and the best of those that were timed."""

    def __init__(self, evaluate: Evaluate, ranked: Sequence[Factor]) -> None:
        self.evaluate, self.ranked = evaluate, ranked
        self.left = 2 * len(ranked).bit_length() + _MORE_EVALUATIONS - 1
        self.timed: dict[frozenset[int], float] = {}
        self.best: frozenset[int] = frozenset()
        self.seconds = evaluate(frozenset())

    def ops_of(self, chosen: frozenset[int]) -> frozenset[int]:
        return frozenset(op for place in chosen for op in self.ranked[place].ops)

    def time(self, chosen: frozenset[int]) -> float:
        """Time a set, unless it was or no call is left, and keep it if it is the best."""
        if chosen not in self.timed:
            if not chosen or not self.left:
                return float("inf")
            self.left -= 1
            self.timed[chosen] = self.evaluate(self.ops_of(chosen))
        if self.timed[chosen] < self.seconds:
            self.best, self.seconds = chosen, self.timed[chosen]
        return self.timed[chosen]

    def search_length(self) -> None:
        """How many of the largest gains are best."""
        length = len(self.ranked)
        while length:
            self.time(frozenset(range(length)))
            length //= 2
        step = max(len(self.best) // 4, 1)
        while len(self.best) and step:
            middle = len(self.best)
            for each in (middle - step, middle + step):
                if 0 < each <= len(self.ranked):
                    self.time(frozenset(range(each)))
            step //= 2

    def toggle_pieces(self) -> None:
        """Leave out or put in pieces of the list while that helps."""
        size = -(-len(self.ranked) // _NUM_PIECES)
        while size and self.left:
            for start in reversed(range(0, len(self.ranked), size)):
                piece = frozenset(range(start, min(start + size, len(self.ranked))))
                self.time(self.best - piece if self.best & piece else self.best | piece)
            size //= 2
