"""The best chain of downsets: exact dynamic programming, a stage at a time, in a compiled kernel.

best[d, u] is the least possible largest load when the stages that make up downset d use u devices
(a number for how many of each pool). Tarnawski et al. (NeurIPS 2020, section 5.1) compute it from
all pairs of downsets. Here

- nothing above a limit is kept: with the limit just above the optimum few pairs are left;
- a downset is left alone where the rest cannot be done within the limit by the devices left: the
  nodes' weights (the least device-seconds that a node can take, prices by pool) must fit;
- a stage grows by one node at a time, so its load costs a few additions. Nodes are taken in or left
  out for good, in the order in which they become ready, so that every stage is met once. A stage's
  seconds, and its wires to what is before it or was left out, only grow: where they pass the limit,
  so do all stages that contain it. Where too much was left out, the rest cannot be done either.

It is run under rising limits: a limit without a split is a proven bound.
"""

import math
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, compiled
from meshwright.search.method.pipeline.stage.device_pool import (
    PoolPrices,
    Pools,
    find_prices,
    make_pools,
    slowest_node_seconds,
)
from meshwright.search.method.pipeline.stage.grow import LEVEL, PROGRESS, GrowState, advance
from meshwright.search.method.pipeline.stage.lattice import (
    Lattice,
    predecessors,
    successors,
    wires_of_nodes,
)
from meshwright.search.method.pipeline.stage.problem import SplitProblem, device_loads

ROUNDING = 1e-9
"""Relative: by how much sums in another order may differ."""
_HALF_ULP = 2.0**-53
"""Relative: by how much one sum is rounded."""
TOLERANCE = 1e-10
"""Relative: splits that are better by less than this are not looked for."""

_STEPS = (0.02, 0.06, 0.15, 0.4, 1.0, 3.0)
"""How far above the bound the limit is set, in turn."""

_WORK = 2_000_000
"""How many stages the kernel looks at before the clock is looked at: under a second of work."""

_MAX_CLOSURE = 4000
"""In graphs of more nodes it is not worked out what must come after each: a node counts alone."""


class Chains:
    """The dynamic programme under a limit; run it until it is done."""

    def __init__(self, problem: SplitProblem, lattice: Lattice) -> None:
        self._problem, self._lattice = problem, lattice
        self.pools = make_pools(problem)
        self.prices = find_prices(problem, self.pools)
        self._state = _make_state(problem, lattice, self.pools, self.prices)

    @property
    def first_bound(self) -> float:
        """What no split can be below, known before any search."""
        return max(self.prices.bound_seconds, slowest_node_seconds(self._problem))

    @property
    def stages_seen(self) -> int:
        """Stages that were looked at, in all runs."""
        return int(self._state.now["seen"])

    def start(self) -> None:
        """Forget what was found under another limit."""
        best = self._state.best
        best.fill(np.inf)
        # With fewer stages less is in flight: the first devices may stay without one.
        best[0, : None if self._problem.in_flight else 1] = 0.0
        self._state.now["next"] = 0

    def advance(self, limit: float) -> bool:
        """Look at some more downsets; whether all were looked at."""
        advance(self._state, limit, self.stages_seen + _WORK)
        return bool(self._state.now["next"] >= self._lattice.num_downsets - 1)

    def result(self) -> tuple[float, Ints, tuple[int, ...]]:
        """The least largest load found, and stage of every node and kind of every stage."""
        last = self._lattice.num_downsets - 1
        use = int(np.argmin(self._state.best[last]))
        value = float(self._state.best[last, use])
        stage_of_node = np.full(self._problem.num_nodes, -1, dtype=np.int32)
        if not np.isfinite(value):
            return value, stage_of_node, ()
        kinds: list[int] = []
        sets: list[int] = [last]
        while sets[-1] != 0:
            kind = int(self._state.from_kind[sets[-1], use])
            kinds.append(kind)
            width = self._problem.kinds[kind].width
            before = int(self._state.from_downset[sets[-1], use])
            use -= width * int(self.pools.stride[self.pools.pool_of_kind[kind]])
            sets.append(before)
        for stage, downset in enumerate(reversed(sets[:-1])):
            octets = self._lattice.bits[downset].astype("<u8").view(np.uint8)
            inside = np.unpackbits(octets, bitorder="little")[: len(stage_of_node)] > 0
            stage_of_node[inside & (stage_of_node < 0)] = stage
        return value, stage_of_node, tuple(reversed(kinds))


def _make_state(
    problem: SplitProblem, lattice: Lattice, pools: Pools, prices: PoolPrices
) -> GrowState:
    """The arrays that the kernel works on."""
    after, before, wires = successors(problem), predecessors(problem), wires_of_nodes(problem)
    kinds, nodes, shape = problem.kinds, problem.num_nodes, (lattice.num_downsets, len(pools.used))
    return GrowState(
        lattice=lattice,
        pools=pools,
        after_start=after.start,
        after_node=after.index,
        before_start=before.start,
        before_node=before.index,
        node_wires_start=wires.start,
        node_wires=wires.index,
        wire_start=problem.wire_start,
        wire_node=problem.wire_node,
        wire_seconds=problem.wire_seconds,
        seconds=np.array([kind.seconds for kind in kinds]).reshape(len(kinds), -1),
        memory=np.array([kind.memory_bytes for kind in kinds], dtype=np.float64),
        share=np.array([kind.wire_share for kind in kinds], dtype=np.float64),
        width=np.array([kind.width for kind in kinds], dtype=np.int32),
        flights=_flights(problem, pools),
        capacity=prices.capacity(pools),
        weight=downset_weights(lattice, prices.weight),
        weight_above=_weights_above(problem, prices.weight),
        held_bytes=problem.bytes,
        saved_bytes=problem.saved_bytes,
        best=np.empty(shape),
        from_downset=np.empty(shape, dtype=np.int32),
        from_kind=np.empty(shape, dtype=np.int16),
        missing=np.empty(nodes, dtype=np.int32),
        is_in=np.empty(nodes, dtype=np.uint8),
        ready=np.empty(nodes + 1, dtype=np.int32),
        levels=np.empty(nodes + 1, dtype=LEVEL),
        by_kind=np.empty((nodes + 1, len(kinds))),
        count=np.empty(problem.num_wires, dtype=np.int32),
        blocked=np.empty(problem.num_wires, dtype=np.int32),
        uses=np.empty(shape[1], dtype=np.int32),
        now=np.zeros(1, dtype=PROGRESS)[0],
    )


def _flights(problem: SplitProblem, pools: Pools) -> Floats:
    """Of every use the microbatches in flight in a stage that comes after it.

    Stages of several widths: as many as if all before were the widest, which is never too few.
    """
    if not problem.in_flight:
        return np.zeros(len(pools.used))
    widest = max(kind.width for kind in problem.kinds)
    stage = -(-pools.used.sum(axis=1) // widest)
    of_stage = np.array([*problem.in_flight, problem.in_flight[-1]], dtype=np.float64)
    found: Floats = of_stage[stage]
    return found


def downset_weights(lattice: Lattice, weight: Floats) -> Floats:
    """What the nodes of each downset weigh."""
    found = np.zeros(lattice.num_downsets)
    _sum_weights(lattice.step_start, lattice.step_node, lattice.step_to, weight, found)
    return found


@compiled
def _sum_weights(
    step_start: Array, step_node: Array, step_to: Array, weight: Array, found: Array
) -> None:
    for here in range(len(found)):
        for step in range(step_start[here], step_start[here + 1]):
            found[step_to[step]] = found[here] + weight[step_node[step]]


def _weights_above(problem: SplitProblem, weight: Floats) -> Floats:
    """What each node and all that must come after it weigh."""
    count = problem.num_nodes
    if count > _MAX_CLOSURE:
        return weight
    below = np.zeros((count, count), dtype=np.bool_)
    found = np.empty(count)
    after = successors(problem)
    for node in range(count - 1, -1, -1):
        below[node, node] = True
        for other in after[node].tolist():
            below[node] |= below[other]
        found[node] = weight[below[node]].sum()
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """A split of a problem's nodes."""

    stage_of_node: Ints
    kind_of_stage: tuple[int, ...]
    seconds: float
    """The largest load."""


class Rise:
    """The search among the downsets of one lattice; what it knows stays when it is interrupted."""

    def __init__(
        self,
        problem: SplitProblem,
        lattice: Lattice,
        until: float,
        *,
        most_seconds: float = math.inf,
        bound_seconds: float = 0.0,
    ) -> None:
        """Look for splits below `most_seconds`; `bound_seconds` are proven already."""
        self._problem, self._until = problem, until
        self._chains = Chains(problem, lattice)
        self.bound_seconds = max(bound_seconds, self._chains.first_bound)
        """No split of this lattice is below, or none that is below `most_seconds`."""
        self.best: Stages | None = None
        self._most = most_seconds
        self.ceiling_seconds = _largest_load(problem)
        """No split is above."""
        self._error = (problem.num_nodes + problem.num_wires) * _HALF_ULP * self.ceiling_seconds
        """By how much a load may differ whose parts came and went one by one: seconds of wires that
        are never cut come and go, too, which may be millions of times the load."""
        self._first = self.bound_seconds

    @property
    def stages_seen(self) -> int:
        """Stages that were looked at."""
        return self._chains.stages_seen

    def run(self) -> None:
        """Search until the best split is proved or the time is up."""
        most = min(self._most * (1 - TOLERANCE), self.ceiling_seconds)
        for step in (*_STEPS, math.inf):
            limit = min(self._first * (1 + step), most) if self._first > 0 else most
            if limit < self.bound_seconds:
                continue
            if not self.search(limit):
                return
            if self.best is not None or limit >= most:
                proved = self.best.seconds if self.best is not None else self._most
                self.bound_seconds = max(self.bound_seconds, self._surely(proved))
                return
            self.bound_seconds = max(self.bound_seconds, self._surely(limit))

    def _surely(self, seconds: float) -> float:
        """What no split is below where none was found below so many seconds."""
        return seconds if self._error <= ROUNDING * seconds else seconds - self._error

    def search(self, limit: float, most_work: int | None = None) -> bool:
        """Look for the best split of loads up to a limit; whether it came to an end, which it does
        not where the time is up or more stages than `most_work` were looked at."""
        self._chains.start()
        last = None if most_work is None else self.stages_seen + most_work
        is_done = False
        while not is_done:
            is_done = self._chains.advance(limit)
            is_late = perf_counter() > self._until or (last is not None and self.stages_seen > last)
            if is_late and not is_done:
                break
        seconds, stage_of_node, kind_of_stage = self._chains.result()
        if kind_of_stage:
            seconds = float(device_loads(self._problem, stage_of_node, kind_of_stage).max())
        if seconds < (self.best.seconds if self.best is not None else math.inf):
            self.best = Stages(
                stage_of_node=stage_of_node, kind_of_stage=kind_of_stage, seconds=seconds
            )
        return is_done


def _largest_load(problem: SplitProblem) -> float:
    """What no device's load can exceed."""
    wires = float(problem.wire_seconds.sum())
    loads = [
        float(kind.seconds[kind.seconds < math.inf].sum()) + kind.wire_share * wires
        for kind in problem.kinds
    ]
    return (1 + ROUNDING) * max(loads)
