"""Fits the time model of matrix products, convolutions and attention to a device's kernels.

    python benchmarks/calibrate.py measure -o FILE         on the CUDA machine: torch is enough
    python benchmarks/calibrate.py fit --sweeps FILE ... --models FILE ... -o FILE
        anywhere: needs SciPy

`measure` times kernels of random sizes on cold inputs, one JSON object a line (`sweep.py`). `fit`
takes those and the kernels of whole models (`fidelity.py measure`), writes the constants as
JSON and prints their errors: on a quarter that it does not see, on all, by model.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from calibrate_render import render
from meshwright.array import Floats
from meshwright.cost.curve import (
    AttentionCurve,
    Calibration,
    ConvolutionCurve,
    DepthwiseCurve,
    Grid,
    Math,
    MatmulCurve,
    Roof,
    StoredCurve,
)
from meshwright.cost.product import (
    CONVOLUTIONS,
    STORED,
    Key,
    ProductWork,
    attention_seconds,
    backward_seconds,
    convolution_seconds,
    depthwise_seconds,
    group,
    matmul_seconds,
    prepare,
    product_seconds,
    stored_seconds,
)
from samples import (
    MEMORY_BYTES_PER_SECOND,
    Sample,
    peaks_of,
    read_lines,
    read_models,
    read_sweep,
    to_products,
)

Curve = TypeVar("Curve", MatmulCurve, ConvolutionCurve, DepthwiseCurve, AttentionCurve, StoredCurve)

PRECISIONS = ("fp32", "tf32", "bf16")
MULTIPROCESSORS = 132
"""Of an H200, as its peak FLOP/s in `samples.py`."""

# Where the fits start, and the tiles that they may use. Of the sets of tiles tried these did best
# on held-out rows; more tiles than two overlap and add nothing.
GRID = Grid(
    tiles=((128, 128), (64, 64)), shares=(0.6, 0.6), rounding=0.5, prologue=64.0, split_bytes=8.0
)
NARROW = replace(GRID, tiles=((128, 128), (128, 32), (64, 64)), shares=(0.6, 0.6, 0.6))
ROOF = Roof(memory=1.2, sharpness=2.0, launch_seconds=4e-6)
MATMUL = MatmulCurve(grid=GRID, roof=ROOF, misaligned=(1.5, 1.5, 2.0))
MATMULS = {
    ("bf16", True): replace(MATMUL, grid=replace(GRID, tiles=((64, 64),), shares=(0.7,))),
    ("fp32", True): replace(MATMUL, grid=replace(GRID, tiles=((128, 128), (64, 32)))),
}
CONVOLUTION = ConvolutionCurve(
    grid=GRID, roof=ROOF, misaligned=1.4, misaligned_memory=1.4, taps_power=0.05
)
BACK = replace(CONVOLUTION, data_share=0.8, data_taps_power=0.05, data_memory=0.9)
DEPTHWISE = DepthwiseCurve(share=0.02, memory=2.0, launch_seconds=5e-6)
ATTENTION = AttentionCurve(
    tile=(128, 128, 16), share=0.7, rounding=0.7, score_terms=40.0, dropout_terms=40.0,
    prologue_keys=50.0, roof=replace(ROOF, launch_seconds=1e-5),
)  # fmt: skip
STORES = {
    Math.STORED_ATTENTION: StoredCurve(
        products=2, memory=8.0, dropout_memory=3.0, launch_seconds=6e-5
    ),
    Math.STORED_ATTENTION_BACKWARD: StoredCurve(
        products=4, memory=4.0, dropout_memory=2.0, launch_seconds=8e-5
    ),
}
DIRECTIONS = {
    Math.CONVOLUTION: (Math.CONVOLUTION,),
    Math.CONVOLUTION_BACKWARD: (Math.CONVOLUTION_BACKWARD, Math.INPUT_CONVOLUTION_BACKWARD),
}
"""Of convolutions: the kinds that follow one curve."""
ATTENTION_TILES = tuple((each, each, size) for each in (32, 64, 128) for size in (16, 32, 64))


# Fields that lie between 0 and 1, and those above 1; the others are positive.
BETWEEN = ("shares", "share", "rounding", "data_share")
ABOVE_ONE = ("misaligned", "misaligned_memory", "sharpness")


def fitted_fields(curve: Any) -> list[str]:
    """Tiles are chosen, not fitted; what is at its default does not apply."""
    return [
        field.name
        for field in fields(curve)
        if not field.name.startswith(("tile", "products"))
        and getattr(curve, field.name) != field.default
    ]


def pack(curve: Any, name: str = "") -> list[float]:
    """The numbers of a curve that are fitted, each mapped to the whole line."""
    if is_dataclass(curve):
        return [
            number
            for field in fitted_fields(curve)
            for number in pack(getattr(curve, field), field)
        ]
    if isinstance(curve, tuple):
        return [number for each in curve for number in pack(each, name)]
    if name in BETWEEN:
        return [math.log(curve / (1 - curve))]
    return [math.log(curve - 1 if name in ABOVE_ONE else curve)]


def unpack(numbers: Iterator[float], like: Any, name: str = "") -> Any:
    """The curve of those numbers."""
    if is_dataclass(like):
        changes = {
            field: unpack(numbers, getattr(like, field), field) for field in fitted_fields(like)
        }
        return replace(like, **changes)  # type: ignore[type-var]
    if isinstance(like, tuple):
        return tuple(unpack(numbers, each, name) for each in like)
    number = min(max(next(numbers), -40.0), 40.0)
    if name in BETWEEN:
        return 1 / (1 + math.exp(-number))
    return math.exp(number) + (name in ABOVE_ONE)


def fit_curve(
    start: Curve,
    work: ProductWork,
    seconds: Floats,
    model: Callable[[ProductWork, Curve], Floats],
    width: float,
) -> tuple[Curve, float]:
    """The curve nearest the measurements, and how far from them it is.

    Errors are of the logarithm, so that none is over- or underestimated by preference; those above
    `width` count less than their square, as libraries at times choose a bad kernel. Long kernels
    weigh more: a step's time is mostly theirs.
    """
    from scipy.optimize import least_squares  # not needed to measure

    weight = np.sqrt(np.clip(seconds / 40e-6, 0.05, 2.0))
    origin = np.array(pack(start))
    # a weak pull to the start keeps what the data do not tell from drifting off
    pull = 0.003 * math.sqrt(len(seconds))

    def errors(numbers: Floats) -> Floats:
        predicted = model(work, unpack(iter(numbers), start))
        return np.concatenate((weight * np.log(predicted / seconds), pull * (numbers - origin)))

    found = least_squares(
        errors, origin, loss="soft_l1", f_scale=width, diff_step=1e-3, max_nfev=200
    )
    return unpack(iter(found.x), start), float(found.cost)


def fit_calibration(samples: Sequence[Sample]) -> Calibration:
    """All curves, each from its own samples."""
    products = to_products(samples)
    blank = Calibration(
        multiprocessors=MULTIPROCESSORS, matmul={}, convolution={}, depthwise={}, attention={},
        stored={},
    )  # fmt: skip
    work = prepare(products, peaks_of(samples), MEMORY_BYTES_PER_SECOND, blank)
    seconds = np.array([each.seconds for each in samples])
    found: dict[str, dict[Any, Any]] = {
        name: {} for name in ("matmul", "convolution", "depthwise", "attention", "stored")
    }
    groups = dict(group(products, work))
    for key, chosen in groups.items():
        mine = work.only(chosen), seconds[chosen]
        if key.kind == Math.MATMUL:
            start = MATMULS.get((key.precision, key.is_direct), MATMUL)
            curve, _ = fit_curve(start, *mine, matmul_seconds, 0.15)
            found["matmul"][key.precision, key.is_direct] = curve
        elif key.kind in DIRECTIONS:
            kinds = DIRECTIONS[key.kind]
            same = [groups.get(replace(key, kind=kind), chosen[:0]) for kind in kinds]
            dense = np.concatenate(same)
            dense = dense[(work.columns[dense] > 1) & ~products.is_last[dense]]
            found["convolution"][key.precision, key.kind, key.is_direct] = fit_convolution(
                key, work.only(dense), seconds[dense], products.kind[dense]
            )
        elif key.kind in STORED:
            continue  # after the products that they are made of
        elif key.kind >= Math.ATTENTION:
            found["attention"][key.precision, key.kind] = fit_attention(key, *mine)
    is_alone = (work.columns == 1) & (work.count > 1) & (work.multiple < 2)
    names = np.array([each.precision for each in samples])
    for kind, precision, is_last in product(CONVOLUTIONS, PRECISIONS, (False, True)):
        mine = is_alone & (products.kind == kind) & (names == precision)
        chosen = np.flatnonzero(mine & (products.is_last == is_last))
        found["depthwise"][precision, kind, is_last], _ = fit_curve(
            DEPTHWISE, work.only(chosen), seconds[chosen],
            partial(_depthwise, kind), 0.2,
        )  # fmt: skip
    for kind, usual in STORES.items():
        chosen = groups[Key(kind, "fp32", is_direct=True)]
        matmul = found["matmul"]["fp32", True]
        found["stored"][kind], _ = fit_curve(
            usual, work.only(chosen), seconds[chosen],
            partial(_stored, matmul), 0.2,
        )  # fmt: skip
    return Calibration(multiprocessors=MULTIPROCESSORS, **found)


def _depthwise(kind: Math, work: ProductWork, curve: DepthwiseCurve) -> Floats:
    return depthwise_seconds(work, curve, kind)


def _stored(matmul: MatmulCurve, work: ProductWork, curve: StoredCurve) -> Floats:
    return stored_seconds(work, curve, matmul)


def fit_convolution(
    key: Key, work: ProductWork, seconds: Floats, kinds: npt.NDArray[np.int8]
) -> ConvolutionCurve:
    """In fp32 windows go by Winograd's or Fourier's transforms, and choices vary more."""
    start = CONVOLUTION if key.kind == Math.CONVOLUTION else BACK
    width = 0.2
    if key.precision == "fp32" and key.kind == Math.CONVOLUTION:
        start = replace(start, grid=NARROW)
    if key.precision == "fp32" and not key.is_direct:
        start = replace(start, transform_share=1.5, transform_memory=5.0)
        width = 0.5
        if key.kind != Math.CONVOLUTION:
            start = replace(start, data_transform_share=1.5, data_transform_memory=5.0)
    inputs = np.flatnonzero(kinds == Math.INPUT_CONVOLUTION_BACKWARD)
    alone = replace(key, kind=Math.INPUT_CONVOLUTION_BACKWARD)

    def model(work: ProductWork, curve: ConvolutionCurve) -> Floats:
        found = backward_seconds(work, key, lambda one, each: convolution_seconds(one, curve, each))
        found[inputs] = convolution_seconds(work.only(inputs), curve, alone)
        return found

    return fit_curve(start, work, seconds, model, width)[0]


def fit_attention(key: Key, work: ProductWork, seconds: Floats) -> AttentionCurve:
    """The best of the tiles.

    Short runs backward hold autograd's host time at times: the sweep of 2026-11-15 has like sizes
    at 36 and at 300 us. So misses count little, and no launch is above the shortest run.
    """
    width = 0.1 if key.kind >= Math.ATTENTION_BACKWARD else 0.2
    is_masked = key.kind in (Math.MASKED_ATTENTION, Math.MASKED_ATTENTION_BACKWARD)
    start = replace(ATTENTION, mask_memory=10.0) if is_masked else ATTENTION

    def bounded(curve: AttentionCurve) -> AttentionCurve:
        least = min(curve.roof.launch_seconds, float(seconds.min()))
        return replace(curve, roof=replace(curve.roof, launch_seconds=least))

    fits = [
        fit_curve(
            replace(start, tile=tile), work, seconds,
            lambda w, c: attention_seconds(w, bounded(c), key.kind), width,
        )
        for tile in ATTENTION_TILES
    ]  # fmt: skip
    return bounded(min(fits, key=lambda each: each[1])[0])


def predict(samples: Sequence[Sample], calibration: Calibration) -> Floats:
    """Seconds of each sample on the device of the sweep."""
    peaks = peaks_of(samples)
    return product_seconds(to_products(samples), peaks, MEMORY_BYTES_PER_SECOND, calibration)


def report_samples(samples: Sequence[Sample], calibration: Calibration) -> None:
    """Errors by class and precision."""
    predicted = predict(samples, calibration)
    seconds = np.array([each.seconds for each in samples])
    labels = np.array([f"{each.precision} {each.kind.name.lower()}" for each in samples])
    error = np.abs(predicted / seconds - 1)
    for label in dict.fromkeys(labels.tolist()):
        long = (labels == label) & (seconds > 20e-6)
        if long.any():
            middle, most = np.percentile(error[long], (50, 90))
            total = predicted[long].sum() / seconds[long].sum()
            print(
                f"  {label:34} {long.sum():4} above 20 us: median error {middle:5.1%}, "
                f"nine tenths below {most:6.1%}, sum {total:5.2f} of measured"
            )


def report_models(samples: Sequence[Sample], calibration: Calibration) -> None:
    """Predicted over measured, by model and class."""
    predicted = predict(samples, calibration)
    classes = {
        "matmul": (Math.MATMUL,),
        "convolution": CONVOLUTIONS,
        "attention": tuple(each for each in Math if each >= Math.ATTENTION),
    }
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in classes}
    for model in dict.fromkeys(each.source for each in samples):
        line = f"  {model:26}"
        for name, kinds in classes.items():
            mine = [i for i, each in enumerate(samples) if each.source == model]
            mine = [i for i in mine if samples[i].kind in kinds]
            measured = sum(samples[i].calls * samples[i].seconds for i in mine)
            if measured:
                ratio = sum(samples[i].calls * predicted[i] for i in mine) / measured
                errors[name].append((abs(ratio - 1), measured))
                line += f"  {name} {measured * 1e3:8.2f} ms x{ratio:5.2f}"
        print(line)
    for name, found in errors.items():
        error, weight = np.array(found).T
        mean = np.average(error, weights=weight)
        print(f"  {name}: mean error of {len(found)} models {error.mean():.1%}, by time {mean:.1%}")


def fit(sweeps: Sequence[Path], models: Sequence[Path], output: Path | None) -> None:
    """Fit, report, and write the constants."""
    whole = [sample for each in models for sample in read_models(each)]
    samples = [sample for each in sweeps for sample in read_sweep(each)] + whole
    draw = random.Random(0)
    lines = dict.fromkeys(each.source for each in samples)
    held = {line for line in lines if draw.random() < 0.25}
    print("Held out, a quarter of the sweep and of the models:")
    known = fit_calibration([each for each in samples if each.source not in held])
    report_samples([each for each in samples if each.source in held], known)
    calibration = fit_calibration(samples)
    print("Fitted, all:")
    report_samples(samples, calibration)
    print("Kernels of whole models, fitted:")
    report_models(whole, calibration)
    if output is not None:
        files = ["--sweeps", *map(str, sweeps), "--models", *map(str, models)]
        command = " ".join(["python benchmarks/calibrate.py fit", *files, f"-o {output}"])
        output.write_text(render(calibration, command, read_lines(sweeps[0])[0]))


def main() -> None:
    """Measure or fit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="time kernels, on a CUDA device")
    measuring.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    measuring.add_argument("--classes", action="store_true", help="what the first sweep lacks")
    fitting = commands.add_parser("fit", help="fit the constants to a sweep and models' kernels")
    fitting.add_argument("--sweeps", type=Path, nargs="+", required=True)
    fitting.add_argument(
        "--models", type=Path, nargs="+", required=True, help="as fidelity.py measures them"
    )
    fitting.add_argument("-o", dest="output", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        from sweep import measure  # needs torch, which a fit does not

        measure(arguments.output, has_classes=arguments.classes)
    else:
        fit(arguments.sweeps, arguments.models, arguments.output)


if __name__ == "__main__":
    main()
