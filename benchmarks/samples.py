"""Reads measured kernels as the products that the time model takes: sweeps and whole models."""

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.array import Floats
from meshwright.cost.curve import Math
from meshwright.cost.multiplication import Products
from meshwright.cost.product import ITEM_BYTES, SUM_BYTES
from meshwright.cost.stream import USUAL

EVENT_SECONDS = 1.4e-6
"""What a pair of events adds to a kernel (H200, 2026-11-15: an empty pair takes 1.25 us)."""
MEMORY_BYTES_PER_SECOND = 4.8e12
PEAKS = {"bf16": 989.5e12, "fp16": 989.5e12, "tf32": 494.5e12, "fp32": 67e12}
"""Dense FLOP/s of an H200 SXM (NVIDIA's data sheet)."""
ATTENTIONS = {"none": Math.ATTENTION, "causal": Math.CAUSAL_ATTENTION}
"""By how a sweep calls them; the rest have a mask."""
FORMULA = 0
"""Torch's number for attention that no fused kernel takes."""
BACKWARD = Math.ATTENTION_BACKWARD - Math.ATTENTION
"""From a kind of attention to its backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One kernel and its measured time."""

    kind: Math
    precision: str
    rows: int
    columns: int
    depth: int
    count: int
    multiple: int
    bytes_moved: float
    alignment: int
    seconds: float
    drops: bool = False
    is_last: bool = False
    source: str = ""
    """The line of a sweep, or the model, that it comes from."""
    calls: int = 1


def align(item_bytes: int, *elements: int) -> int:
    """Bytes, at most 16, that rows of so many elements start at a multiple of."""
    return min(math.gcd(each * item_bytes, 16) for each in elements)


def matmul_sample(
    precision: str, m: int, n: int, k: int, count: int, leading: Sequence[int], **more: Any
) -> Sample:
    """A product, with the elements between the rows of its three matrices."""
    item = ITEM_BYTES[precision]
    return Sample(
        kind=Math.MATMUL, precision=precision, rows=m, columns=n, depth=k, count=count, multiple=1,
        bytes_moved=count * (m * k + k * n + m * n) * item, alignment=align(item, *leading), **more,
    )  # fmt: skip


def convolution_sample(
    precision: str,
    source: Sequence[int],
    weight: Sequence[int],
    made: Sequence[int],
    stride: int,
    multiple: int,
    **more: Any,
) -> Sample:
    """A convolution by the shapes of its input, weight and output; multiple 0: forward."""
    item = ITEM_BYTES[precision]
    channels, window = weight[1], math.prod(weight[2:])
    groups = source[1] // channels
    columns = weight[0] // groups
    alignment = align(item, channels, columns)
    if window * stride == 1 and align(item, math.prod(made[2:])) < 16:
        alignment = min(alignment, 8)
    repeats = max(multiple, 1)
    held = repeats * (math.prod(source) + math.prod(weight)) + math.prod(made)
    return Sample(
        kind=Math.CONVOLUTION_BACKWARD if multiple else Math.CONVOLUTION, precision=precision,
        rows=made[0] * math.prod(made[2:]), columns=columns, depth=channels * window, count=groups,
        multiple=repeats, bytes_moved=held * item, alignment=alignment, **more,
    )  # fmt: skip


def attention_sample(
    kind: Math, precision: str, sizes: Sequence[int], mask_bytes: int, **more: Any
) -> Sample:
    """Attention of batch, heads, queries, keys and head size."""
    batch, heads, queries, keys, size = sizes
    is_backward = kind >= Math.ATTENTION_BACKWARD
    own = (4 if is_backward else 2) * (queries + keys) * size * ITEM_BYTES[precision]
    own = batch * heads * (own + queries * SUM_BYTES)
    return Sample(
        kind=kind, precision=precision, rows=queries, columns=keys, depth=size, count=batch * heads,
        multiple=5 if is_backward else 2, bytes_moved=own + mask_bytes,
        alignment=16, **more,
    )  # fmt: skip


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, compressed or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [json.loads(line) for line in file]


def read_sweep(path: Path) -> list[Sample]:
    """What `measure` timed; a text in place of a time says why there is none."""
    samples = []
    for number, row in enumerate(read_lines(path)):
        for sample, seconds in _sweep_samples(row):
            if isinstance(seconds, float):
                shift = seconds - EVENT_SECONDS
                samples.append(replace(sample, seconds=shift, source=str(number)))
    return samples


def _sweep_samples(row: dict[str, Any]) -> Iterator[tuple[Sample, Any]]:
    if row["kind"] in ("matmul", "bmm"):
        m, n, k = row["m"], row["n"], row["k"]
        leading = {"nt": (k, k, n), "ntb": (k, k, n), "nn": (k, n, n), "tn": (m, n, n)}
        yield (
            matmul_sample(row["dtype"], m, n, k, row["count"], leading[row["layout"]], seconds=0.0),
            row["seconds"],
        )
    elif row["kind"] == "conv":
        source = (row["N"], row["ci"], row["hw"], row["hw"])
        weight = (row["co"], row["ci"] // row["groups"], row["ks"], row["ks"])
        made = (row["N"], row["co"], row["ho"], row["ho"])
        has_both = "input" in row
        for name, multiple in (("forward", 0), ("backward", 2), ("weight", 1), ("input", 1)):
            sample = convolution_sample(
                row["dtype"], source, weight, made, row["stride"], multiple, seconds=0.0
            )
            if name == "input":
                sample = replace(sample, kind=Math.INPUT_CONVOLUTION_BACKWARD)
            yield sample, None if name == "backward" and has_both else row.get(name)
    elif row["kind"] == "attention" and row["how"] != "learnt":
        sizes = [row[name] for name in ("B", "H", "S", "Sk", "d")]
        item = ITEM_BYTES[row["dtype"]]
        scores = row["S"] * row["Sk"]
        mask_bytes = {"mask": row["B"] * scores, "full": scores * item}.get(row["how"], 0)
        kind = ATTENTIONS.get(row["how"], Math.MASKED_ATTENTION)
        is_stored = row.get("choice") == FORMULA
        drops = row.get("dropout", 0.0) > 0
        for name, shift in (("forward", 0), ("backward", BACKWARD)):
            sample = attention_sample(
                Math(kind + shift), row["dtype"], sizes, mask_bytes, seconds=0.0, drops=drops
            )
            if is_stored:
                stored = Math.STORED_ATTENTION_BACKWARD if shift else Math.STORED_ATTENTION
                sample = replace(sample, kind=stored)
            yield sample, row[name]


def read_models(path: Path) -> list[Sample]:
    """The products, convolutions and attention among the kernels of whole models."""
    samples = []
    for row in read_lines(path)[1:]:
        for each in row.get("calls", []):
            call = json.loads(each["call"])
            sample = _call_sample(call["op"].split(".")[1], call["args"])
            if sample is not None and isinstance(each["seconds"], float):
                precision = "tf32" if call.get("tf32") else sample.precision
                image = call["args"]["convolution_backward" in call["op"]]
                is_last = "convolution" in call["op"] and image["stride"][1] == 1
                sample = replace(sample, precision=precision, is_last=is_last)
                seconds = each["seconds"] - _bias_seconds(call, sample)
                samples.append(
                    replace(sample, seconds=seconds, source=row["row"], calls=each["count"])
                )
    return samples


def _bias_seconds(call: dict[str, Any], sample: Sample) -> float:
    """What the kernel takes that adds a convolution's bias, or sums its gradient."""
    name, args = call["op"].split(".")[1], call["args"]
    result = sample.rows * sample.columns * sample.count * ITEM_BYTES[sample.precision]
    if name == "convolution" and args[2] is not None:
        moved = 2 * result
    elif name == "convolution_backward" and args[10][2]:
        moved = result
    else:
        return 0.0
    return USUAL.launch_seconds + moved / (USUAL.share * MEMORY_BYTES_PER_SECOND)


def _call_sample(name: str, args: list[Any]) -> Sample | None:
    """A described call (`meshwright.capture.call`) as a sample without time."""
    if name in ("mm", "addmm", "bmm"):
        left, right = args[1:3] if name == "addmm" else args[:2]
        *batch, m, k = left["shape"]
        n = right["shape"][-1]
        leading = (max(left["stride"][-2:]), max(right["stride"][-2:]), n)
        return matmul_sample(_short(left), m, n, k, math.prod(batch), leading, seconds=0.0)
    if name == "convolution":
        source, weight, _, stride, padding, dilation = args[:6]
        sizes = source["shape"][2:], weight["shape"][2:], stride, padding, dilation
        image = [
            (size + 2 * pad - gap * (window - 1) - 1) // step + 1
            for size, window, step, pad, gap in zip(*sizes, strict=True)
        ]
        made = [source["shape"][0], weight["shape"][0], *image]
        return convolution_sample(
            _short(source), source["shape"], weight["shape"], made, stride[0], 0, seconds=0.0
        )
    if name == "convolution_backward":
        made, source, weight = (each["shape"] for each in args[:3])
        of_input, of_weight, _ = args[10]
        sample = convolution_sample(
            _short(args[0]), source, weight, made, args[4][0], of_input + of_weight, seconds=0.0
        )
        is_alone = of_input and not of_weight
        return replace(sample, kind=Math.INPUT_CONVOLUTION_BACKWARD) if is_alone else sample
    if name in ("attention", "attention_backward"):
        shift = 0 if name == "attention" else 1
        query, key = args[shift], args[shift + 1]
        mask, dropout, is_causal = args[3 * (1 + shift) :][:3]
        kind = ATTENTIONS["causal" if is_causal else "none"] if not mask else Math.MASKED_ATTENTION
        batch, heads, queries, size = query["shape"]
        if _short(query) == "fp32" and key["shape"][1] != heads:
            kind = Math(Math.STORED_ATTENTION - BACKWARD * shift + shift)
        item = 1 if mask and mask["dtype"] == "bool" else ITEM_BYTES[_short(query)]
        return attention_sample(
            Math(kind + BACKWARD * shift), _short(query),
            (batch, heads, queries, key["shape"][2], size),
            math.prod(mask["shape"]) * item if mask else 0, seconds=0.0, drops=dropout > 0,
        )  # fmt: skip
    return None


def _short(tensor: dict[str, Any]) -> str:
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[tensor["dtype"]]


def to_products(samples: Sequence[Sample]) -> Products:
    """Samples as the model takes them."""
    names = tuple(PEAKS)
    sizes: dict[str, Floats] = {
        name: np.array([getattr(each, name) for each in samples], dtype=np.float64)
        for name in ("rows", "columns", "depth", "count", "multiple", "bytes_moved", "alignment")
    }
    single = 2 * sizes["rows"] * sizes["columns"] * sizes["depth"] * sizes["count"]
    return Products(
        kind=np.array([each.kind for each in samples], dtype=np.int8),
        flops=single * sizes.pop("multiple"),
        precision=np.array([names.index(each.precision) for each in samples]),
        precisions=names,
        drops=np.array([each.drops for each in samples]),
        is_last=np.array([each.is_last for each in samples]),
        **sizes,
    )


def peaks_of(samples: Sequence[Sample]) -> Floats:
    """Peak FLOP/s of each."""
    return np.array([PEAKS[each.precision] for each in samples])
