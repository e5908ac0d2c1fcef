"""Ops that move entries without changing them: a cut dimension is followed to where it goes."""

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any

import torch

from meshwright.execute.cut.call import MemberCall, Narrowed, Operand, Request
from meshwright.execute.cut.cut import WHOLE, AnyCut, Cut, plain_cut, through_view
from meshwright.execute.cut.label import Pattern, cut_along

_aten = torch.ops.aten


def cut_view(request: Request) -> MemberCall:
    """A view of another shape. A shard may lie in memory otherwise than the whole tensor does, so
    that it is copied where no view is possible."""
    operand, shape = request["self"], tuple(request.value.shape)
    if request.value.dtype != operand.value.dtype:
        raise request.refuse("a whole operand, to be seen as another type")
    cut = through_view(operand.cut, operand.value.shape, shape, request.width)
    if cut is None:
        raise request.refuse(
            f"a cut of shape {tuple(operand.value.shape)} that is one of shape {shape}, too, over "
            f"a group of {request.width}"
        )
    target = _aten.reshape.default
    return request.answer([cut], target, args=(operand, request.local(shape, cut)))


def cut_permuted(request: Request) -> MemberCall:
    """Dimensions in another order."""
    operand: Operand = request["self"]
    order = list(range(operand.value.dim()))
    if request.name == "permute":
        order = [dim % len(order) for dim in request["dims"]]
    elif request.name == "t":
        order.reverse()
    else:
        first, second = request["dim0"], request["dim1"]
        order[first], order[second] = order[second], order[first]
    return _moved(request, order)


def cut_unsqueezed(request: Request) -> MemberCall:
    """One more dimension of one entry."""
    labels: list[Hashable] = list(range(request["self"].value.dim()))
    labels.insert(request["dim"] % (len(labels) + 1), None)
    return _moved(request, labels)


def cut_squeezed(request: Request) -> MemberCall:
    """Without dimensions of one entry. A shard may have one where the whole tensor has more, so
    dimensions are named."""
    shape = request["self"].value.shape
    dims = _dims(request.arguments.get("dim"), len(shape))
    gone = [dim for dim in dims if shape[dim] == 1]
    labels = [dim for dim in range(len(shape)) if dim not in gone]
    cut: Cut = request["self"].cut
    if cut.dim not in labels:
        raise request.refuse("a cut of a dimension that stays")
    args = (request["self"], gone)
    return request.answer([cut.at(labels.index(cut.dim))], _aten.squeeze.dims, args=args)


def cut_expanded(request: Request) -> MemberCall:
    """Dimensions of one entry repeated without a copy; the one that is cut has more entries."""
    operand, shape = request["self"], request.value.shape
    behind = len(shape) - operand.value.dim()
    cut: Cut = operand.cut.at(operand.cut.dim + behind)
    if operand.cut.size != shape[cut.dim]:
        raise request.refuse("a cut of a dimension that is not expanded")
    return request.answer([cut], size=request.local(shape, cut))


def cut_slice(request: Request) -> MemberCall:
    """A range of a dimension; of the one that is cut, a range of whole segments."""
    operand, dim = request["self"], request["dim"] % request["self"].value.dim()
    size, length = operand.value.shape[dim], request.value.shape[dim]
    if operand.cut.dim != dim:
        return request.same(operand.cut)
    start = 0 if request["start"] is None else request["start"]
    start = min(max(start + size if start < 0 else start, 0), size)
    if request["step"] != 1:
        raise request.refuse("a dimension that is not cut, for steps other than 1")
    cut, local_start, local_length = _range(request, operand.cut, start, length)
    # A slice again, not a narrow, so that a second team can cut what the first has left.
    args = (operand, dim, local_start, local_start + local_length)
    return request.answer([cut], _aten.slice.Tensor, args=args)


def cut_select(request: Request) -> MemberCall:
    """One entry of a dimension that is not cut, or all of them, one by one."""
    dim = request["dim"] % request["self"].value.dim()
    labels = [each for each in range(request["self"].value.dim()) if each != dim]
    return _moved(request, labels)


def cut_split(request: Request) -> MemberCall:
    """Consecutive ranges of a dimension; of the one that is cut, of whole segments each."""
    operand: Operand = request["self"]
    dim = request["dim"] % operand.value.dim()
    sizes = [each.shape[dim] for each in request.values]
    if operand.cut.dim != dim:
        cuts, lengths = [operand.cut] * len(sizes), sizes
    else:
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        ranges = [_range(request, operand.cut, *each) for each in zip(starts, sizes, strict=True)]
        cuts, lengths = [each[0] for each in ranges], [each[2] for each in ranges]
    return request.answer(cuts, _aten.split_with_sizes.default, args=(operand, lengths, dim))


def cut_joined(request: Request) -> MemberCall:
    """Tensors one after the other; along the cut dimension their segments follow each other."""
    operands: Sequence[Operand] = request["tensors"]
    full = [each for each in operands if tuple(each.value.shape) != (0,)]  # torch leaves these out
    rank = full[0].value.dim()
    dim = request["dim"] % rank
    if any(isinstance(each.cut, Cut) and each.cut.dim == dim for each in full):
        return _joined_along(request, full, dim)
    labels = [None if each == dim else each for each in range(rank)]
    return cut_along(request, Pattern(inputs=[(each, labels) for each in full], outputs=[labels]))


def _joined_along(request: Request, operands: Sequence[Operand], dim: int) -> MemberCall:
    parts: list[Operand | Narrowed] = []
    sizes: list[int] = []
    for each in operands:
        own = plain_cut(dim, each.value.shape[dim]) if each.cut is WHOLE else each.cut
        if not isinstance(own, Cut) or own.dim != dim or not own.divides(request.width):
            raise request.refuse(
                f"tensors that are all cut along dimension {dim} into equal parts, or whole"
            )
        parts.append(Narrowed(each, own) if each.cut is WHOLE else each)
        sizes += own.sizes
    return request.answer([Cut.of(dim, sizes)], tensors=parts)


def cut_stacked(request: Request) -> MemberCall:
    """Tensors along a new dimension."""
    operands: Sequence[Operand] = request["tensors"]
    rank = operands[0].value.dim()
    result: list[Hashable] = list(range(rank))
    result.insert(request["dim"] % (rank + 1), None)
    inputs = [(each, range(rank)) for each in operands]
    return cut_along(request, Pattern(inputs=inputs, outputs=[result]))


def cut_slice_backward(request: Request) -> MemberCall:
    """Entries put back into zeros, which are segments beside them where their dimension is cut."""
    sizes, dim = request["input_sizes"], request["dim"] % len(request["input_sizes"])
    operand: Operand = request["grad_output"]
    result: list[Hashable] = [None if each == dim else each for each in range(len(sizes))]
    labels = [each for each in result if each is not None]
    if request.name == "slice_backward":
        labels = list(result)
    if labels[operand.cut.dim] is None:
        return _put_back(request, operand, sizes[dim])
    cut: Cut = operand.cut.at(result.index(labels[operand.cut.dim]))
    return request.answer([cut], input_sizes=request.local(sizes, cut))


def _put_back(request: Request, operand: Operand, size: int) -> MemberCall:
    """A range of segments among zeros, of which every member has its part, too."""
    start, stop, _ = slice(request["start"], request["end"], request["step"]).indices(size)
    cut: Cut = operand.cut
    sizes = [each for each in (start, *cut.sizes, size - stop) if each]
    around = Cut.of(cut.dim, sizes)
    if request["step"] != 1 or not around.divides(request.width):
        raise request.refuse(f"a range of dimension {cut.dim} that all members have equal parts of")
    width, shape = request.width, request.local(request["input_sizes"], around)
    return request.answer([around], input_sizes=shape, start=start // width, end=stop // width)


def cut_beside(request: Request) -> MemberCall:
    """Ops that move entries along the dimensions that they name, none of which is cut."""
    operand = request.operands[0]
    rank = operand.value.dim()
    if request.name == "constant_pad_nd":
        pad = request["pad"]
        moved = {rank - 1 - place // 2 for place, each in enumerate(pad) if each != 0}
    elif request.name in ("tril", "triu"):
        moved = {rank - 2, rank - 1}
    else:
        moved = set(_dims(request["dims"], rank))
    if operand.cut.dim in moved:
        raise request.refuse(f"a cut of a dimension other than {sorted(moved)}")
    return request.same(operand.cut)


def _moved(request: Request, labels: Sequence[Hashable]) -> MemberCall:
    """The same call, after which the dimensions of all results are these of the operand's."""
    inputs = [(request["self"], range(request["self"].value.dim()))]
    return cut_along(request, Pattern(inputs=inputs, outputs=[labels] * len(request.values)))


def _range(request: Request, cut: Cut, start: int, length: int) -> tuple[AnyCut, int, int]:
    """The cut of a range of a cut dimension, and where the member's part of it begins and how long
    it is."""
    if (start, length) == (0, cut.size):
        return cut, 0, request.local((cut.size,), cut.at(0))[0]
    borders = list(accumulate(cut.sizes, initial=0))
    pairs = zip(borders, cut.sizes, strict=False)
    sizes = [size for place, size in pairs if start <= place < start + length]
    begins = start in borders and sum(sizes) == length and length > 0
    if not (begins and cut.divides(request.width)):
        raise request.refuse(
            f"segments that end at {start} and {start + length} of dimension {cut.dim}"
        )
    width = request.width
    return Cut.of(cut.dim, sizes), start // width, length // width


def _dims(given: Any, rank: int) -> list[int]:
    """Dimensions that an argument names; none: all."""
    if given is None or given == []:
        return list(range(rank))
    dims = [given] if isinstance(given, int) else given
    return [dim % rank for dim in dims]
