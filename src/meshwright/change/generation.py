"""The device that follows each in its maker's line, for the question what newer ones would bring.

By use: an accelerator for training follows one for training, a card one of its price class. The
last of a line, and those whose successor the catalogue does not have, have none.
"""

from collections.abc import Mapping
from types import MappingProxyType

NEXT_GENERATION: Mapping[str, str] = MappingProxyType(
    {
        "p100": "v100-16",
        "v100-16": "a100-40",
        "v100-32": "a100-80",
        "a100-40": "h100",
        "a100-80": "h100",
        "h100": "b200",
        "h200": "b200",
        "gh200": "gb200",
        "b200": "b300",
        "t4": "l4",
        "a6000": "l40s",
        "1080ti": "rtx3090",
        "rtx3090": "rtx4090",
        "rtx4090": "rtx5090",
        "mi250x-gcd": "mi300x",
        "mi300x": "mi325x",
        "tpuv4": "tpuv5p",
    }
)
"""By name of the type."""
