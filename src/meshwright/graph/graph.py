"""One training step as a directed acyclic graph of ops and the tensors between them.

Bulk data is read-only NumPy arrays, one entry an op or a tensor. Ops stand in a topological order,
always: every tensor's source has a smaller index than the ops that read it, so that a loop over
indices is a legal execution. Build one with `GraphBuilder`, which finds that order or names a
cycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from meshwright.errors import InputError, quoted
from meshwright.files import write_bytes
from meshwright.graph.column import (
    ANY_TYPE,
    OP_CODES,
    OP_LINES,
    OP_SIZES,
    OP_TEXTS,
    TENSOR_SIZES,
    Bools,
    Columns,
    Floats,
    Ints,
    Phase,
    Split,
)
from meshwright.graph.file import encode_columns
from meshwright.graph.recognise import read_columns

__all__ = [
    "ANY_TYPE",
    "OP_CODES",
    "OP_LINES",
    "OP_SIZES",
    "OP_TEXTS",
    "TENSOR_SIZES",
    "Adjacency",
    "Bools",
    "Floats",
    "Graph",
    "Ints",
    "Phase",
    "Split",
    "read_graph",
]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Compressed rows: the entries of row i are `index[start[i]:start[i + 1]]`."""

    start: Ints
    index: Ints

    def __getitem__(self, row: int) -> Ints:
        return self.index[self.start[row] : self.start[row + 1]]

    def __len__(self) -> int:
        return len(self.start) - 1

    @staticmethod
    def of(rows: Ints, entries: Ints, num_rows: int) -> "Adjacency":
        """Gather `entries[k]` under `rows[k]`, keeping the order within a row."""
        start = np.zeros(num_rows + 1, dtype=np.int32)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=start[1:])
        index = entries[np.argsort(rows, kind="stable")].astype(np.int32, copy=False)
        start.setflags(write=False)
        index.setflags(write=False)
        return Adjacency(start, index)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """One training step. Arrays over ops first, then over tensors, then over uses of tensors."""

    name: str
    """What the graph is of; for people."""
    batch: float
    """Samples a step, at which every quantity below holds."""

    op_names: tuple[str, ...]
    """Unique."""
    kind: tuple[str, ...]
    """What the op computes, e.g. "matmul"; for people and for cost models."""
    module: tuple[str, ...]
    """Path of the module that the op belongs to; "" when unknown."""
    precision: tuple[str, ...]
    """Key into a device type's peak rates: "fp32", "bf16", ..."""
    phase: npt.NDArray[np.int8]
    """A `Phase`."""
    split: npt.NDArray[np.int8]
    """A `Split`."""
    group: Ints
    """Ops with the same non-negative number share a device; -1: none."""
    partner: Ints
    """The forward op of a backward op; -1: none."""
    flops: Floats
    fixed_flops: Floats
    """The part of `flops` that does not grow with the batch; likewise below."""
    bytes_read: Floats
    fixed_bytes_read: Floats
    bytes_written: Floats
    fixed_bytes_written: Floats
    product_rows: Floats
    """Of an op that multiplies matrices (a convolution and attention do, too): the rows, ..."""
    fixed_product_rows: Floats
    product_columns: Floats
    """... columns, ..."""
    fixed_product_columns: Floats
    product_depth: Floats
    """... and terms of each sum, ..."""
    fixed_product_depth: Floats
    product_count: Floats
    """... and how many such products; zero: unknown, or no product."""
    fixed_product_count: Floats
    product_alignment: Floats
    """Bytes that every row of its matrices starts at a multiple of, at most 16; zero: unknown."""
    calls: Floats
    """Calls into the framework that run it, its views included; zero: unknown."""
    parameter_bytes: Floats
    """Weights that live with the op; no other op counts the same ones."""
    state_bytes: Floats
    """Held for the whole step wherever the op is: its weights and their optimiser state."""
    saved_bytes: Floats
    """Held from this forward op until its last backward op, beyond the tensors listed here."""
    workspace_bytes: Floats
    """Held only while the op runs."""
    seconds: Mapping[str, Floats] = field(default_factory=dict)
    """Measured time by device type: NaN unknown, infinity cannot run there."""

    tensor_source: Ints
    """The op that makes the tensor."""
    tensor_bytes: Floats
    fixed_tensor_bytes: Floats
    tensor_partial: Bools
    """Whether it is a partial sum when its source runs on a share of the batch."""
    use_tensor: Ints
    """Uses, sorted by tensor: which tensor ..."""
    use_op: Ints
    """... is read by which op."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        for array in self.seconds.values():
            array.setflags(write=False)
        object.__setattr__(self, "seconds", MappingProxyType(dict(self.seconds)))
        _check_sizes(self)
        _check_numbers(self)
        _check_fixed_parts(self)
        _check_references(self)

    @property
    def num_ops(self) -> int:
        """How many ops."""
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        """How many tensors."""
        return len(self.tensor_source)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The number of each op, by name."""
        # A plain dict: plans look up every op by name, and a read-only view of it is half as fast.
        return {name: number for number, name in enumerate(self.op_names)}

    @cached_property
    def precision_codes(self) -> tuple[tuple[str, ...], Ints]:
        """The distinct precisions, and for each op the place of its own among them."""
        return _coded(self.precision)

    @cached_property
    def kind_codes(self) -> tuple[tuple[str, ...], Ints]:
        """The distinct kinds, and for each op the place of its own among them."""
        return _coded(self.kind)

    @cached_property
    def outputs(self) -> Adjacency:
        """The tensors each op makes."""
        tensors = np.arange(self.num_tensors, dtype=np.int32)
        return Adjacency.of(self.tensor_source, tensors, self.num_ops)

    @cached_property
    def inputs(self) -> Adjacency:
        """The tensors each op reads."""
        return Adjacency.of(self.use_op, self.use_tensor, self.num_ops)

    @cached_property
    def readers(self) -> Adjacency:
        """The ops that read each tensor."""
        return Adjacency.of(self.use_tensor, self.use_op, self.num_tensors)

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Source and target op of every use: parallel edges where two tensors join two ops."""
        return self.tensor_source[self.use_tensor], self.use_op

    @cached_property
    def successors(self) -> Adjacency:
        """The ops that read something of each op, in order of use (an op may stand twice)."""
        return Adjacency.of(*self.edges, self.num_ops)

    @cached_property
    def predecessors(self) -> Adjacency:
        """The ops whose tensors each op reads (an op may stand twice)."""
        return Adjacency.of(self.edges[1], self.edges[0], self.num_ops)

    def scaled(self, quantity: str, samples: float) -> Floats:
        """One of `OP_LINES`, or `tensor_bytes`, at another number of samples."""
        whole: Floats = getattr(self, quantity)
        if samples == self.batch:  # exactly, where the sum below may round
            return whole
        fixed: Floats = getattr(self, f"fixed_{quantity}")
        return fixed + (whole - fixed) * (samples / self.batch)

    def at_batch(self, samples: float) -> "Graph":
        """The same step on another number of samples.

        Measured times, saved and workspace bytes grow in proportion for ops that split with the
        batch and stay for the others: profiles record no fixed part.
        """
        if not 0 < samples < np.inf:
            raise InputError(f"graph {self.name}: samples must be positive, got {samples}")
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # the new graph's checks name what overflows
            return self._at_batch(samples)

    def _at_batch(self, samples: float) -> "Graph":
        growth = np.where(self.split == Split.NONE, 1.0, samples / self.batch)
        scaled: dict[str, Any] = {
            quantity: self.scaled(quantity, samples) for quantity in (*OP_LINES, "tensor_bytes")
        }
        return replace(
            self,
            batch=samples,
            saved_bytes=self.saved_bytes * growth,
            workspace_bytes=self.workspace_bytes * growth,
            seconds={kind: array * growth for kind, array in self.seconds.items()},
            **scaled,
        )

    def columns(self) -> Columns:
        """The fields by name; the arrays are shared, not copied."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        columns["seconds"] = dict(self.seconds)
        return cast(Columns, columns)

    def __reduce__(self) -> tuple[Any, ...]:
        """For worker processes: the read-only view of `seconds` cannot be pickled as it is."""
        return _graph_of, (self.columns(),)

    def save(self, path: str | Path) -> None:
        """Write the graph's own format (JSON, gzip when the name ends in .gz)."""
        write_bytes(path, encode_columns(self.columns()))

    @staticmethod
    def load(path: str | Path) -> "Graph":
        """Read a graph in any known format; the content decides which."""
        return read_graph(path)


def _coded(texts: tuple[str, ...]) -> tuple[tuple[str, ...], Ints]:
    place = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.array([place[text] for text in texts], dtype=np.int32)
    codes.setflags(write=False)
    return tuple(place), codes


def _graph_of(columns: Columns) -> Graph:
    return Graph(**columns)


def read_graph(path: str | Path) -> Graph:
    """Read a graph in any known format; the content decides which (see `graph.recognise`)."""
    columns = read_columns(path)
    try:
        return Graph(**columns)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _check_sizes(graph: Graph) -> None:
    where = f"graph {graph.name}"
    for name in (*OP_TEXTS, *OP_CODES, *OP_SIZES):
        if len(getattr(graph, name)) != graph.num_ops:
            raise InputError(
                f"{where}: {name} must have one entry an op ({graph.num_ops}), "
                f"got {len(getattr(graph, name))}"
            )
    for kind, array in graph.seconds.items():
        if len(array) != graph.num_ops:
            raise InputError(f"{where}: seconds of {quoted(kind)} must have one entry an op")
    for name in (*TENSOR_SIZES, "tensor_partial"):
        if len(getattr(graph, name)) != graph.num_tensors:
            raise InputError(f"{where}: {name} must have one entry a tensor ({graph.num_tensors})")
    if len(graph.use_op) != len(graph.use_tensor):
        raise InputError(f"{where}: use_op and use_tensor must be equally long")
    if len(set(graph.op_names)) != graph.num_ops:
        seen: set[str] = set()
        twice = next(name for name in graph.op_names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"{where}: op names must be unique, {quoted(twice)} stands twice")


def _check_numbers(graph: Graph) -> None:
    where = f"graph {graph.name}"
    if not 0 < graph.batch < np.inf:
        raise InputError(f"{where}: batch must be positive, got {graph.batch}")
    for name in OP_SIZES:
        _refuse_bad(graph, name, getattr(graph, name))
    for kind, array in graph.seconds.items():
        bad = np.flatnonzero(array < 0)  # NaN and infinity have a meaning here
        if len(bad):
            raise InputError(
                f"op {quoted(graph.op_names[bad[0]])}: seconds on {quoted(kind)} must not be "
                f"negative, got {array[bad[0]]}"
            )
    for name in TENSOR_SIZES:
        array = getattr(graph, name)
        bad = np.flatnonzero(~((array >= 0) & (array < np.inf)))
        if len(bad):
            raise InputError(
                f"{_tensor_text(graph, bad[0])}: {name} must be finite and not negative, "
                f"got {array[bad[0]]}"
            )


def _refuse_bad(graph: Graph, name: str, array: Floats) -> None:
    bad = np.flatnonzero(~((array >= 0) & (array < np.inf)))
    if len(bad):
        raise InputError(
            f"op {quoted(graph.op_names[bad[0]])}: {name} must be finite and not negative, "
            f"got {array[bad[0]]}"
        )


def _check_fixed_parts(graph: Graph) -> None:
    """A fixed part above the whole would make sizes negative at a larger batch."""
    for name in (*OP_LINES, "tensor_bytes"):
        whole, fixed = getattr(graph, name), getattr(graph, f"fixed_{name}")
        bad = np.flatnonzero(fixed > whole)
        if len(bad):
            first = bad[0]
            of_op = name != "tensor_bytes"
            thing = f"op {quoted(graph.op_names[first])}" if of_op else _tensor_text(graph, first)
            raise InputError(
                f"{thing}: fixed_{name} must not exceed {name}, got {fixed[first]} > {whole[first]}"
            )


def _tensor_text(graph: Graph, tensor: int) -> str:
    source = graph.tensor_source[tensor]
    owner = graph.op_names[source] if 0 <= source < graph.num_ops else "?"
    return f"tensor {tensor} of op {quoted(owner)}"


def _check_references(graph: Graph) -> None:
    where = f"graph {graph.name}"
    ranges: tuple[tuple[str, Any, int, int], ...] = (
        ("phase", graph.phase, 0, len(Phase)),
        ("split", graph.split, 0, len(Split)),
        ("group", graph.group, -1, 2**31 - 1),
        ("partner", graph.partner, -1, graph.num_ops),
        ("tensor_source", graph.tensor_source, 0, graph.num_ops),
        ("use_tensor", graph.use_tensor, 0, graph.num_tensors),
        ("use_op", graph.use_op, 0, graph.num_ops),
    )
    for name, array, low, high in ranges:
        bad = np.flatnonzero((array < low) | (array >= high))
        if len(bad):
            raise InputError(
                f"{where}: {name}[{bad[0]}] must be from {low} to {high - 1}, got {array[bad[0]]}"
            )
    if np.any(np.diff(graph.use_tensor) < 0):
        raise InputError(f"{where}: use_tensor must be sorted")
    source, target = graph.edges
    bad = np.flatnonzero(source >= target)
    if len(bad):
        first, second = graph.op_names[source[bad[0]]], graph.op_names[target[bad[0]]]
        raise InputError(
            f"{where}: ops must stand in a topological order, but {quoted(second)} reads a tensor "
            f"of {quoted(first)} and stands before it"
        )
