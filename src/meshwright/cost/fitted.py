"""Times the ops of captured graphs by models fitted to measured kernels.

Products, convolutions and attention by `product.py`; all else by the bytes it moves, each kind of
op at its own share of the memory bandwidth. Measured on an H200; on other types of device the
shares of peak FLOP/s (unless they have curves of their own) and bandwidth are taken to be the same,
and launches to take as long.
"""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats
from meshwright.cluster.cluster import DeviceType
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.a100 import A100
from meshwright.cost.curve import Calibration, Math, Stream
from meshwright.cost.h200 import H200
from meshwright.cost.multiplication import Products
from meshwright.cost.product import ITEM_BYTES, product_seconds
from meshwright.cost.stream import STREAMS, USUAL
from meshwright.graph.graph import Graph, Phase

_BIASED = "biased_"
_DROPS = "dropout_"
_LAST = "channels_last_"
_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm")
KINDS = dict.fromkeys(_MATMULS, Math.MATMUL) | {
    each.name.lower(): each for each in Math if each is not Math.MATMUL
}
CALIBRATIONS: dict[str, Calibration] = {"a100-40": A100, "a100-80": A100}
"""Device types whose products have curves of their own; all others follow the H200's."""
_LEAST_TERMS = 1e-100
"""Of a product, as files may have it: below this no rate of FLOPs to terms is a number."""
_UPDATE = "_fused_adamw_"
"""Stands for all optimisers with a kernel of their own: they move bytes."""
_FOREACH = "_foreach_adamw_"
"""Stands for all that update by one element-wise op after another, on lists of tensors."""
_STRIDED = "strided_mul"
"""Stands for element-wise ops that broadcast and were not measured."""
_SHARPNESS = 4.0
"""Exponent of the norm that joins moving bytes and adding terms."""
_CALIBRATED_BANDWIDTH = DEVICE_TYPES["h200"].memory_bytes_per_second
"""Of the device that `stream.py` was measured on."""


LEAST_SHARE = 1e-30
"""The least share of a batch that is timed: less than any plan runs an op on."""

_Ends = dict[int, tuple[DeviceType, Floats, Floats]]
_ENDS: WeakKeyDictionary[Graph, _Ends] = WeakKeyDictionary()
"""By type, the times at the graph's own batch and at almost no samples: they follow from frozen
data, and every other number of samples needs them. Types are kept with them, so that their identity
stays theirs."""


def fitted_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    """Time of every op for `samples` samples; NaN where the op was not captured from a framework.

    For a share of the graph's batch it is at most the time of the whole, at least that share of it,
    and at least the time at almost no samples: what bounds rely on. Kernels of sizes that grow with
    the batch have such times by themselves; sizes that a file makes up need not.
    """
    if samples >= graph.batch:
        return _seconds(graph, device_type, samples)
    by_type = _ENDS.setdefault(graph, {})
    if id(device_type) not in by_type:
        by_type[id(device_type)] = (
            device_type,
            _seconds(graph, device_type, graph.batch),
            _seconds(graph, device_type, graph.batch * LEAST_SHARE),
        )
    _, whole, least = by_type[id(device_type)]
    low = np.maximum(np.fmin(least, whole), whole * (samples / graph.batch))
    return np.clip(_seconds(graph, device_type, samples), low, whole)


def has_fitted_kinds(graph: Graph) -> Bools:
    """Whether each op is timed by a model of its own kind; others are timed as most kinds are.

    What moves no bytes takes no time, whatever its kind.
    """
    names, codes = graph.kind_codes
    kinds, _, _ = _product_kinds(graph)
    known = [find_stream(name, is_half) is not USUAL for name in names for is_half in (True, False)]
    is_known = np.reshape(np.array(known, dtype=np.bool_), (len(names), 2)).all(axis=1)
    moves_nothing = graph.bytes_read + graph.bytes_written == 0
    found: Bools = (is_known | (kinds >= 0))[codes] | moves_nothing
    return found & (graph.calls > 0)


def _seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    captured = graph.calls > 0
    if not captured.any():
        return np.full(graph.num_ops, np.nan)
    seconds = _stream_seconds(graph, device_type, samples)
    kinds, codes, extra = _product_kinds(graph)
    is_product = kinds[codes] >= 0
    terms = np.ones(graph.num_ops)
    for name in ("rows", "columns", "depth", "count"):
        terms *= graph.scaled(f"product_{name}", samples)
    is_product &= (graph.scaled("flops", samples) > 0) & (terms > _LEAST_TERMS)
    chosen = np.flatnonzero(is_product)
    if len(chosen):
        seconds[chosen] = _product_seconds(graph, device_type, samples, chosen, kinds[codes], extra)
    seconds[~captured] = np.nan
    return seconds


def _product_kinds(graph: Graph) -> tuple[npt.NDArray[np.int8], Any, Any]:
    """By distinct kind of op its product's kind (-1: none), each op's place there, and prefixes."""
    names, codes = graph.kind_codes
    plain = [name.removeprefix(_BIASED).replace(_DROPS, "").replace(_LAST, "") for name in names]
    kinds = np.array([KINDS.get(name, -1) for name in plain], dtype=np.int8)
    is_biased = np.array([name.startswith(_BIASED) for name in names])
    drops = np.array([_DROPS in name for name in names])
    is_last = np.array([_LAST in name for name in names])
    return kinds, codes, (is_biased[codes], drops[codes], is_last[codes])


def _product_seconds(
    graph: Graph,
    device_type: DeviceType,
    samples: float,
    chosen: Any,
    kinds: npt.NDArray[np.int8],
    extra: Any,
) -> Floats:
    is_biased, drops, is_last = extra
    size = {
        name: graph.scaled(f"product_{name}", samples)[chosen]
        for name in ("rows", "columns", "depth", "count")
    }
    precisions, codes = graph.precision_codes
    moved = graph.scaled("bytes_read", samples) + graph.scaled("bytes_written", samples)
    bias = _bias_bytes(graph, samples, chosen, kinds) * is_biased[chosen]
    peaks = np.array([device_type.peak_flops_per_second(name) for name in precisions])
    seconds = product_seconds(
        Products(
            kind=kinds[chosen],
            flops=graph.scaled("flops", samples)[chosen],
            bytes_moved=np.maximum(moved[chosen] - bias, 0.0),  # gradients may be expanded
            alignment=graph.product_alignment[chosen],
            precision=codes[chosen].astype(np.int64),
            precisions=precisions,
            drops=drops[chosen],
            is_last=is_last[chosen],
            **size,
        ),
        peaks[codes[chosen]],
        device_type.memory_bytes_per_second,
        CALIBRATIONS.get(device_type.name, H200),
    )
    launch = np.where(bias > 0, USUAL.launch_seconds, 0.0)
    added: Floats = seconds + launch + bias / (USUAL.share * device_type.memory_bytes_per_second)
    return added


def _bias_bytes(graph: Graph, samples: float, chosen: Any, kinds: npt.NDArray[np.int8]) -> Floats:
    """What a convolution's bias moves: its output read and written, or its gradient read."""
    results = (
        graph.scaled("product_rows", samples)[chosen]
        * graph.product_columns[chosen]
        * graph.product_count[chosen]
    )
    names, codes = graph.precision_codes
    sizes = np.array([float(ITEM_BYTES.get(name, 4)) for name in names])
    times = np.where(kinds[chosen] == Math.CONVOLUTION, 2.0, 1.0)
    bytes_moved: Floats = times * results * sizes[codes[chosen]]
    return bytes_moved


def _stream_seconds(graph: Graph, device_type: DeviceType, samples: float) -> Floats:
    names, codes = graph.kind_codes
    halves = np.array([ITEM_BYTES.get(name, 4) <= 2 for name in graph.precision_codes[0]])
    is_half = halves[graph.precision_codes[1]]
    launch, share, term = (
        np.where(
            is_half,
            np.array([getattr(find_stream(name, True), field) for name in names])[codes],
            np.array([getattr(find_stream(name, False), field) for name in names])[codes],
        )
        for field in ("launch_seconds", "share", "term_seconds")
    )
    moved = graph.scaled("bytes_read", samples) + graph.scaled("bytes_written", samples)
    bandwidth = device_type.memory_bytes_per_second
    moving = moved / (share * bandwidth)
    adding = graph.scaled("product_depth", samples) * term * (_CALIBRATED_BANDWIDTH / bandwidth)
    seconds = stream_seconds(moving, adding, launch)
    # All parameters are updated by one launch.
    seconds = np.where(graph.phase == Phase.UPDATE, seconds - launch, seconds)
    return np.where(moved > 0, seconds, 0.0)


def stream_seconds(moving: Floats, adding: Floats, launch: Floats | float) -> Floats:
    """Moving bytes and adding terms, mostly at once, after the launch."""
    larger = np.maximum(moving, adding)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(larger > 0, np.minimum(moving, adding) / larger, 0.0)
    seconds: Floats = larger * (1 + ratio**_SHARPNESS) ** (1 / _SHARPNESS) + launch
    return seconds


def find_stream(name: str, is_half: bool) -> Stream:
    """What a kind that only moves bytes is timed by."""
    name = _UPDATE if name.startswith("_fused_") and name.endswith("_") else name
    name = _FOREACH if name.startswith("_foreach_") else name
    like = _STRIDED if name.startswith("strided_") else name
    found = (
        STREAMS.get(kind, (None, None))[half]
        for kind, half in ((name, is_half), (name, not is_half), (like, is_half))
    )
    return next((each for each in found if each is not None), USUAL)
