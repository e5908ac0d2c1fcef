"""Which type of the catalogue a product is: as programs call it, and as administrators do."""

import re

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.profile.device import find_device_type
from meshwright.units import GIB

# What is sold with memories of several sizes, and the type of each size in GiB.
_SIZES = {"a100": {40: "a100-40", 80: "a100-80"}, "v100": {16: "v100-16", 32: "v100-32"}}
# Cards that are a type of the catalogue in another guise: the chip of AWS' A10G is the A10's with
# other clocks (its data sheet has 35 TFLOP/s in fp32, the A10's 31.2).
_ALIASES = {"a10g": "a10", "h100-80gb": "h100", "mi210": "mi250x-gcd"}


def find_product(product: str, memory_bytes: float | None = None) -> tuple[str, str]:
    """The type of a product, and what had to be assumed; both empty where it is not known."""
    for name in (product, product.replace("-", " "), _as_sold(product)):
        kind = find_device_type(name)
        if kind in DEVICE_TYPES:
            return kind, ""
    short = re.sub(r"^(nvidia|amd|tesla|instinct|gpu)[-_ ]+", "", product.strip().lower())
    short = re.sub(r"[_ ]+", "-", short)
    if short in DEVICE_TYPES:
        return short, ""
    if short in _ALIASES:
        return _ALIASES[short], f"{product} is taken for {_ALIASES[short]}"
    for family, kinds in _SIZES.items():
        match = re.fullmatch(family + r"(?:-(?:sxm[0-9]?|pcie))?(?:-([0-9]+)gb?)?", short)
        if match is None:
            continue
        size = float(match[1]) if match[1] else (memory_bytes or 0.0) / GIB
        nearest = min(kinds, key=lambda each: abs(each - size))
        if size:
            return kinds[nearest], ""
        largest = kinds[max(kinds)]
        return largest, f"{product} is taken for {largest}, as its memory is not stated"
    return "", ""


def _as_sold(product: str) -> str:
    """The name with the hyphens that labels of Kubernetes have in place of blanks, as CUDA has it:
    those before SXM, PCIE and a size stay where CUDA has them."""
    words = product.replace("-", " ")
    return re.sub(r" (SXM[0-9]|PCIE) ([0-9]+GB)$", r"-\1-\2", words)
