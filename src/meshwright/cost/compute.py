"""Times ops on devices: measured where a measurement exists, else fitted, else the roofline.

Knows nothing about the network.
"""

from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.fitted import fitted_seconds, has_fitted_kinds
from meshwright.errors import InputError
from meshwright.graph.graph import ANY_TYPE, Graph, Split
from meshwright.graph.ladder import read_ladder
from meshwright.units import format_count

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")
_CLASSES = ("other", "product", "convolution", "attention", "_grouped_mm")
_CALL_SECONDS = np.array([
    [20e-6, 39e-6, 48e-6, 136e-6, 81e-6],
    [14e-6, 31e-6, 51e-6, 155e-6, 60e-6],
    [17e-6] * len(_CLASSES),
])  # fmt: skip
"""What the host takes for a call, by phase and class, a module's Python around it included: fitted
by `benchmarks/launch.py` to phases of steps of 13 models in three precisions on so few samples that
an H200 waited for its host, on three such machines (2026-11-18, torch 2.11, AdamW by `foreach`).
Such times vary by a third from run to run, and by half from host to host."""
_VIEW_SECONDS = np.array([0.0, 2e-6, 0.0])
"""Likewise of views, by phase."""

_MEMO_BYTES = 64 << 20
"""Times that are remembered of a graph."""

_MEMO: WeakKeyDictionary[Graph, OrderedDict[tuple[int, float], tuple[DeviceType, Floats]]] = (
    WeakKeyDictionary()
)
"""Times by type and samples, the latest last. They follow from frozen data; searches that simulate
hundreds of plans of one graph would spend most of their time on them otherwise. Types are kept with
them, so that their identity stays theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSources:
    """Where the times of ops come from: how many are known how, on all device types there are."""

    measured: int
    """On a device of the type, or whatever the type."""
    fitted: int
    """By models of their kind that were fitted to measured kernels of other sizes or types."""
    estimated: int
    """By a share of the memory bandwidth that most kinds reach, or by peak rates (roofline)."""

    def __str__(self) -> str:
        total = self.measured + self.fitted + self.estimated
        return (
            f"measured {self.measured:,}, fitted {self.fitted:,}, estimated {self.estimated:,} of "
            f"{format_count(total, 'op')}"
        )


def op_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    """Time of every op on that type for `samples` samples of the batch; infinity: cannot run.

    A time measured on the type comes first, then one that holds on any type, then the model fitted
    to measured kernels (for captured ops on devices that kernels are launched on), then the
    roofline.
    """
    if not 0 < samples < np.inf:
        raise InputError(f"graph {graph.name}: samples must be positive and finite, got {samples}")
    memo = _MEMO.setdefault(graph, OrderedDict())
    key = (id(device_type), samples)
    if key in memo:
        memo.move_to_end(key)
        return memo[key][1]
    seconds = _find_seconds(graph, device_type, samples)
    seconds.flags.writeable = False
    memo[key] = device_type, seconds
    while len(memo) > max(1, _MEMO_BYTES // max(1, seconds.nbytes)):
        memo.popitem(last=False)
    return seconds


def op_sources(graph: Graph, device_type: DeviceType) -> npt.NDArray[np.int8]:
    """How the time of each op is known on a type: 0 measured, 1 fitted, 2 estimated."""
    found = np.full(graph.num_ops, 2, dtype=np.int8)
    if device_type.is_asynchronous:
        found[has_fitted_kinds(graph)] = 1
    measured = measured_seconds(graph, device_type, graph.batch)
    if measured is not None:
        found[~np.isnan(measured)] = 0
    return found


def time_sources(graph: Graph, cluster: Cluster) -> TimeSources:
    """How the time of each op is known, on that type of the cluster on which it is known least."""
    worst = np.zeros(graph.num_ops, dtype=np.int8)
    for name in cluster.type_names:
        worst = np.maximum(worst, op_sources(graph, cluster.types[name]))
    counts = np.bincount(worst, minlength=3).tolist()
    return TimeSources(measured=counts[0], fitted=counts[1], estimated=counts[2])


def _find_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    measured = measured_seconds(graph, device_type, samples)
    if measured is None:
        return estimated_seconds(graph, device_type, samples)
    unknown = np.isnan(measured)
    if unknown.any():
        measured[unknown] = estimated_seconds(graph, device_type, samples)[unknown]
    return measured


def estimated_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    """What models of times say of each op, whether it has a measured time or not."""
    seconds = roofline_seconds(graph, device_type, samples)
    if not device_type.is_asynchronous:
        return seconds
    fitted = fitted_seconds(graph, device_type, samples)
    return np.where(np.isnan(fitted), seconds, fitted)


def measured_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats | None:
    """The measured times, NaN where there is none; None where the graph has none at all.

    Ops that split, at other samples than the graph's batch, take what their ladders say (see
    `meshwright.graph.ladder`). Without one they take as much more or less as the fitted model says,
    or in proportion where there is none.
    """
    seconds = None
    for name in (device_type.name, ANY_TYPE):
        if name in graph.seconds:
            whole = graph.seconds[name]
            own = whole * _growth(graph, device_type, samples)
            ladder = graph.ladders.get(name)
            if ladder and samples != graph.batch:
                read = read_ladder(whole, graph.batch, ladder, samples)
                own = np.where(np.isnan(read) | (graph.split == Split.NONE), own, read)
            seconds = own if seconds is None else np.where(np.isnan(seconds), own, seconds)
    return seconds


def _growth(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    """By what the time of each op is multiplied at other samples than the graph's batch."""
    growth = np.where(graph.split == Split.NONE, 1.0, samples / graph.batch)
    if samples != graph.batch and device_type.is_asynchronous:
        fitted = fitted_seconds(graph, device_type, samples)
        whole = fitted_seconds(graph, device_type, graph.batch)
        is_fitted = (fitted > 0) & (whole > 0) & (graph.split != Split.NONE)
        growth[is_fitted] = fitted[is_fitted] / whole[is_fitted]
    return growth


def host_seconds(graph: Graph, phase: npt.NDArray[np.int8] | None = None) -> Floats:
    """What the host takes to launch each op of a captured graph; zero for other ops.

    By the kind of its call, and for the views made since the call before. `phase`: that of each op,
    where it is not the graph's.
    """
    phase = graph.phase if phase is None else phase
    names, codes = graph.kind_codes
    classes = np.array([_CLASSES.index(call_class(name)) for name in names], dtype=np.int64)
    views = np.maximum(graph.calls - 1, 0.0)
    seconds: Floats = _CALL_SECONDS[phase, classes[codes]] + _VIEW_SECONDS[phase] * views
    return np.where(graph.calls > 0, seconds, 0.0)


def launch_shares(cluster: Cluster) -> Floats:
    """By type of device, what its hosts take for launches as a part of `host_seconds`; zero where
    hosts launch nothing."""
    types = (cluster.types[name] for name in cluster.type_names)
    return np.array([each.launch_share if each.is_asynchronous else 0.0 for each in types])


def call_class(kind: str) -> str:
    """Which calls take a host as long as those of a kind."""
    for name in ("convolution", "attention", "_grouped_mm"):
        if name in kind:
            return name
    return "product" if kind in _PRODUCTS else "other"


def roofline_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    """The larger of FLOPs over the peak rate and bytes moved over memory bandwidth, plus the calls
    of kernels on a device that runs ops itself.

    Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009: the attainable rate is the smaller
    of peak and intensity times bandwidth. It is a lower bound on the time of a real kernel.
    """
    names, codes = graph.precision_codes
    peaks = np.array([device_type.peak_flops_per_second(name) for name in names])
    moved = graph.scaled("bytes_read", samples) + graph.scaled("bytes_written", samples)
    computing = graph.scaled("flops", samples) / peaks[codes]
    working = np.maximum(computing, moved / device_type.memory_bytes_per_second)
    seconds: Floats = working + device_type.call_seconds * graph.calls
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
