"""Ops that work entry by entry, on operands that are broadcast; also those that fill and update."""

from collections.abc import Sequence

from meshwright.execute.cut.call import MemberCall, Narrowed, Operand, Request
from meshwright.execute.cut.cut import WHOLE, Cut
from meshwright.execute.cut.label import Labels, Pattern, cut_along


def broadcast_labels(shape: Sequence[int], result: Sequence[int]) -> Labels:
    """The dimensions of the result that a broadcast operand's dimensions are; None where it has one
    entry for all."""
    behind = len(result) - len(shape)
    return [
        None if size != result[dim + behind] or size == 1 else dim + behind
        for dim, size in enumerate(shape)
    ]


def cut_pointwise(request: Request) -> MemberCall:
    """Results are cut as the operands are, which are broadcast to the shape of every result."""
    shape = request.values[0].shape
    pattern = Pattern(
        inputs=[(each, broadcast_labels(each.value.shape, shape)) for each in request.operands],
        outputs=[broadcast_labels(each.shape, shape) for each in request.values],
    )
    return cut_along(request, pattern)


def cut_like(request: Request) -> MemberCall:
    """A new tensor in the shape of one whose numbers do not count: the sum of terms is as good."""
    cut = request.operands[0].cut
    return request.same(cut if isinstance(cut, Cut) else WHOLE)


def cut_new(request: Request) -> MemberCall:
    """A new tensor of a given size; it is cut as the operand is, where it has its shape."""
    operand = request["self"]
    is_like = list(operand.value.shape) == list(request["size"])
    if not (is_like and isinstance(operand.cut, Cut)):
        return request.same(WHOLE)
    return request.answer([operand.cut], size=request.local(operand.value.shape, operand.cut))


def cut_update(request: Request) -> MemberCall:
    """A fused update of lists of parameters: all that belongs to a parameter is cut as it is."""
    lists = {name: each for name, each in request.arguments.items() if isinstance(each, list)}
    changes = {
        name: [
            _own_part(request, parameter, each)
            for parameter, each in zip(lists["self"], operands, strict=True)
        ]
        for name, operands in lists.items()
        if operands
    }
    return request.answer([WHOLE], **changes)


def _own_part(request: Request, parameter: Operand, operand: Operand) -> Operand | Narrowed:
    """A gradient may be whole; what is kept from step to step must be cut as the parameter."""
    if operand.cut == parameter.cut or operand.value.dim() == 0:
        return operand
    if operand.cut is WHOLE and any(operand is each for each in request["grads"]):
        return Narrowed(operand, parameter.cut)
    raise request.refuse("a parameter, its gradient and its state cut alike")
