"""What a tape holds: values, the storages they are in, kernels, and nodes with their gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.graph.column import Phase


class Type(NamedTuple):
    """What one number of a tensor is."""

    size: int
    """How many bytes it takes."""
    precision: str
    """As `Graph.precision` has it; "" where it is no floating-point number."""


FP32 = Type(4, "fp32")
BF16 = Type(2, "bf16")
INT64 = Type(8, "")
INT32 = Type(4, "")
BOOL = Type(1, "")
TYPES = {"mixed": BF16, "fp32": FP32, "tf32": FP32, "bf16": BF16}
"""The type of weights, by precision."""


@dataclass(frozen=True, slots=True)
class ProductSize:
    """The matrix product inside an op (see `Graph.product_rows`)."""

    rows: float
    columns: float
    depth: float
    count: float
    alignment: int


NO_PRODUCT = ProductSize(0, 0, 0, 0, 0)


@dataclass(slots=True, eq=False)
class Value:
    """A tensor, or a view of one, by which gradients are kept apart."""

    storage: int
    elements: int
    type: Type
    needs_gradient: bool = False
    layout: str = ""
    """Values of different layouts lie differently in memory."""

    @property
    def bytes(self) -> int:
        """What reading it moves."""
        return self.elements * self.type.size


@dataclass(slots=True, eq=False)
class Storage:
    """Memory that one kernel writes; what is there from the start has no source."""

    bytes: int
    source: int
    readers: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TapeKernel:
    """An op of the graph to be."""

    name: str
    kind: str
    module: str
    phase: Phase
    precision: str
    flops: int
    bytes_read: int
    bytes_written: int
    product: ProductSize
    workspace: int
    kept: int
    """Bytes that it keeps for its backward besides its tensors."""
    calls: int
    reads: tuple[int, ...]
    """The storages that it reads, each named once."""
    made: list[int]
    partner: int = -1
    node: int = -1
    """The node on the tape whose gradient it is part of."""
    state: int = 0
    """Bytes of optimiser state."""


@dataclass(slots=True, eq=False)
class TapeNode:
    """A forward op whose gradient is known."""

    outputs: tuple[Value, ...]
    inputs: tuple[Value, ...]
    backward: "Backward"
    partner: int
    """The kernel that its backward kernels belong to; -1: that of the earliest they read."""


Backward = Callable[..., "Sequence[Value | None]"]
"""From the gradients of the outputs to those of the inputs."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter and the module that holds it."""

    value: Value
    module: str
    original: Value | None = None
    """Of a copy: what it repeats."""
