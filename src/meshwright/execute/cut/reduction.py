"""Reductions, softmax and normalisation: ops that see a dimension as a whole."""

from collections.abc import Hashable

from torch import Tensor

from meshwright.execute.cut.call import MemberCall, Operand, Request
from meshwright.execute.cut.label import Labels, Pattern, cut_along
from meshwright.execute.cut.pointwise import broadcast_labels

_ADDING = {"sum"}
"""Reductions that add up, so that a member's part is a term."""


def cut_reduction(request: Request) -> MemberCall:
    """A reduction of some dimensions, or of all."""
    operand: Operand = request["self"]
    rank = operand.value.dim()
    given = request.arguments.get("dim")
    dims = [given] if isinstance(given, int) else given
    gone = {dim % rank for dim in dims} if dims else set(range(rank))
    keeps = bool(request.arguments.get("keepdim"))
    labels: list[Hashable] = [
        None if dim in gone else dim for dim in range(rank) if keeps or dim not in gone
    ]
    is_sum = request.name in _ADDING
    pattern = Pattern(
        inputs=[(operand, range(rank))],
        outputs=[labels] * len(request.values),
        fixed=frozenset() if is_sum else frozenset(gone),
        summed=frozenset(gone) if is_sum else frozenset(),
        needs="a cut of a dimension that it does not reduce",
    )
    return cut_along(request, pattern)


def cut_along_others(request: Request) -> MemberCall:
    """An op along one dimension, as softmax, that leaves the others: these may be cut."""
    operands = request.operands
    rank = operands[0].value.dim()
    pattern = Pattern(
        inputs=[(each, range(rank)) for each in operands],
        outputs=[range(rank)] * len(request.values),
        fixed=frozenset({request["dim"] % rank}),
        needs=f"a cut of another dimension than {request['dim']}",
    )
    return cut_along(request, pattern)


def cut_norm(request: Request) -> MemberCall:
    """Layer and RMS normalisation and their gradients, of features that are whole, on rows that are
    cut: these add up in the gradients of weights."""
    shape = request["input"].value.shape
    rows = len(shape) - len(request["normalized_shape"])

    def labels(value: Tensor | None) -> Labels:
        return () if value is None else broadcast_labels(value.shape, shape)

    pattern = Pattern(
        inputs=[(each, labels(each.value)) for each in request.operands],
        outputs=[labels(each) for each in request.values],
        fixed=frozenset(range(rows, len(shape))),
        summed=frozenset(range(rows)),
        needs="rows that are cut and features that are whole",
    )
    return cut_along(request, pattern)
