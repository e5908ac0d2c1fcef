"""One training step as a directed acyclic graph of ops and the tensors between them.

Bulk data is read-only NumPy arrays, one entry an op or a tensor. Ops stand in a topological order,
always: every tensor's source has a smaller index than the ops that read it, so that a loop over
indices is a legal execution. Build one with `GraphBuilder`, which finds that order or names a
cycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.argument import need_type
from meshwright.array import Bools, Floats, Ints, freeze_arrays
from meshwright.errors import InputError, errors_in, quoted
from meshwright.files import write_bytes
from meshwright.graph.check import check_columns
from meshwright.graph.column import (
    ANY_TYPE,
    OP_LINES,
    OP_SIZES,
    OP_STEEP,
    OP_TEXTS,
    STEEP_POWERS,
    Columns,
    Phase,
    Split,
)
from meshwright.graph.file import encode_columns
from meshwright.graph.ladder import Ladders, move_batch
from meshwright.graph.recognise import read_columns
from meshwright.kernel.row import gather_rows
from meshwright.table import as_frame, as_html
from meshwright.units import format_bytes, format_count, format_flops

__all__ = [
    "ANY_TYPE",
    "OP_LINES",
    "OP_SIZES",
    "OP_TEXTS",
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
        order, start = gather_rows(rows, num_rows)
        index = entries[order].astype(np.int32, copy=False)
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
    """The names of the ops, each of which stands once."""
    kind: tuple[str, ...]
    """What the op computes, e.g. "matmul"; for people and for cost models."""
    module: tuple[str, ...]
    """Path of the module that the op belongs to; "" when unknown."""
    precision: tuple[str, ...]
    """Key into a device type's peak rates: "fp32", "bf16", ..."""
    phase: npt.NDArray[np.int8]
    """The `Phase` of each op, as its number."""
    split: npt.NDArray[np.int8]
    """The `Split` of each op, as its number."""
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
    """Rows of the result of an op that multiplies matrices, as a convolution and attention do."""
    fixed_product_rows: Floats
    product_columns: Floats
    """Columns of that result."""
    fixed_product_columns: Floats
    product_depth: Floats
    """Terms of the sum that each number of the result is."""
    fixed_product_depth: Floats
    product_count: Floats
    """How many such products the op computes; zero: unknown, or no product."""
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
    """Held from this forward op until its last backward op, beyond the tensors listed here; until
    the step ends where no backward op is its partner."""
    workspace_bytes: Floats
    """Held only while the op runs."""
    seconds: Mapping[str, Floats] = field(default_factory=dict)
    """Measured time by device type: NaN unknown, infinity cannot run there."""
    ladders: Ladders = field(default_factory=dict)
    """Times measured at other numbers of samples: by device type, then by samples; NaN unknown."""
    mixes: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Whether an op compares samples with each other, as the logits of a contrastive loss do. Such
    ops run on the whole batch in every plan (their split is NONE), and no plan with one of them
    may divide the batch into microbatches. Given empty: none does."""
    superlinear: Mapping[str, Floats] = field(default_factory=dict)
    """Parts of quantities that grow with the square or the cube of the batch (`square_flops`, one
    entry an op; `cube_tensor_bytes`, one a tensor). Only ops that mix samples, and the tensors they
    make and read, have any; a part that is zero everywhere may be left out."""

    tensor_source: Ints
    """The op that makes the tensor."""
    tensor_bytes: Floats
    fixed_tensor_bytes: Floats
    tensor_partial: Bools
    """Whether it is a partial sum when its source runs on a share of the batch."""
    use_tensor: Ints
    """The tensor of each use; uses are sorted by tensor."""
    use_op: Ints
    """The op that reads the tensor of each use."""

    def __post_init__(self) -> None:
        if not len(self.mixes):
            object.__setattr__(self, "mixes", np.zeros(len(self.op_names), dtype=np.bool_))
        freeze_arrays(self)
        for name in ("seconds", "superlinear"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        ladders = {kind: _frozen(ladder) for kind, ladder in self.ladders.items() if ladder}
        object.__setattr__(self, "ladders", MappingProxyType(ladders))
        check_columns(self.columns())

    def __repr__(self) -> str:
        counts = f"{format_count(self.num_ops, 'op')}, {format_count(self.num_tensors, 'tensor')}"
        name, batch, weights = quoted(self.name), self.facts["batch"], self.facts["weights"]
        return f"Graph({name}, batch {batch}, {counts}, {weights} of weights)"

    def _repr_html_(self) -> str:
        return as_html(f"graph {self.name}", self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """What it is made of, for people."""
        phases = (f"{np.sum(self.phase == each):,} {each.name.lower()}" for each in Phase)
        return {
            "batch": f"{self.batch:,.10g}",
            "ops": f"{self.num_ops:,} ({', '.join(phases)})",
            "tensors": f"{self.num_tensors:,}",
            "weights": format_bytes(float(self.parameter_bytes.sum())),
            "compute": f"{format_flops(float(self.flops.sum()))} a step",
            "precision": ", ".join(dict.fromkeys(self.precision)),
        }

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each op, in order."""
        return as_frame(
            {
                "op": self.op_names,
                **{name: getattr(self, name) for name in (*OP_TEXTS[1:], *OP_SIZES)},
                "phase": [Phase(each).name.lower() for each in self.phase.tolist()],
            }
        )

    @property
    def num_ops(self) -> int:
        """The number of ops in the step."""
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        """The number of tensors in the step."""
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

    @property
    def mixing_op(self) -> str:
        """The name of an op that mixes samples, for messages: the steepest, or the first."""
        found = self.mixes.astype(np.float64)
        for part in (self.superlinear.get(name) for name in OP_STEEP):
            found += 0.0 if part is None else part
        return self.op_names[int(found.argmax())]

    @property
    def is_inference(self) -> bool:
        """Whether it is a captured step without a loss: a model's outputs, and no gradients."""
        return bool(self.calls.any() and (self.phase == Phase.FORWARD).all())

    @cached_property
    def is_returned(self) -> Bools:
        """By tensor: whether inference returns it, so that the caller holds it until the step ends.
        That is all that no op reads; what ops read and the caller holds, too, is in
        `saved_bytes`."""
        found: Bools = np.bincount(self.use_tensor, minlength=self.num_tensors) == 0
        return found & self.is_inference

    def parts_of(self, quantity: str) -> dict[int, Floats]:
        """One of `OP_LINES`, or `tensor_bytes`, by the power of the batch that parts grow with.

        The parts add up to the quantity at the graph's own batch.
        """
        fixed: Floats = getattr(self, f"fixed_{quantity}")
        steep = {
            power: self.superlinear[f"{name}_{quantity}"]
            for name, power in STEEP_POWERS.items()
            if f"{name}_{quantity}" in self.superlinear
        }
        return {0: fixed, 1: getattr(self, quantity) - sum(steep.values(), fixed), **steep}

    def scaled(self, quantity: str, samples: float) -> Floats:
        """One of `OP_LINES`, or `tensor_bytes`, where ops run on a share of the batch.

        What mixes samples always runs on all of it, so that its quantities stay.
        """
        whole: Floats = getattr(self, quantity)
        if samples == self.batch:  # exactly, where the sum below may round
            return whole
        fixed: Floats = getattr(self, f"fixed_{quantity}")
        share = fixed + (whole - fixed) * (samples / self.batch)
        if not self.mixes.any():
            return share
        stays = self.mixes if quantity != "tensor_bytes" else self.mixes[self.tensor_source]
        return np.where(stays, whole, share)

    def at_batch(self, samples: float) -> "Graph":
        """The same step on another number of samples.

        Measured times, saved and workspace bytes grow in proportion for ops that split with the
        batch, with the bytes they move for ops that mix samples, and stay for the others: one time
        has no fixed part. Times of ops with a ladder are read off it.
        """
        need_type(samples, Real, f"graph {self.name}: samples", "a number")
        if isinstance(samples, bool) or not 0 < samples < np.inf:
            raise InputError(f"graph {self.name}: samples must be positive, got {samples}")
        if samples == self.batch:  # exactly, where sums of parts may round
            return self
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # the new graph's checks name what overflows
            return self._at_batch(samples)

    def _at_batch(self, samples: float) -> "Graph":
        times = samples / self.batch
        scaled: dict[str, Any] = {}
        superlinear: dict[str, Floats] = {}
        for quantity in (*OP_LINES, "tensor_bytes"):
            parts = self.parts_of(quantity)
            grown = {power: part * times**power for power, part in parts.items()}
            scaled[quantity] = sum(grown.values())
            superlinear |= {
                f"{name}_{quantity}": grown[power]
                for name, power in STEEP_POWERS.items()
                if power in grown
            }
        growth = np.where(self.split == Split.NONE, 1.0, times)
        moved = self.bytes_read + self.bytes_written
        steep = self.mixes & (moved > 0)
        growth[steep] = (scaled["bytes_read"] + scaled["bytes_written"])[steep] / moved[steep]
        return replace(
            self,
            batch=samples,
            saved_bytes=self.saved_bytes * growth,
            workspace_bytes=self.workspace_bytes * growth,
            **move_batch(self.seconds, self.ladders, (self.batch, samples), growth, self.split > 0),
            superlinear=superlinear,
            **scaled,
        )

    def columns(self) -> Columns:
        """The fields by name; the arrays are shared, not copied."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        columns |= {"seconds": dict(self.seconds), "superlinear": dict(self.superlinear)}
        columns["ladders"] = {kind: dict(ladder) for kind, ladder in self.ladders.items()}
        return columns

    def __reduce__(self) -> tuple[Any, ...]:
        """For worker processes: read-only views of mappings cannot be pickled as they are."""
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


def _frozen(columns: Mapping[Any, Floats]) -> Mapping[Any, Floats]:
    for array in columns.values():
        array.setflags(write=False)
    return MappingProxyType(dict(columns))


def _graph_of(columns: Columns) -> Graph:
    return Graph(**columns)


def read_graph(path: str | Path) -> Graph:
    """Read a graph in any known format; the content decides which (see `graph.recognise`)."""
    columns = read_columns(path)
    with errors_in(path):
        return Graph(**columns)
