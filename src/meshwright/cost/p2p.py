"""Times one transfer between two devices, alone on the network. Knows nothing about sharing."""

from typing import overload

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster

Floats = npt.NDArray[np.float64]


@overload
def transfer_seconds(cluster: Cluster, source: int, target: int, num_bytes: float) -> float: ...


@overload
def transfer_seconds(
    cluster: Cluster,
    source: npt.ArrayLike,
    target: npt.ArrayLike,
    num_bytes: npt.ArrayLike,
) -> Floats | float: ...


def transfer_seconds(
    cluster: Cluster,
    source: npt.ArrayLike,
    target: npt.ArrayLike,
    num_bytes: npt.ArrayLike,
) -> Floats | float:
    """Latency of the route plus bytes over its bandwidth; zero from a device to itself.

    Devices are given by number. Arrays broadcast against each other as NumPy's do.
    """
    sources, targets = np.broadcast_arrays(source, target)
    routes = cluster.routes_between(sources.ravel(), targets.ravel())
    latency, bandwidth = (
        each.reshape(sources.shape) for each in (routes.latency, routes.bandwidth)
    )
    # A device reaches itself at infinite bandwidth and no latency, so that its time is zero.
    seconds = latency + np.asarray(num_bytes, dtype=np.float64) / bandwidth
    return seconds if np.ndim(seconds) else float(seconds)
