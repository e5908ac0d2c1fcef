"""How much of a device's memory a plan may fill."""

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph

MEMORY_MARGIN = 0.05
"""Part of a device's memory that plans of captured graphs leave free.

Of 57 steps measured on an H200 (benchmarks/results) the predicted peak was 3.0% below the
allocator's at most, 0.5% off on average. Memory that the allocator has reserved and cannot use, the
CUDA context and other processes are not in the prediction.
"""


def usable_bytes(graph: Graph, cluster: Cluster) -> npt.NDArray[np.float64]:
    """What each device may hold: all but the margin; all of it for graphs of round figures."""
    margin = MEMORY_MARGIN if graph.calls.any() else 0.0
    usable: npt.NDArray[np.float64] = cluster.memory_bytes * (1 - margin)
    return usable
