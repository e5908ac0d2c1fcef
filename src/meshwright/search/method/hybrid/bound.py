"""A proven bound on the step of every plan of the hybrid search's scope."""

from math import inf

from meshwright.cost.layer.price import price_layer
from meshwright.plan.part import Recompute
from meshwright.search.method.hybrid.space import HybridSpace, list_samples


def space_bound(space: HybridSpace) -> float:
    """No plan of a space is faster, whatever its stages and schedule.

    Every sample passes every layer on some team, and its members are busy for as long as that
    takes: device-seconds a sample, at the best team and microbatch for that layer, divided by all
    devices. With several types of devices every second counts as one of the fastest type's.
    """
    stack, cluster = space.stack, space.cluster
    teams = list(dict.fromkeys(option.team for option in space.options))
    samples = list_samples(space)
    space.prices.prepare(teams, samples)
    total = 0.0
    for number, kind in enumerate(stack.kinds):
        least = inf
        for name in cluster.type_names:
            for team in teams:
                for size in samples:
                    cost = price_layer(kind, team, Recompute.NONE, cluster.types[name], size)
                    busy = cost.forward_seconds + cost.backward_seconds
                    least = min(least, busy * team.num_devices / size)
        total += least * stack.layers.count(number)
    return total * stack.graph.batch / cluster.num_devices
