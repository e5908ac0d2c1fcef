"""Proves that no rates are faster than so many seconds. Knows nothing of how they were found.

Of weights over paths that add up to one and of a price for each row, both not negative: the step
takes at least the weighted mean of the paths, sum of c + w/b over pairs, where c is the mean
constant and w the pair's mean amount. To every pair add and subtract its rate times its price m,
that of the cheapest of its ways. w/b + m b is never below 2 sqrt(w m), whatever b is, and what is
subtracted is never more than the rows' rates at their prices, since rows are never more than full.
"""

import numpy as np

from meshwright.array import Floats
from meshwright.search.method.bandwidth.rate.dense import product
from meshwright.search.method.bandwidth.rate.precedence import Paths
from meshwright.search.method.bandwidth.rate.room import RateRoom


def certify(paths: Paths, room: RateRoom, weights: Floats, prices: Floats) -> float:
    """The seconds that no rates go below, by weights of paths and prices of rows.

    Holds for any weights and prices that are not negative; good ones come from an optimum. Prices
    are in seconds for each byte a second.
    """
    assert bool(np.all(weights >= 0)) and bool(np.all(prices >= 0))
    share = weights / weights.sum()
    constant = float(share @ paths.constants)
    amounts = product(paths.amounts.T, share)
    price = np.minimum.reduceat(product(room.rows.T, prices), room.way_start)
    return constant + float(2.0 * np.sqrt(amounts * price).sum() - prices @ room.bytes_per_second)


def scale_prices(paths: Paths, room: RateRoom, weights: Floats, prices: Floats) -> Floats:
    """The multiple of the prices that proves most: of 2 s sqrt(x) - p x at x = (s / p)^2."""
    amounts = product(paths.amounts.T, weights) / weights.sum()
    price = np.minimum.reduceat(product(room.rows.T, prices), room.way_start)
    gain, cost = float(np.sqrt(amounts * price).sum()), float(prices @ room.bytes_per_second)
    return prices * (gain / cost) ** 2 if cost > 0 else prices
