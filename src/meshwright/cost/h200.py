"""Reads how an H200's kernels multiply matrices from `h200.json`, which is fitted to measurements.

The file says which command has made it, of which sweep. `benchmarks/calibrate.py` says how well it
fits; fields are explained in `curve.py`.
"""

from pathlib import Path

import msgspec

from meshwright.cost.curve import (
    AttentionCurve,
    Calibration,
    ConvolutionCurve,
    DepthwiseCurve,
    Math,
    MatmulCurve,
    StoredCurve,
)


class _Tables(msgspec.Struct):
    """The tables of a `Calibration` as rows: the parts of a key, and its curve."""

    multiprocessors: int
    matmul: list[tuple[str, bool, MatmulCurve]]
    convolution: list[tuple[str, str, bool, ConvolutionCurve]]
    depthwise: list[tuple[str, str, bool, DepthwiseCurve]]
    attention: list[tuple[str, str, AttentionCurve]]
    stored: list[tuple[str, StoredCurve]]


def read_calibration(path: Path) -> Calibration:
    """The curves of a file that `benchmarks/calibrate.py` has written."""
    tables = msgspec.json.decode(path.read_bytes(), type=_Tables)
    return Calibration(
        multiprocessors=tables.multiprocessors,
        matmul={(name, is_aligned): curve for name, is_aligned, curve in tables.matmul},
        convolution={
            (name, Math[kind], how): curve for name, kind, how, curve in tables.convolution
        },
        depthwise={(name, Math[kind], how): curve for name, kind, how, curve in tables.depthwise},
        attention={(name, Math[kind]): curve for name, kind, curve in tables.attention},
        stored={Math[kind]: curve for kind, curve in tables.stored},
    )


H200 = read_calibration(Path(__file__).with_name("h200.json"))
