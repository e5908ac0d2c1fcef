"""Divides the batch among replicas, by whole samples where it counts them."""

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part


def replicate(graph: Graph, cluster: Cluster, devices: Ints, shares: Floats) -> Part:
    """All ops on these devices."""
    is_equal = bool((shares == shares[0]).all())
    return Part(
        ops=graph.op_names,
        devices=tuple(cluster.devices[each].name for each in devices.tolist()),
        shares=() if is_equal else tuple(shares.tolist()),
    )


def divide_batch(batch: float, speed: Floats) -> Floats:
    """Shares in proportion to speed, in whole samples where the batch counts samples.

    What rounding down leaves goes one by one to the largest remainders; a share may be zero. A
    batch of one may be a profile that does not count samples, so it is divided freely.
    """
    shares: Floats = speed / speed.sum()
    if batch <= 1 or not float(batch).is_integer():
        return shares
    samples = np.floor(shares * batch + 1e-9)
    left = round(batch - samples.sum())
    order = np.argsort(-(shares * batch - samples), kind="stable")
    samples[order[:left]] += 1
    return samples / batch
