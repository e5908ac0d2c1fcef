"""Ops on terms of a sum, as far as they can be done before the terms are added up."""

from collections.abc import Sequence
from typing import Any

from meshwright.execute.cut.call import MemberCall, Operand, Request, are_all, has_terms
from meshwright.execute.cut.cut import TERMS, WHOLE
from meshwright.execute.cut.index import add_terms

MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze",
    "expand", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "narrow",
    "detach", "alias", "clone", "contiguous", "lift_fresh_copy", "cat", "stack", "slice_backward",
    "select_backward", "roll", "flip", "copy",
})  # fmt: skip
"""Ops of which every entry of a result is an entry of an operand, or zero."""
_NEEDS = "whole operands in place of terms of a sum"


def cut_terms(request: Request) -> MemberCall:
    """Terms that stay terms; all else needs their sum."""
    operands = request.operands
    name = request.name
    if name in (*MOVES, "neg") and are_all(operands, TERMS):
        return request.same(TERMS)
    if name == "_to_copy" and _is_floating(request):
        return request.same(TERMS)
    if name in ("add", "sub") and _are_terms(request["self"], request["other"]):
        return request.same(TERMS)
    if name in ("mul", "div") and _is_scaled(request, operands):
        return request.same(TERMS)
    if name == "embedding_dense_backward" and request["indices"].cut is WHOLE:
        return request.same(TERMS)
    if name == "index_put" and _are_put(request):
        args = (request["self"], request["indices"], request["values"], request.member)
        return request.answer([TERMS], add_terms, args=args)
    raise request.refuse(_NEEDS)


def _are_put(request: Request) -> bool:
    """Whether terms are added at places that all members know to a tensor that they all have."""
    others = [each for each in request.operands if each is not request["values"]]
    return bool(request.arguments.get("accumulate")) and are_all(others, WHOLE)


def _is_floating(request: Request) -> bool:
    dtypes = (request["self"].value.dtype, request.value.dtype)
    return all(each.is_floating_point for each in dtypes)


def _are_terms(*values: Any) -> bool:
    return all(isinstance(each, Operand) and each.cut is TERMS for each in values)


def _is_scaled(request: Request, operands: Sequence[Operand]) -> bool:
    """Whether one factor, the dividend of a quotient, is terms and the other is whole."""
    first, second = request["self"], request["other"]
    if request.arguments.get("rounding_mode") is not None:
        return False
    others = [each for each in operands if each.cut is not TERMS]
    is_linear = len(others) == len(operands) - 1 and are_all(others, WHOLE)
    if _are_terms(first):
        return is_linear
    return is_linear and request.name == "mul" and not request.is_in_place and has_terms([second])
