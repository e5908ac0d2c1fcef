"""What one device of a team has of every op of a layer: sizes, for many teams at once.

What is read whole stays whole: the rows that a column product reads, the keys that queries of a
context team need, weights of ops that every member runs. Knows no times.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.layer.mode import Keys
from meshwright.cost.layer.team import Team
from meshwright.cost.layer.work import LayerWork
from meshwright.graph.graph import Floats, Graph
from meshwright.graph.stack.stack import PRODUCT_SIZES, ProductCut, Role

_ROUNDING = 1e-9
"""A size this little above a whole number is that number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Teams and their samples as columns, to be spread over ops."""

    tensor: Floats
    context: Floats
    expert: Floats
    rows: Floats
    """What a member has of the rows of an op that it runs whole, beside its context share."""
    growth: Floats
    """Samples over those of the layer's graph."""
    blocks: Floats
    """In how many blocks of keys, one after the other, attention runs."""

    @staticmethod
    def of(asked: Sequence[tuple[Team, float]], batch: float) -> "Widths":
        """One row a team with its samples; `batch` is the graph's."""

        def column(values: list[float]) -> Floats:
            return np.array(values, dtype=np.float64)[:, None]

        teams = [team for team, _ in asked]
        return Widths(
            tensor=column([team.tensor for team in teams]),
            context=column([team.context for team in teams]),
            expert=column([team.expert for team in teams]),
            rows=column([1 / team.tensor if team.sequence else 1.0 for team in teams]),
            growth=column([samples / batch for _, samples in asked]),
            blocks=column([team.context if team.keys is Keys.RING else 1 for team in teams]),
        )


def num_blocks(work: LayerWork, widths: Widths) -> Floats:
    """How often an op of the size that `divide` says runs: one row a team, one column an op."""
    return np.where(work.read_keys > 0, widths.blocks, 1.0)


def divide(work: LayerWork, widths: Widths) -> dict[str, Floats]:
    """Columns of a graph: one row a team, one column an op; of attention in blocks, one block."""
    graph, portions = work.graph, work.portions
    divided = work.role != Role.WHOLE
    t, c = widths.tensor, widths.context
    rows = np.where(divided, 1.0, widths.rows)  # of what a context member has
    experts = np.where(work.role == Role.EXPERT, widths.expert, 1.0)
    part = np.where(divided, 1 / t, 1.0)
    blocks = num_blocks(work, widths)
    columns = {
        "flops": _line(graph, "flops", widths.growth * rows / c * part, part / experts) / blocks,
        "bytes_read": _line(
            graph,
            "bytes_read",
            widths.growth
            * rows
            * _keep(portions.read_cut, t)
            * (_keep(1 - work.read_keys, c) - work.read_keys * (1 - 1 / blocks)),
            _keep(portions.fixed_read_cut, t * experts),
        ),
        "bytes_written": _line(
            graph,
            "bytes_written",
            widths.growth
            * rows
            * _keep(portions.written_cut, t)
            * (_keep(1 - work.written_keys, c) - work.written_keys * (1 - 1 / blocks)),
            _keep(portions.fixed_written_cut, t * experts),
        ),
    }
    for cut, name in PRODUCT_SIZES.items():
        columns[name] = _size(work, widths, cut, name, rows, experts)
    columns["product_columns"] = columns["product_columns"] / blocks  # keys
    return columns


def _keep(portion: Floats, width: Floats) -> Floats:
    """What is left of a size of which a portion is divided by a width."""
    left: Floats = portion / width + (1 - portion)
    return left


def _line(graph: Graph, name: str, grown: Floats, kept: Floats) -> Floats:
    whole, fixed = getattr(graph, name), getattr(graph, f"fixed_{name}")
    size: Floats = (whole - fixed) * grown + fixed * kept
    return size


def _size(
    work: LayerWork, widths: Widths, cut: ProductCut, name: str, rows: Floats, experts: Floats
) -> Floats:
    """One size of the products. A size that does not divide is padded, as a vocabulary is."""
    whole, fixed = getattr(work.graph, name), getattr(work.graph, f"fixed_{name}")
    size = fixed + (whole - fixed) * widths.growth
    has_rows = work.row_cut == cut
    size = np.where(has_rows, size * rows / widths.context * experts, size)
    if cut == ProductCut.COUNT:  # fewer experts, each with the tokens of all teams
        size = size / experts
    divided = size / widths.tensor
    padded = divided if cut == ProductCut.COUNT else np.ceil(divided - _ROUNDING)
    left: Floats = np.where(work.tensor_cut == cut, padded, size)
    return left
