"""The ops of a layer that differ in what they cost, and what of their bytes a team divides.

A layer repeats many ops (parts of activation functions, norms, updates); each is timed once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools
from meshwright.graph.column import OP_CODES, OP_SIZES, OP_TEXTS, no_tensors
from meshwright.graph.graph import Floats, Graph, Ints, Phase
from meshwright.graph.ladder import change_times, list_times
from meshwright.graph.merge import sum_by
from meshwright.graph.stack.product import is_cast, is_product
from meshwright.graph.stack.stack import Codes, LayerKind, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Portions:
    """By op of a layer, the parts of its bytes that are divided; each from 0 to 1."""

    read_cut: Floats
    """Of what grows with the batch and is read: in tensors whose features are divided."""
    written_cut: Floats
    fixed_read_cut: Floats
    """Likewise of what does not grow: weights and their gradients."""
    fixed_written_cut: Floats


def find_portions(kind: LayerKind) -> Portions:
    """What of each op's bytes a tensor team divides."""
    graph, divided = kind.graph, kind.role != Role.WHOLE
    grows = graph.tensor_bytes - graph.fixed_tensor_bytes
    fixed = graph.fixed_tensor_bytes
    is_table = divided & ~is_product(graph) & (graph.phase == Phase.FORWARD)
    is_table &= (graph.parameter_bytes > 0) & ~is_cast(graph)
    default = (divided & ~is_table).astype(np.float64)
    made = kind.is_cut.astype(np.float64)
    uses, sources = graph.use_tensor, graph.tensor_source
    read = _sums(graph.use_op, grows[uses], made[uses], graph.num_ops)
    written = _sums(sources, grows, made, graph.num_ops)
    fixed_read = _sums(graph.use_op, fixed[uses], made[uses], graph.num_ops)
    fixed_written = _sums(sources, fixed, made, graph.num_ops)
    holds = divided & (is_product(graph) | (graph.phase == Phase.UPDATE) | is_cast(graph))
    weights = np.maximum(graph.fixed_bytes_read - fixed_read[0], 0.0)
    return Portions(
        read_cut=_ratio(read[1], read[0], default),
        written_cut=_ratio(written[1], written[0], default),
        fixed_read_cut=_ratio(fixed_read[1] + weights * holds, fixed_read[0] + weights, default),
        fixed_written_cut=_ratio(fixed_written[1], fixed_written[0], default),
    )


def _sums(ops: Ints, size: Floats, made: Floats, num_ops: int) -> tuple[Floats, Floats]:
    """By op the bytes of its tensors, and of those that are cut."""
    return sum_by(ops, size, num_ops), sum_by(ops, size * made, num_ops)


def _ratio(part: Floats, whole: Floats, default: Floats) -> Floats:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), default)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerWork:
    """One op of each sort, as a graph without tensors; the rest as in `LayerKind`."""

    graph: Graph
    place: Ints
    """Of each op of the layer: its sort."""
    portions: Portions
    role: Codes
    tensor_cut: Codes
    row_cut: Codes
    read_keys: Floats
    written_keys: Floats

    def count(self, chosen: Bools) -> Floats:
        """How many of some ops of the layer are of each sort."""
        return np.bincount(self.place[chosen], minlength=self.graph.num_ops).astype(np.float64)


def find_work(kind: LayerKind) -> LayerWork:
    """Sort the ops of a layer by all that their time depends on."""
    graph = kind.graph
    portions = find_portions(kind)
    names = Portions.__dataclass_fields__
    sizes = [name for name in OP_SIZES if not name.endswith(("saved_bytes", "workspace_bytes"))]
    times = list_times(graph.seconds, graph.ladders)
    rows = [
        graph.kind_codes[1], graph.precision_codes[1], graph.phase, graph.split,
        kind.role, kind.tensor_cut, kind.row_cut, kind.read_keys, kind.written_keys,
        *(getattr(graph, name) for name in sizes),
        *(getattr(portions, name) for name in names),
        *(np.nan_to_num(each, nan=-1.0, posinf=-2.0) for each in times),
    ]  # fmt: skip
    _, first, place = np.unique(
        np.stack(rows).astype(np.float64), axis=1, return_index=True, return_inverse=True
    )
    same = ("role", "tensor_cut", "row_cut", "read_keys", "written_keys")
    return LayerWork(
        graph=_without_tensors(graph, first),
        place=place.reshape(-1).astype(np.int32),
        portions=Portions(**{name: getattr(portions, name)[first] for name in names}),
        **{name: getattr(kind, name)[first] for name in same},
    )


def _without_tensors(graph: Graph, ops: npt.NDArray[np.intp]) -> Graph:
    columns: dict[str, Any] = {
        name: tuple(getattr(graph, name)[op] for op in ops) for name in OP_TEXTS
    }
    numbers: dict[str, Any] = {name: getattr(graph, name)[ops] for name in (*OP_CODES, *OP_SIZES)}
    numbers["partner"] = np.full(len(ops), -1, dtype=np.int32)
    return Graph(
        name=graph.name,
        batch=graph.batch,
        **columns,
        **numbers,
        **change_times(graph.seconds, graph.ladders, lambda each: each[ops]),
        **no_tensors(),
    )
