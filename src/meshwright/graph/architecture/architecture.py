"""What an architecture states: its sizes with their usual values, and its step on a tape.

Whatever is the same for all of them, the checks of sizes and the recording, is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from meshwright.graph.architecture.rule import check_choice, check_sizes
from meshwright.graph.architecture.step import build_step
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import TYPES, Value
from meshwright.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture(ABC):
    """A model whose step is recorded; sizes, words and switches of its own are further fields."""

    BATCH: ClassVar[float]
    """Samples of a step unless said."""
    PRECISIONS: ClassVar[tuple[str, ...]] = tuple(TYPES)
    """What it can be computed in."""
    PRECISION: ClassVar[str] = "fp32"
    WORDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What its fields that are words may be."""

    tape: StepTape
    samples: int
    hidden: int
    heads: int
    layers: int
    """The layers that are recorded; more are copies of them."""

    @staticmethod
    def usual(sizes: Mapping[str, Any]) -> dict[str, int]:  # noqa: ARG004
        """Sizes that follow from others where they are not said."""
        return {}

    @abstractmethod
    def loss(self) -> Value:
        """Record forward and return the loss that it comes to."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """All that can be said of the model, with its usual value; MISSING must be said."""
        return {each.name: each.default for each in fields(cls)[2:]}


def build_model(
    model: type[Architecture],
    *,
    batch: float | None = None,
    precision: str | None = None,
    optimizer: str = "adamw",
    name: str = "",
    **said: Any,
) -> Graph:
    """The training step of an architecture; its name is the architecture's unless said."""
    architecture = model.__name__.lower()
    known = model.options()
    options = {k: v for k, v in known.items() if v is not MISSING} | said
    assert options.keys() == known.keys(), f"{architecture} has {', '.join(known)}"
    options |= {k: v for k, v in model.usual(options).items() if not options.get(k)}
    sizes = {k: v for k, v in options.items() if not isinstance(v, bool | str)}
    precision = precision or model.PRECISION
    check_sizes(architecture, sizes, precision, optimizer, model.PRECISIONS)
    for word, choices in model.WORDS.items():
        check_choice(architecture, word, options[word], choices)

    def record(samples: int, layers: int) -> StepTape:
        tape = StepTape(precision)
        recorded = model(tape=tape, samples=samples, **{**options, "layers": layers})
        return tape.finish(recorded.loss(), optimizer)

    batch = model.BATCH if batch is None else batch
    return build_step(name or architecture, batch, sizes["layers"], record)
