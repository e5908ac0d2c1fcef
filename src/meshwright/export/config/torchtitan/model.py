"""The models that torchtitan's registry has by flavour, as shapes. Sizes: its
`models/llama3/__init__.py`, release 0.3.0."""

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.export.config.model import shape_text
from meshwright.graph.architecture.shape import Shape

MODULE = "llama3"
_NAMES = ("hidden", "heads", "layers", "key_heads", "intermediate", "vocabulary")
_SIZES = {
    "debugmodel": (256, 16, 6, 16, 768, 2048),
    "8B": (4096, 32, 32, 8, 14_336, 128_256),
    "70B": (8192, 64, 80, 8, 28_672, 128_256),
    "405B": (16_384, 128, 126, 8, 53_248, 128_256),
}
FLAVOURS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {name: dict(zip(_NAMES, sizes, strict=True)) for name, sizes in _SIZES.items()}
)
"""Sizes by name, but for the sequence."""


def find_flavour(shape: Shape | None) -> str:
    """The name of a shape in the registry; empty: it is not there."""
    if shape is None or shape.architecture != "llama":
        return ""
    sizes = {name: shape.sizes[name] for name in _NAMES}
    return next((name for name, each in FLAVOURS.items() if dict(each) == sizes), "")


def flavour_text(name: str, sequence: int) -> str:
    """A flavour as `load_graph` takes it; empty: it is not known, or its sequence is not."""
    if name not in FLAVOURS or not sequence:
        return ""
    return shape_text("llama", {**FLAVOURS[name], "sequence": sequence})
