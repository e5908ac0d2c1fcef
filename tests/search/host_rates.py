"""The best rates between hosts for a placement whose devices run their ops in a given order."""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.instance import Instance
from meshwright.search.method.bandwidth.rate.path import optimise_paths
from meshwright.search.method.bandwidth.rate.precedence import Walker
from meshwright.search.method.bandwidth.rate.rates import HostPairs, place_precedence
from meshwright.search.method.bandwidth.rate.room import even_rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRates:
    """The answer for one placement and order."""

    bytes_per_second: Floats
    """Source host x target host; zero where there is no way."""
    seconds: float
    """The time of the step with these rates."""
    bound_seconds: float
    """No rates give a shorter step, for this placement and order."""


def optimise_rates(
    instance: Instance,
    hosts: HostPairs,
    device_of_op: Ints,
    order: Ints,
    *,
    gap: float = 1e-3,
    start: Floats | None = None,
    floor: float = 1e-3,
) -> HostRates:
    """Rates under which this placement, in this (topological) order of ops, is fastest.

    `start`: rates (host x host) of an answer for a like placement, to begin with. `floor`: the part
    of every row that all pairs share alike, so that none has nothing; it costs as much of the time
    of transfers at most, and counts in `seconds`.
    """
    precedence = place_precedence(instance, hosts, device_of_op, order)
    begin = None if start is None else np.array([start[pair] for pair in hosts.pairs])
    found = optimise_paths(precedence, hosts.room, gap=gap, start=begin)
    rates, seconds = found.bytes_per_second, found.seconds
    if floor > 0 and len(rates):
        rates = (1.0 - floor) * rates + floor * even_rates(hosts.room)
        seconds = Walker(precedence).walk(rates)[0]
    table = np.zeros(hosts.number.shape)
    for pair, rate in zip(hosts.pairs, rates.tolist(), strict=True):
        table[pair] = rate
    return HostRates(
        bytes_per_second=table, seconds=seconds, bound_seconds=min(found.bound_seconds, seconds)
    )
