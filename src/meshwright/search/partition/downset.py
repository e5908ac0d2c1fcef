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
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.compiled import compiled, inlined
from meshwright.search.partition.lattice import (
    Lattice,
    has_node,
    predecessors,
    successors,
    wires_of_nodes,
)
from meshwright.search.partition.problem import Floats, Ints, SplitProblem

_WORK = 2_000_000
"""Stages that the kernel looks at before it returns to have the clock looked at: under a second."""

_SAFE = 1 + 1e-12
"""Weights are sums of many numbers: none is left alone for their rounding."""

# What is known of a stage while it grows: seconds of wires that it cuts, of those that all larger
# stages cut too, its bytes, saved bytes, the least weight that it leaves out, its seconds by kind.
_CUT, _FIXED, _HELD, _SAVED, _LEFT_OUT, _SECONDS = range(6)

_MAX_CLOSURE = 4000
"""Nodes up to which it is worked out what must come after each; beyond, only the node counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pools:
    """How many devices of each pool are used, as one number."""

    counts: Ints
    """Devices of each pool."""
    pool_of_kind: Ints
    stride: Ints
    """Of a use: `use // stride[p] % (counts[p] + 1)` devices of pool p."""
    used: npt.NDArray[np.int32]
    """`used[use, pool]`."""


def make_pools(problem: SplitProblem) -> Pools:
    """The pools of a problem's kinds."""
    names = [kind.pool or kind.name for kind in problem.kinds]
    order = list(dict.fromkeys(names))
    counts = [problem.kinds[names.index(name)].count for name in order]
    sizes = [count + 1 for count in counts]
    stride = np.concatenate(([1], np.cumprod(sizes)[:-1])).astype(np.int32)
    uses = np.arange(int(np.prod(sizes)))
    used = uses[:, None] // stride[None, :] % np.array(sizes)[None, :]
    return Pools(
        counts=np.array(counts, dtype=np.int32),
        pool_of_kind=np.array([order.index(name) for name in names], dtype=np.int32),
        stride=stride,
        used=used.astype(np.int32),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """Weights of nodes that bound the load from below.

    Stages of kind k and load at most T weigh at most T price(pool) width(k), so all nodes weigh at
    most T times the sum of price times devices, whatever the prices.
    """

    of_pool: Floats
    weight: Floats
    """Of each node."""
    bound_seconds: float
    """No split has a smaller largest load."""

    def capacity(self, pools: Pools) -> Floats:
        """Of every use, the price of the devices that it leaves."""
        left = pools.counts[None, :] - pools.used
        found: Floats = (left * self.of_pool[None, :]).sum(axis=1)
        return found


def find_prices(problem: SplitProblem, pools: Pools) -> Prices:
    """Prices for a strong bound: coordinate ascent over ratios of the nodes' seconds."""
    cost = np.array([kind.width * kind.seconds for kind in problem.kinds])
    least = np.array(
        [cost[pools.pool_of_kind == pool].min(axis=0) for pool in range(len(pools.counts))]
    )
    prices = np.ones(len(pools.counts))
    total = np.where(np.isfinite(least), least, 0.0).sum(axis=1)
    ratios = (total.min() / total) if (total > 0).all() else prices.copy()
    candidates = [prices, ratios]
    best = max(candidates, key=lambda each: _bound(each, least, pools.counts))
    for _ in range(3):
        for pool in range(len(best)):
            with np.errstate(divide="ignore", invalid="ignore"):
                others = np.delete(best[:, None] * least, pool, axis=0)
                if not len(others):
                    continue
                even = others.min(axis=0) / least[pool]  # where the price makes a node indifferent
            even = even[np.isfinite(even) & (even > 0)]
            if not len(even):
                continue
            for price in np.quantile(even, np.linspace(0, 1, 33)).tolist():
                trial = best.copy()
                trial[pool] = price
                if _bound(trial, least, pools.counts) > _bound(best, least, pools.counts):
                    best = trial
    bound = _bound(best, least, pools.counts)
    return Prices(of_pool=best, weight=_weights(best, least), bound_seconds=bound)


def _weights(prices: Floats, least: Floats) -> Floats:
    weight: Floats = (prices[:, None] * least).min(axis=0)
    return weight


def _bound(prices: Floats, least: Floats, counts: Ints) -> float:
    capacity = float((prices * counts).sum())
    weight = float(_weights(prices, least).sum())
    return weight / capacity if capacity > 0 else np.inf if weight > 0 else 0.0


class Chains:
    """The dynamic programme under a limit; run it until it is done."""

    def __init__(self, problem: SplitProblem, lattice: Lattice) -> None:
        self._problem, self._lattice = problem, lattice
        self.pools = make_pools(problem)
        self.prices = find_prices(problem, self.pools)
        self._given = _arrays(problem, lattice, self.pools, self.prices)
        shape = (lattice.num_downsets, len(self.pools.used))
        self._best = np.empty(shape)
        self._from = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int16)
        self._state = np.zeros(2, dtype=np.int64)  # the next downset, stages looked at
        nodes, wires = problem.num_nodes, problem.num_wires
        self._stage = (
            np.empty(nodes, dtype=np.int32),
            np.empty(nodes, dtype=np.uint8),
            np.empty(nodes + 1, dtype=np.int32),
            np.empty((nodes + 1, 3), dtype=np.int32),
            np.empty((nodes + 1, _SECONDS + len(problem.kinds))),
            np.empty(wires, dtype=np.int32),
            np.empty(wires, dtype=np.int32),
        )
        self._uses = np.empty(shape[1], dtype=np.int32)

    @property
    def first_bound(self) -> float:
        """What no split can be below, known before any search."""
        usable = [kind.seconds for kind in self._problem.kinds if kind.count >= kind.width]
        return max(self.prices.bound_seconds, float(np.min(usable, axis=0).max(initial=0.0)))

    @property
    def stages_seen(self) -> int:
        """Stages that were looked at, in all runs."""
        return int(self._state[1])

    def start(self) -> None:
        """Forget what was found under another limit."""
        self._best.fill(np.inf)
        # With fewer stages less is in flight: the first devices may stay without one.
        self._best[0, : None if self._problem.in_flight else 1] = 0.0
        self._state[0] = 0

    def advance(self, limit: float) -> bool:
        """Look at some more downsets; whether all were looked at."""
        _advance(
            *self._given, limit, int(self._state[1]) + _WORK, (self._best, *self._from),
            self._state, self._stage, self._uses,
        )  # fmt: skip
        return bool(self._state[0] >= self._lattice.num_downsets - 1)

    def result(self) -> tuple[float, Ints, tuple[int, ...]]:
        """The least largest load found, and stage of every node and kind of every stage."""
        last = self._lattice.num_downsets - 1
        use = int(np.argmin(self._best[last]))
        value = float(self._best[last, use])
        stage_of_node = np.full(self._problem.num_nodes, -1, dtype=np.int32)
        if not np.isfinite(value):
            return value, stage_of_node, ()
        kinds: list[int] = []
        sets: list[int] = [last]
        while sets[-1] != 0:
            kind = int(self._from[1][sets[-1], use])
            kinds.append(kind)
            width = self._problem.kinds[kind].width
            before = int(self._from[0][sets[-1], use])
            use -= width * int(self.pools.stride[self.pools.pool_of_kind[kind]])
            sets.append(before)
        for stage, downset in enumerate(reversed(sets[:-1])):
            inside = _members(self._lattice, downset, self._problem.num_nodes)
            stage_of_node[inside & (stage_of_node < 0)] = stage
        return value, stage_of_node, tuple(reversed(kinds))


def _arrays(
    problem: SplitProblem, lattice: Lattice, pools: Pools, prices: Prices
) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
    """What the kernel is given, in tuples of arrays."""
    after, before, wires = successors(problem), predecessors(problem), wires_of_nodes(problem)
    kinds = problem.kinds
    return (
        (lattice.bits, lattice.step_start, lattice.step_node, lattice.step_to),
        (after.start, after.node, before.start, before.node),
        (wires.start, wires.node, problem.wire_start, problem.wire_node, problem.wire_seconds),
        (
            np.array([kind.seconds for kind in kinds]).reshape(len(kinds), -1),
            np.array([kind.memory_bytes for kind in kinds], dtype=np.float64),
            np.array([kind.wire_share for kind in kinds], dtype=np.float64),
            np.array([kind.width for kind in kinds], dtype=np.int32),
            pools.pool_of_kind,
        ),
        (pools.counts, pools.stride, pools.used, _flights(problem, pools), prices.capacity(pools)),
        (downset_weights(lattice, prices.weight), _weights_above(problem, prices.weight)),
        (problem.bytes, problem.saved_bytes),
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


def _members(lattice: Lattice, downset: int, num_nodes: int) -> npt.NDArray[np.bool_]:
    octets = lattice.bits[downset].astype("<u8").view(np.uint8)
    return np.unpackbits(octets, bitorder="little")[:num_nodes].astype(np.bool_)


def downset_weights(lattice: Lattice, weight: Floats) -> Floats:
    """What the nodes of each downset weigh."""
    found = np.zeros(lattice.num_downsets)
    _sum_weights(lattice.step_start, lattice.step_node, lattice.step_to, weight, found)
    return found


@compiled
def _sum_weights(step_start: Any, step_node: Any, step_to: Any, weight: Any, found: Any) -> None:
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
        for other in after.node[after.start[node] : after.start[node + 1]].tolist():
            below[node] |= below[other]
        found[node] = weight[below[node]].sum()
    return found


@compiled
def _advance(
    lattice: Any, graph: Any, wires: Any, kinds: Any, pools: Any, weights: Any, held: Any,
    limit: float, until: int, table: Any, state: Any, stage: Any, uses: Any,
) -> None:  # fmt: skip
    """Let every downset be what is done before the next stage, until so many stages were seen."""
    while state[0] < len(table[0]) - 1 and state[1] < until:
        here = state[0]
        state[0] += 1
        num_uses, least = _find_uses(here, kinds, pools, weights, limit, table, uses)
        if num_uses > 0 and least < np.inf:
            _grow_stages(
                here, lattice, graph, wires, kinds, pools, weights, held, limit, table, state,
                stage, uses, num_uses, least,
            )  # fmt: skip


@inlined
def _find_uses(
    here: Any, kinds: Any, pools: Any, weights: Any, limit: Any, table: Any, uses: Any
) -> Any:
    """The uses of devices with which this downset may be part of a split, and the least weight of a
    downset after the next stage."""
    width, pool = kinds[3], kinds[4]
    counts, stride, used, _, capacity = pools
    best, weight = table[0], weights[0]
    total = weight[len(weight) - 1]
    num_uses, least = 0, np.inf
    for use in range(best.shape[1]):
        if best[here, use] > limit:
            continue
        if total - weight[here] > limit * capacity[use] * _SAFE:
            continue
        uses[num_uses] = use
        num_uses += 1
        for kind in range(len(width)):
            if used[use, pool[kind]] + width[kind] <= counts[pool[kind]]:
                left = capacity[use + width[kind] * stride[pool[kind]]]
                least = min(least, total - limit * left * _SAFE)
    return num_uses, least


@inlined
def _grow_stages(
    here: Any, lattice: Any, graph: Any, wires: Any, kinds: Any, pools: Any, weights: Any,
    held: Any, limit: Any, table: Any, state: Any, stage: Any, uses: Any, num_uses: Any, least: Any,
) -> None:  # fmt: skip
    """Meet every stage that may follow a downset once, depth first, and keep what is better."""
    step_start, step_node, step_to = lattice[1], lattice[2], lattice[3]
    after_start, after_node = graph[0], graph[1]
    weight, weight_above = weights
    total = weight[len(weight) - 1]
    missing, _, ready, path, sums, count, _ = stage
    length = _empty_stage(here, lattice, graph, wires, stage)
    depth, at, there = 0, 0, here
    while True:
        if at < length and total - sums[depth, _LEFT_OUT] >= least:
            node = ready[at]
            state[1] += 1
            if _take(node, depth, wires, kinds, held, limit, stage):
                depth += 1
                path[depth, 0], path[depth, 1], path[depth, 2] = at, length, there
                for step in range(step_start[there], step_start[there + 1]):
                    if step_node[step] == node:
                        there = step_to[step]
                        break
                if weight[there] >= least:
                    _keep(
                        here,
                        there,
                        depth,
                        kinds,
                        pools,
                        weight,
                        limit,
                        table,
                        stage,
                        uses,
                        num_uses,
                    )
                for edge in range(after_start[node], after_start[node + 1]):
                    other = after_node[edge]
                    missing[other] -= 1
                    if missing[other] == 0:
                        ready[length] = other
                        length += 1
                at += 1
                continue
        elif depth == 0:
            break
        else:  # take back what was left out at this depth, then the node that led here
            for place in range(path[depth, 0] + 1, at):
                _block(ready[place], -1, wires, stage)
            at, length, there = path[depth, 0], path[depth, 1], path[depth, 2]
            node = ready[at]
            for edge in range(after_start[node], after_start[node + 1]):
                missing[after_node[edge]] += 1
            depth -= 1
        for edge in range(wires[0][node], wires[0][node + 1]):
            count[wires[1][edge]] -= 1
        sums[depth, _FIXED] += _block(node, 1, wires, stage)  # left out for good, at this depth
        sums[depth, _LEFT_OUT] = max(sums[depth, _LEFT_OUT], weight_above[node])
        at += 1


@inlined
def _empty_stage(here: Any, lattice: Any, graph: Any, wires: Any, stage: Any) -> Any:
    """Prepare the stage without nodes; returns how many nodes are ready."""
    bits, step_start, step_node, _ = lattice
    before_start, before_node = graph[2], graph[3]
    wire_start, wire_node = wires[2], wires[3]
    missing, is_in, ready, _, sums, count, blocked = stage
    for node in range(len(is_in)):
        is_in[node] = 1 if has_node(bits, here, node) else 0
    for node in range(len(missing)):
        missing[node] = 0
        for edge in range(before_start[node], before_start[node + 1]):
            missing[node] += 1 - is_in[before_node[edge]]
    for wire in range(len(count)):
        count[wire] = 0
        blocked[wire] = 0
        for pin in range(wire_start[wire], wire_start[wire + 1]):
            blocked[wire] += is_in[wire_node[pin]]
    length = 0
    for step in range(step_start[here], step_start[here + 1]):
        ready[length] = step_node[step]
        length += 1
    for column in range(sums.shape[1]):
        sums[0, column] = 0.0
    return length


@inlined
def _take(node: Any, depth: Any, wires: Any, kinds: Any, held: Any, limit: Any, stage: Any) -> Any:
    """Add a node to the stage; whether some kind of device may run it or what contains it."""
    seconds, memory, share = kinds[0], kinds[1], kinds[2]
    wires_start, wires_wire, wire_start, _, wire_seconds = wires
    sums, count, blocked = stage[4], stage[5], stage[6]
    cut, fixed = sums[depth, _CUT], sums[depth, _FIXED]
    for edge in range(wires_start[node], wires_start[node + 1]):
        wire = wires_wire[edge]
        count[wire] += 1
        if count[wire] == 1:
            cut += wire_seconds[wire]
            if blocked[wire] > 0:
                fixed += wire_seconds[wire]
        if count[wire] == wire_start[wire + 1] - wire_start[wire]:
            cut -= wire_seconds[wire]
    below = depth + 1
    sums[below, _CUT], sums[below, _FIXED] = cut, fixed
    sums[below, _HELD] = sums[depth, _HELD] + held[0][node]
    sums[below, _SAVED] = sums[depth, _SAVED] + held[1][node]
    sums[below, _LEFT_OUT] = sums[depth, _LEFT_OUT]
    may_grow = False
    for kind in range(len(memory)):
        load = sums[depth, _SECONDS + kind] + seconds[kind, node]
        sums[below, _SECONDS + kind] = load
        if load + share[kind] * fixed <= limit and sums[below, _HELD] <= memory[kind]:
            may_grow = True
    return may_grow


@inlined
def _block(node: Any, by: Any, wires: Any, stage: Any) -> Any:
    """Leave a node out, or take that back (-1); the seconds of wires that this cuts for good."""
    wires_start, wires_wire, wire_seconds = wires[0], wires[1], wires[4]
    count, blocked = stage[5], stage[6]
    fixed = 0.0
    for edge in range(wires_start[node], wires_start[node + 1]):
        wire = wires_wire[edge]
        blocked[wire] += by
        if blocked[wire] == 1 and count[wire] > 0:
            fixed += wire_seconds[wire]
    return fixed


@inlined
def _keep(
    here: Any, there: Any, depth: Any, kinds: Any, pools: Any, weight: Any, limit: Any, table: Any,
    stage: Any, uses: Any, num_uses: Any,
) -> None:  # fmt: skip
    """Let the stage between two downsets be the next one, where that is better."""
    _, memory, share, width, pool = kinds
    counts, stride, used, flights, capacity = pools
    best, from_downset, from_kind = table
    sums = stage[4]
    total = weight[len(weight) - 1]
    for kind in range(len(memory)):
        load = sums[depth, _SECONDS + kind] + share[kind] * sums[depth, _CUT]
        if load > limit:
            continue
        for number in range(num_uses):
            use = uses[number]
            after = use + width[kind] * stride[pool[kind]]
            if used[use, pool[kind]] + width[kind] > counts[pool[kind]]:
                continue
            if sums[depth, _HELD] + flights[use] * sums[depth, _SAVED] > memory[kind]:
                continue
            if total - weight[there] > limit * capacity[after] * _SAFE:
                continue
            value = max(best[here, use], load)
            if value < best[there, after]:
                best[there, after] = value
                from_downset[there, after] = here
                from_kind[there, after] = kind
