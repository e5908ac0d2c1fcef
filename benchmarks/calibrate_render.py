"""Writes the constants that `calibrate.py` has fitted as a Python module. Knows nothing of fits."""

import textwrap
from dataclasses import fields, is_dataclass
from typing import Any

from meshwright.cost.curve import Calibration, Math

MODULE = '''"""How an H200's kernels multiply matrices, fitted to measurements: data, no code.

Made by
    {command}
from a sweep of {date} on an {device} with torch {torch}.
`benchmarks/calibrate.py` says how well it fits; fields are explained in `curve.py`.
"""

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

# fmt: off
H200 = Calibration(
    multiprocessors={multiprocessors},
'''


def render(calibration: Calibration, command: str, header: dict[str, Any]) -> str:
    """The calibration as a Python module."""
    text = MODULE.format(
        command=command, multiprocessors=calibration.multiprocessors,
        **{name: header.get(name, "unknown") for name in ("date", "device", "torch")},
    )  # fmt: skip
    for name in ("matmul", "convolution", "depthwise", "attention", "stored"):
        text += f"    {name}={{\n"
        for key, curve in getattr(calibration, name).items():
            line = f"{_source(key)}: {_source(curve)},"
            text += textwrap.fill(
                line, 100, initial_indent=" " * 8, subsequent_indent=" " * 12,
                break_long_words=False, break_on_hyphens=False,
            ) + "\n"  # fmt: skip
        text += "    },\n"
    return text + ")\n# fmt: on\n"


def _source(value: Any) -> str:
    """What writes a value in Python, numbers to four digits."""
    if isinstance(value, Math):
        return f"Math.{value.name}"
    if is_dataclass(value):
        parts = [
            f"{field.name}={_source(getattr(value, field.name))}"
            for field in fields(value)
            if getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, tuple):
        return f"({', '.join(_source(each) for each in value)}{',' * (len(value) == 1)})"
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
