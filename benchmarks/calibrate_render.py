"""Writes the constants that `calibrate.py` has fitted as JSON. Knows nothing of fits."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

from meshwright.cost.curve import Calibration, Math

TABLES = ("matmul", "convolution", "depthwise", "attention", "stored")


def render(calibration: Calibration, command: str, header: dict[str, Any]) -> str:
    """The calibration as `meshwright.cost.h200` reads it, a line for each curve."""
    origin = {name: header.get(name, "unknown") for name in ("date", "device", "torch")}
    parts = {
        "made_by": json.dumps(command),
        "sweep": json.dumps(origin),
        "multiprocessors": str(calibration.multiprocessors),
    }
    for name in TABLES:
        rows = [
            json.dumps([*map(_plain, key if isinstance(key, tuple) else (key,)), _plain(curve)])
            for key, curve in getattr(calibration, name).items()
        ]
        parts[name] = "[\n    " + ",\n    ".join(rows) + "\n  ]"
    return "{\n" + ",\n".join(f'  "{name}": {text}' for name, text in parts.items()) + "\n}\n"


def _plain(value: Any) -> Any:
    """A value in JSON's terms, kinds by name, numbers to four digits, no defaults."""
    if isinstance(value, Math):
        return value.name
    if is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            if getattr(value, field.name) != field.default
        }
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
