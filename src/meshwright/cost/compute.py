"""Times ops on devices: measured where a measurement exists, else the roofline.

Knows nothing about the network, and nothing about kernels beyond their FLOPs and bytes.
"""

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import DeviceType
from meshwright.errors import InputError
from meshwright.graph.graph import ANY_TYPE, Graph, Split

Floats = npt.NDArray[np.float64]


def op_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    """Time of every op on that type for `samples` samples of the batch; infinity: cannot run.

    A time measured on the type comes first, then one that holds on any type, then the roofline.
    """
    if not 0 < samples < np.inf:
        raise InputError(f"graph {graph.name}: samples must be positive and finite, got {samples}")
    measured = _measured_seconds(graph, device_type.name, samples)
    if measured is None:
        return roofline_seconds(graph, device_type, samples)
    unknown = np.isnan(measured)
    if unknown.any():
        measured[unknown] = roofline_seconds(graph, device_type, samples)[unknown]
    return measured


def _measured_seconds(graph: Graph, type_name: str, samples: float) -> Floats | None:
    """The measured times, NaN where there is none; None where the graph has none at all.

    Times of ops that split grow in proportion to the samples: profiles record no fixed part.
    """
    seconds = graph.seconds.get(type_name)
    general = graph.seconds.get(ANY_TYPE)
    if seconds is None:
        seconds = general
    elif general is not None:
        seconds = np.where(np.isnan(seconds), general, seconds)
    if seconds is None:
        return None
    return seconds * np.where(graph.split == Split.NONE, 1.0, samples / graph.batch)


def roofline_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    """The larger of FLOPs over the peak rate and bytes moved over memory bandwidth.

    Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009: the attainable rate is the smaller
    of peak and intensity times bandwidth. It is a lower bound on the time of a real kernel.
    """
    names, codes = graph.precision_codes
    peaks = np.array([device_type.peak_flops_per_second(name) for name in names])
    moved = graph.scaled("bytes_read", samples) + graph.scaled("bytes_written", samples)
    computing = graph.scaled("flops", samples) / peaks[codes]
    seconds: Floats = np.maximum(computing, moved / device_type.memory_bytes_per_second)
    return seconds


def copy_seconds(
    bytes_read: float, device_type: DeviceType, bytes_written: float | None = None
) -> float:
    """Time to concatenate, split or sum on a device: bytes read and written over its bandwidth.

    A copy writes as much as it reads, which is meant when `bytes_written` is None; a sum of k
    tensors of m bytes reads k m and writes m.
    """
    written = bytes_read if bytes_written is None else bytes_written
    return (bytes_read + written) / device_type.memory_bytes_per_second
