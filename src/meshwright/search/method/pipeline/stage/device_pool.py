"""Pools of devices, and prices of theirs that bound the largest load of a split from below."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints
from meshwright.search.method.pipeline.stage.problem import SplitProblem


class Pools(NamedTuple):
    """How many devices of each pool are used, as one number."""

    counts: Ints
    """Devices of each pool."""
    pool_of_kind: Ints
    stride: Ints
    """A use takes `use // stride[p] % (counts[p] + 1)` devices of pool p."""
    used: npt.NDArray[np.int32]
    """The devices by use and pool: `used[use, pool]`."""


def make_pools(problem: SplitProblem) -> Pools:
    """The pools of a problem's kinds."""
    counts = _pool_counts(problem)
    names = list(counts)
    sizes = [count + 1 for count in counts.values()]
    stride = np.concatenate(([1], np.cumprod(sizes)[:-1])).astype(np.int32)
    uses = np.arange(count_uses(problem))
    used = uses[:, None] // stride[None, :] % np.array(sizes)[None, :]
    return Pools(
        counts=np.array(list(counts.values()), dtype=np.int32),
        pool_of_kind=np.array(
            [names.index(kind.pool or kind.name) for kind in problem.kinds], dtype=np.int32
        ),
        stride=stride,
        used=used.astype(np.int32),
    )


def count_uses(problem: SplitProblem) -> int:
    """How many numbers of devices by pool there are."""
    return math.prod(count + 1 for count in _pool_counts(problem).values())


def _pool_counts(problem: SplitProblem) -> dict[str, int]:
    """The devices of each pool, no more than as many stages as nodes can take."""
    counts: dict[str, int] = {}
    widths: dict[str, int] = {}
    for kind in problem.kinds:
        name = kind.pool or kind.name
        counts.setdefault(name, kind.count)
        widths[name] = max(widths.get(name, 1), kind.width)
    if problem.in_flight:  # a number for each device
        return counts
    return {name: min(each, widths[name] * problem.num_nodes) for name, each in counts.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolPrices:
    """Weights of nodes that bound the load from below.

    Stages of kind k and load at most T weigh at most T price(pool) width(k), so all nodes weigh at
    most T times the sum of price times devices, whatever the prices.
    """

    of_pool: Floats
    weight: Floats
    """What each node weighs."""
    bound_seconds: float
    """No split has a smaller largest load."""

    def capacity(self, pools: Pools) -> Floats:
        """Of every use, the price of the devices that it leaves."""
        left = pools.counts[None, :] - pools.used
        found: Floats = (left * self.of_pool[None, :]).sum(axis=1)
        return found


def find_prices(problem: SplitProblem, pools: Pools) -> PoolPrices:
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
    return PoolPrices(of_pool=best, weight=_weights(best, least), bound_seconds=bound)


def slowest_node_seconds(problem: SplitProblem) -> float:
    """The seconds of the node that takes longest, each where it is fastest: no load is below."""
    usable = [kind.seconds for kind in problem.kinds if kind.count >= kind.width]
    return float(np.min(usable, axis=0).max(initial=0.0))


def _weights(prices: Floats, least: Floats) -> Floats:
    weight: Floats = (prices[:, None] * least).min(axis=0)
    return weight


def _bound(prices: Floats, least: Floats, counts: Ints) -> float:
    capacity = float((prices * counts).sum())
    weight = float(_weights(prices, least).sum())
    return weight / capacity if capacity > 0 else np.inf if weight > 0 else 0.0
