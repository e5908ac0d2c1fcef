"""Ops that look entries up by their numbers: embeddings, gathers and their gradients."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from meshwright.execute.cut.call import MemberCall, Operand, Request
from meshwright.execute.cut.cut import TERMS, WHOLE, Cut, local_size, plain_bounds
from meshwright.execute.cut.label import Labels, Pattern, cut_along
from meshwright.execute.cut.pointwise import broadcast_labels

_aten = torch.ops.aten


def embed_rows(weight: Tensor, indices: Tensor, first: int) -> Tensor:
    """A member's term of an embedding: zeros for numbers that other members have the rows of.

    Its rows begin with number `first`.
    """
    own = indices - first
    is_own = (own >= 0) & (own < weight.shape[0])
    if weight.shape[0] == 0:
        return weight.new_zeros((*indices.shape, weight.shape[1]))
    rows: Tensor = _aten.embedding.default(weight, own.where(is_own, 0))
    return rows.masked_fill(~is_own.unsqueeze(-1), 0)


def embed_rows_backward(
    gradient: Tensor, indices: Tensor, first: int, count: int, padding: int
) -> Tensor:
    """A member's rows of the gradient of an embedding's weight; `padding`: a number without one."""
    own = indices - first
    is_own = (own >= 0) & (own < count) & (indices != padding)
    if count == 0:
        return gradient.new_zeros((0, gradient.shape[-1]))
    # All that is not its own adds nothing to its first row.
    kept = gradient.masked_fill(~is_own.unsqueeze(-1), 0)
    made: Tensor = _aten.embedding_dense_backward.default(
        kept, own.where(is_own, 0), count, -1, False
    )
    return made


def cut_embedding(request: Request) -> MemberCall:
    """Rows of a weight. Where its rows are cut, every member has those that it knows."""
    weight, indices = request["weight"], request["indices"]
    if isinstance(weight.cut, Cut) and weight.cut.dim == 0:
        if not (weight.cut.is_plain and indices.cut is WHOLE):
            raise request.refuse("rows cut as one segment and whole indices, or whole rows")
        first = plain_bounds(weight.cut.size, request.width, request.member)[0]
        return request.answer([TERMS], embed_rows, args=(weight, indices, first))
    places: list[Hashable] = list(range(indices.value.dim()))
    inputs: list[tuple[Operand, Labels]] = [(weight, ["row", "column"]), (indices, places)]
    pattern = Pattern(inputs=inputs, outputs=[[*places, "column"]], fixed=frozenset({"row"}))
    return cut_along(request, pattern)


def cut_embedding_backward(request: Request) -> MemberCall:
    """The gradient of a weight: tokens that are cut add up in it."""
    gradient, indices = request["grad_output"], request["indices"]
    wanted = request.wanted
    if isinstance(wanted, Cut) and wanted.dim == 0 and gradient.cut is WHOLE is indices.cut:
        if not request["scale_grad_by_freq"] and wanted.is_plain:
            return _rows_backward(request, wanted)
        return request.same()
    if gradient.cut is WHOLE is indices.cut:
        return request.same()
    places: list[Hashable] = list(range(indices.value.dim()))
    is_sum = not request["scale_grad_by_freq"]
    pattern = Pattern(
        inputs=[(gradient, [*places, "column"]), (indices, places)],
        outputs=[[None, "column"]],
        fixed=frozenset() if is_sum else frozenset(places),
        summed=frozenset(places) if is_sum else frozenset(),
        needs="a gradient that is cut along columns or, without frequencies, as the indices are",
    )
    return cut_along(request, pattern)


def _rows_backward(request: Request, wanted: Cut) -> MemberCall:
    first = plain_bounds(wanted.size, request.width, request.member)[0]
    count = local_size(wanted, request.width, request.member)
    args = (request["grad_output"], request["indices"], first, count, request["padding_idx"])
    return request.answer([wanted], embed_rows_backward, args=args)


def cut_gather(request: Request) -> MemberCall:
    """A gather from or a scatter into a dimension that is not cut. Neither is one in which some
    operand has fewer entries than the others, as these are the first ones of the whole."""
    operands = request.operands
    rank = request.value.dim()
    sizes = [{each.value.shape[dim] for each in operands} for dim in range(rank)]
    fixed = {dim for dim in range(rank) if len(sizes[dim]) > 1} | {request["dim"] % max(rank, 1)}
    pattern = Pattern(
        inputs=[(each, range(rank)) for each in operands],
        outputs=[range(rank)],
        fixed=frozenset(fixed),
        needs=f"operands cut alike along another dimension than {sorted(fixed)}",
    )
    return cut_along(request, pattern)


def cut_index_select(request: Request) -> MemberCall:
    """Some entries of a dimension that is not cut."""
    operand: Operand = request["self"]
    dim = request["dim"] % operand.value.dim()
    labels: list[Hashable] = [None if each == dim else each for each in range(operand.value.dim())]
    return cut_along(request, Pattern(inputs=[(operand, labels)], outputs=[labels]))


def add_terms(
    whole: Tensor, indices: Sequence[Tensor | None], terms: Tensor, member: int
) -> Tensor:
    """A member's term of entries added to a tensor that every member has: the first adds to it."""
    start = whole if member == 0 else torch.zeros_like(whole)
    made: Tensor = _aten.index_put.default(start, indices, terms, True)
    return made


def cut_index_put(request: Request) -> MemberCall:
    """Values put, or added, at places along first dimensions that are not cut.

    Of values that are added, members may have different ones: what each makes is then a term.
    """
    operand, values = request["self"], request["values"]
    places = _find_places(request["indices"])
    used = list(places)
    if used != list(range(len(used))) or not _are_numbers(places):
        raise request.refuse("numbers that index first dimensions, where an operand is cut")
    kept: list[Hashable] = list(range(len(used), operand.value.dim()))
    chosen, indices = _choose(places, has_labels=bool(request["accumulate"]))
    made = [*([None] * len(used)), *kept]
    inputs: list[tuple[Operand, Labels]] = [
        (operand, made),
        (values, [*chosen, *kept][len(chosen) + len(kept) - values.value.dim() :]),
        *indices,
    ]
    summed = frozenset(each for each in chosen if each is not None)
    pattern = Pattern(inputs=inputs, outputs=[made], summed=summed)
    call = cut_along(request, pattern)
    if call.cuts is not TERMS:
        return call
    return replace(call, target=add_terms, args=(*call.args[:3], request.member), kwargs={})


def cut_index(request: Request) -> MemberCall:
    """Indexing by tensors, along dimensions that are not cut; or by tensors that are cut."""
    operand, places = request["self"], _find_places(request["indices"])
    rank, used = operand.value.dim(), list(places)
    if not _are_numbers(places):
        raise request.refuse("indices that are numbers, where an operand is cut")
    kept: list[Any] = [dim for dim in range(rank) if dim not in used]
    chosen, indices = _choose(places, has_labels=True)
    # Where other dimensions lie between those that are indexed, torch puts the result's first.
    is_run = used == list(range(used[0], used[-1] + 1))
    place = used[0] if is_run else 0
    inputs = [(operand, [None if dim in used else dim for dim in range(rank)]), *indices]
    outputs = [[*kept[:place], *chosen, *kept[place:]]]
    return cut_along(request, Pattern(inputs=inputs, outputs=outputs))


def _find_places(indices: Sequence[Operand | None]) -> dict[int, Operand]:
    """By dimension that is indexed: what indexes it."""
    return {dim: each for dim, each in enumerate(indices) if each is not None}


def _are_numbers(places: Mapping[int, Operand]) -> bool:
    return not any(each.value.dtype in (torch.bool, torch.uint8) for each in places.values())


def _choose(
    places: Mapping[int, Operand], *, has_labels: bool
) -> tuple[list[Any], list[tuple[Operand, Labels]]]:
    """The labels of the dimensions that are chosen, and the indices with theirs."""
    operands = places.values()
    shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        *(each.value.shape for each in operands)
    )
    chosen = [("chosen", dim) if has_labels else None for dim in range(len(shape))]
    labels: dict[Any, Any] = dict(enumerate(chosen))
    own = [broadcast_labels(each.value.shape, shape) for each in operands]
    pairs = zip(operands, own, strict=True)
    return chosen, [(each, [labels.get(label) for label in row]) for each, row in pairs]
