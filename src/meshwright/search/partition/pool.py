"""Pools of devices, and prices of theirs that bound the largest load of a split from below."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.search.partition.problem import Floats, Ints, SplitProblem


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
