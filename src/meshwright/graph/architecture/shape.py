"""Named architectures with sizes: built, and read from text such as "gpt:hidden=768,...".

Knows which sizes an architecture has; their rules are in `rule`, the formulas in its module.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import partial
from types import MappingProxyType

from meshwright.errors import InputError, quoted
from meshwright.graph.architecture.architecture import Architecture, build_model
from meshwright.graph.architecture.bert import Bert
from meshwright.graph.architecture.gpt import Gpt
from meshwright.graph.architecture.llama import Llama
from meshwright.graph.architecture.mixtral import Mixtral
from meshwright.graph.architecture.vit import Vit
from meshwright.graph.graph import Graph

_MODELS: Mapping[str, type[Architecture]] = MappingProxyType(
    {each.__name__.lower(): each for each in (Gpt, Llama, Mixtral, Bert, Vit)}
)
ARCHITECTURES: Mapping[str, Callable[..., Graph]] = MappingProxyType(
    {name: partial(build_model, model) for name, model in _MODELS.items()}
)
USUAL: Mapping[str, str] = MappingProxyType({"precision": "mixed", "optimizer": "adamw"})
"""Of a shape in text, unless said."""
DIGITS = 13
"""Of a size; longer numbers are above `rule.LARGEST` for sure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An architecture with its sizes; those that it can go without may be left out."""

    architecture: str
    sizes: Mapping[str, int]

    def build(self, **choices: object) -> Graph:
        """The training step; `choices` are batch, precision, optimizer and name."""
        return ARCHITECTURES[self.architecture](**self.sizes, **choices)

    def complete(self) -> "Shape":
        """The same with the sizes that it goes without; none is said twice."""
        model = _MODELS[self.architecture]
        options = {
            name: usual
            for name, usual in model.options().items()
            if not isinstance(usual, bool | str) and usual is not MISSING
        }
        sizes = {**options, **self.sizes}
        sizes |= {name: size for name, size in model.usual(sizes).items() if not sizes.get(name)}
        return Shape(architecture=self.architecture, sizes=sizes)


def build_shape(text: str, batch: float | None = None, precision: str | None = None) -> Graph:
    """The step of "ARCHITECTURE:SIZE=NUMBER,..."; batch, precision and optimizer may be there, and
    give way to those that are said beside it."""
    architecture, _, rest = text.partition(":")
    values = _read_values(architecture, rest)
    if precision is not None:
        values["precision"] = precision
    choices: dict[str, object] = {name: values.pop(name, usual) for name, usual in USUAL.items()}
    choices |= {name: values.pop(name) for name in _words(architecture) if name in values}
    sizes = {name: _read_size(architecture, name, value) for name, value in values.items()}
    samples = sizes.pop("batch", None) if batch is None else batch
    sizes.pop("batch", None)
    if samples is not None:
        choices["batch"] = samples
    _check_names(architecture, sizes)
    return Shape(architecture=architecture, sizes=sizes).build(name=text, **choices)


def read_shape(text: str) -> Shape:
    """The architecture of "ARCHITECTURE:SIZE=NUMBER,..." with all of its sizes, also those that
    follow from others; what is said of batch, precision, optimizer and words is left out."""
    architecture, _, rest = text.partition(":")
    left_out = {"batch", *USUAL, *_words(architecture)}
    values = {
        name: value
        for name, value in _read_values(architecture, rest).items()
        if name not in left_out
    }
    said = {name: _read_size(architecture, name, value) for name, value in values.items()}
    _check_names(architecture, said)
    return Shape(architecture=architecture, sizes=said).complete()


def is_shape(text: str) -> bool:
    """Whether a text is meant as a shape: an architecture, a colon, and sizes or nothing."""
    architecture, colon, rest = text.partition(":")
    return bool(colon) and architecture in ARCHITECTURES and ("=" in rest or not rest)


def shape_usage(architecture: str) -> str:
    """How to write a shape, required sizes first."""
    required = _sizes(architecture, required=True)
    return f"{architecture}:{','.join(f'{name}=N' for name in required)}"


def _read_values(architecture: str, text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in text.split(",") if text else ():
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise InputError(
                f"{architecture}: must be written as {shape_usage(architecture)}, got "
                f"{quoted(item)}"
            )
        if name in values:
            raise InputError(f"{architecture}: {quoted(name)} must stand once, stands twice")
        values[name] = value
    return values


def _read_size(architecture: str, name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > DIGITS:
        raise InputError(
            f"{architecture}: {quoted(name)} must be a whole number of at most {DIGITS} digits, "
            f"got {quoted(text)}"
        )
    return int(text)


def _sizes(architecture: str, *, required: bool) -> list[str]:
    return [
        name
        for name, usual in _MODELS[architecture].options().items()
        if not isinstance(usual, bool | str) and (not required or usual is MISSING)
    ]


def _words(architecture: str) -> list[str]:
    """What an architecture lets one choose by a word of its own."""
    return [
        name for name, usual in _MODELS[architecture].options().items() if isinstance(usual, str)
    ]


def _check_names(architecture: str, sizes: Mapping[str, int]) -> None:
    known = _sizes(architecture, required=False)
    for name in sizes:
        if name not in known:
            near = difflib.get_close_matches(name[:40], known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise InputError(f"{architecture}: has no size {quoted(name)}; {hint}")
    missing = [name for name in _sizes(architecture, required=True) if name not in sizes]
    if missing:
        raise InputError(
            f"{architecture}: {missing[0]} must be given, as in {shape_usage(architecture)}"
        )
