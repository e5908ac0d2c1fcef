"""Matrix products, also of groups, and convolutions. A cut depth makes products terms of a sum."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from meshwright.capture.fake import ALIGNED_BYTES
from meshwright.execute.cut.call import MemberCall, Operand, Request, has_terms
from meshwright.execute.cut.cut import TERMS, WHOLE, local_size
from meshwright.execute.cut.label import Labels, Pattern, cut_along, cut_spread, spread_label

_PRODUCTS = {
    "mm": ("self:mk", "mat2:kn", "mn"),
    "bmm": ("self:bmk", "mat2:bkn", "bmn"),
    "mv": ("self:mk", "vec:k", "m"),
    "dot": ("self:k", "tensor:k", ""),
    "addmm": ("mat1:mk", "mat2:kn", "mn"),
    "baddbmm": ("batch1:bmk", "batch2:bkn", "bmn"),
}
"""Arguments with a label for each dimension, and the labels of the result."""
_NEEDS = (
    "matrices that are cut along rows, columns or, both alike, depth, and a bias that is whole or "
    "cut as the result is"
)


def cut_product(request: Request) -> MemberCall:
    """A product, to which a bias may be added."""
    *factors, result = _PRODUCTS[request.name]
    named = dict(each.split(":") for each in factors)
    inputs: list[tuple[Operand, Labels]] = [
        (request[name], labels) for name, labels in named.items()
    ]
    added = request["self"] if "self" not in named else None
    if added is not None and not has_terms([added]):
        labels = result[len(result) - added.value.dim() :]
        sizes = zip(labels, added.value.shape, strict=True)
        inputs.append((added, [None if size == 1 else label for label, size in sizes]))
    pattern = Pattern(inputs=inputs, outputs=[result], summed=frozenset("k"), needs=_NEEDS)
    spread = spread_label(request, pattern)
    if added is not None and spread.cuts == (TERMS,) and request.member > 0:
        # The first member adds the bias. Others give it the factor zero, for which torch does not
        # read it.
        return cut_spread(request, spread, beta=0)
    return cut_spread(request, spread)


def cut_grouped_product(request: Request) -> MemberCall:
    """A product of groups of rows, each with its own matrix, or its gradients; groups stay whole.

    Groups are of the dimension without a matrix each: rows, columns, or the depth of both.
    """
    left, right = request["self"], request["mat2"]
    mine, theirs = ("mk", "gmk")[left.value.dim() - 2], ("kn", "gkn")[right.value.dim() - 2]
    made, grouped = {4: ("gmn", "k"), 5: ("mn", "n" if len(mine) == 3 else "m"), 6: ("gmn", "")}[
        len(mine + theirs)
    ]
    pattern = Pattern(
        inputs=[(left, mine), (right, theirs)],
        outputs=[made],
        fixed=frozenset(f"g{grouped}"),
        summed=frozenset("k"),
        needs="matrices that are cut along columns, rows or, both alike, depth, but not in groups",
    )
    spread = spread_label(request, pattern)
    call = cut_spread(request, spread)
    size = local_size(spread.cut, request.width, request.member) * request.value.element_size()
    return replace(call, target=multiply_padded) if size % ALIGNED_BYTES else call


def multiply_padded(left: Tensor, right: Tensor, *others: Any, **named: Any) -> Tensor:
    """A grouped product of matrices of any size, with zeros for what the kernel wants more."""
    lanes = ALIGNED_BYTES // left.element_size()
    depth, columns = -left.shape[-1] % lanes, -right.shape[-1] % lanes
    left = pad(left, (0, depth)).contiguous()
    right = pad(right, (0, columns, 0, depth)).contiguous()
    made: Tensor = torch.ops.aten._grouped_mm.default(left, right, *others, **named)
    return made[..., : made.shape[-1] - columns].contiguous()


def cut_convolution(request: Request) -> MemberCall:
    """A convolution, cut along samples or, where there are no groups, along output channels."""
    rank = request.value.dim()
    inputs = [(request["input"], _spatial(rank, "ni")), (request["weight"], _spatial(rank, "oi"))]
    if request["bias"] is not None:
        inputs.append((request["bias"], "o"))
    outputs = [_spatial(rank, "no")]
    return cut_along(request, Pattern(inputs=inputs, outputs=outputs, fixed=_fixed(request)))


def cut_convolution_backward(request: Request) -> MemberCall:
    """The gradients of input, weight and bias."""
    names, rank = {"grad_output": "no", "input": "ni", "weight": "oi"}, request["input"].value.dim()
    pattern = Pattern(
        inputs=[(request[name], _spatial(rank, labels)) for name, labels in names.items()],
        outputs=[_spatial(rank, "ni"), _spatial(rank, "oi"), "o"],
        fixed=_fixed(request),
        summed=frozenset("no"),
    )
    spread = spread_label(request, pattern)
    sizes = request["bias_sizes"]
    if sizes:
        sizes = request.local(sizes, spread.cuts[2] if spread.label == "o" else WHOLE)
    return cut_spread(request, spread, bias_sizes=sizes)


def _fixed(request: Request) -> frozenset[Hashable]:
    is_simple = request["groups"] == 1 and not request["transposed"]
    return frozenset("i" if is_simple else "io")


def _spatial(rank: int, labels: str) -> Labels:
    return [*labels, *[None] * (rank - len(labels))]
