"""An instance whose links are as slow as a plan makes them by using them at the same time."""

from dataclasses import replace

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind
from meshwright.search.instance import Instance
from meshwright.simulate.simulate import simulate

_SLOWED = 1.01
"""Times what transfers take alone, below which nothing counts as slowed."""


def contend(instance: Instance, plan: Plan, weight: float = 1.0) -> Instance | None:
    """The instance with bandwidths divided by the slow-down of their transfers to a power.

    By pairs of hosts, because the devices of a host share its ways out. None where nothing is slow.
    """
    host = instance.cluster.host_of
    slow = _slow_downs(instance, plan, host, len(instance.cluster.hosts))
    if slow.max(initial=1.0) < _SLOWED:
        return None
    return replace(instance, bandwidth=instance.bandwidth / slow[np.ix_(host, host)] ** weight)


def _slow_downs(instance: Instance, plan: Plan, host: Longs, num_hosts: int) -> Floats:
    """What transfers between each pair of hosts take together, over what they would take alone."""
    timeline = simulate(instance.graph, instance.cluster, plan, sharing="fair")
    rows = timeline.program.instructions
    sends = rows["kind"] == int(Kind.SEND)
    source, target = rows["device"][sends], rows["peer"][sends]
    alone = instance.latency[source, target]
    alone = alone + rows["bytes"][sends] / instance.bandwidth[source, target]
    taken = (np.asarray(timeline.finish) - np.asarray(timeline.start))[sends]
    pair = host[source] * num_hosts + host[target]
    least = np.bincount(pair, weights=alone, minlength=num_hosts**2)
    total = np.bincount(pair, weights=taken, minlength=num_hosts**2)
    slow: Floats = np.where(least > 0, np.maximum(total / np.maximum(least, 1e-300), 1.0), 1.0)
    return slow.reshape(num_hosts, num_hosts)
