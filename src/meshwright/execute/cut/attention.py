"""Fused attention and its gradients, cut along samples, heads or queries."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from meshwright.execute.cut.around import Arguments, Around
from meshwright.execute.cut.call import MemberCall, Operand, Request
from meshwright.execute.cut.cut import Cut, plain_bounds
from meshwright.execute.cut.label import Pattern, cut_along
from meshwright.execute.cut.pointwise import broadcast_labels

_QUERY_LIKE = ("query", "grad_out", "gradient", "made", "out", "log_sum", "logsumexp")
_KEY_LIKE = ("key", "value")
_MASKS = ("mask", "attn_mask")
_NEEDS = (
    "query, key and value cut alike along samples or heads, or the query alone along its rows; "
    "where several query heads share a key head, both counts of heads must divide by the width of "
    "the group"
)


@dataclass(frozen=True)
class LaterRows(Around):
    """Causal attention of a context member's queries, which do not begin with the first row."""

    first: int
    """The number of the first query among the rows of the keys."""
    names: tuple[str, ...]
    """The names of the op's arguments, in the order of the schema, up to the last that is given."""

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments with a mask in place of the causal flag, which would count queries from the
        first row, unless that is right."""
        named = dict(zip(self.names, args, strict=False)) | dict(kwargs)
        name, mask = find_mask(self.names, named)
        if mask is None and self.first == 0 and named["query"].shape[-2] == named["key"].shape[-2]:
            return args, kwargs
        named[name] = self.mask(named["query"], named["key"], mask)
        named["is_causal"] = False
        return [named.pop(name) for name in self.names[: len(args)]], named

    def mask(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
        """Which keys queries see, beside those that a mask hides; None: all of them."""
        if self.first + 1 >= key.shape[-2]:
            return mask
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1) + self.first
        seen = torch.arange(key.shape[-2], device=query.device) <= rows
        if mask is None:
            return seen
        is_choice = mask.dtype is torch.bool
        return mask & seen if is_choice else mask.masked_fill(~seen, float("-inf"))

    def _kept(self, made: Any, _args: Sequence[Any]) -> Any:
        return made


def find_mask(names: Sequence[str], arguments: Mapping[str, Any]) -> tuple[str, Tensor | None]:
    """What an attention calls its mask, of all names of its arguments, and the mask."""
    name = next(each for each in _MASKS if each in (*arguments, *names))
    return name, arguments.get(name)


def cut_attention(request: Request) -> MemberCall:
    """Every head of every sample is on its own. With one key head for all query heads, the key is
    whole, and its gradients are terms; so it is where queries are cut along their rows."""
    query = request["query"].value
    front = query.dim() - 2
    inputs: list[tuple[Operand, Sequence[Hashable]]] = []
    for name, each in request.arguments.items():
        if not isinstance(each, Operand):
            continue
        if name in _MASKS:
            scores = (*query.shape[:-1], request["key"].value.shape[-2])
            own = broadcast_labels(each.value.shape, scores)
            inputs.append((each, [label if label in range(front + 1) else None for label in own]))
        else:
            assert name in (*_QUERY_LIKE, *_KEY_LIKE), name
            inputs.append((each, _labels(each.value, front, is_query=name in _QUERY_LIKE)))
    is_forward = "out" not in request.arguments and "made" not in request.arguments
    pattern = Pattern(
        inputs=inputs,
        outputs=[
            _labels(each, front, is_query=is_forward or place == 0)
            for place, each in enumerate(request.values)
        ],
        summed=frozenset({front - 1, front}),
        needs=_NEEDS,
    )
    call = _after(request, cut_along(request, pattern), front)
    dropout = request.arguments.get("dropout", request.arguments.get("dropout_p", 0.0))
    return replace(call, draws=dropout > 0)


def _after(request: Request, call: MemberCall, front: int) -> MemberCall:
    """The call on rows of queries that may not be the first ones."""
    cut = request["query"].cut
    if not isinstance(cut, Cut) or cut.dim != front:
        return call
    if not cut.is_plain:
        raise request.refuse("rows of queries cut as one segment")
    if not request["is_causal"]:
        return call
    names = tuple(each.name for each in request.target._schema.arguments)
    first, _ = plain_bounds(cut.size, request.width, request.member)
    return replace(call, target=LaterRows(call.target, first, names))


def _labels(value: object, front: int, *, is_query: bool) -> Sequence[Hashable]:
    """The dimensions of samples and heads have labels, those of queries their rows; one head stands
    for all."""
    shape = value.shape  # type: ignore[attr-defined]
    last = front + is_query
    return [dim if dim < last and size > 1 else None for dim, size in enumerate(shape)]
