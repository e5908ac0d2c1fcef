"""Fused attention and its gradients, cut along samples or heads."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from meshwright.execute.cut.call import Call, Operand, Request
from meshwright.execute.cut.label import Pattern, cut_along
from meshwright.execute.cut.pointwise import broadcast_labels

_QUERY_LIKE = ("query", "grad_out", "gradient", "made", "out", "log_sum", "logsumexp")
_KEY_LIKE = ("key", "value")
_MASKS = ("mask", "attn_mask")
_NEEDS = (
    "query, key and value cut alike along samples or heads; where several query heads share a key "
    "head, both counts of heads must divide by the width of the team"
)


def cut_attention(request: Request) -> Call:
    """Every head of every sample is on its own. With one key head for all query heads, the key is
    whole, and its gradients are terms."""
    query = request["query"].value
    front = query.dim() - 2
    inputs: list[tuple[Operand, Sequence[Hashable]]] = []
    for name, each in request.arguments.items():
        if not isinstance(each, Operand):
            continue
        if name in _MASKS:
            scores = (*query.shape[:-1], request["key"].value.shape[-2])
            own = broadcast_labels(each.value.shape, scores)
            inputs.append((each, [label if label in range(front) else None for label in own]))
        else:
            assert name in (*_QUERY_LIKE, *_KEY_LIKE), name
            inputs.append((each, _labels(each.value, front)))
    pattern = Pattern(
        inputs=inputs,
        outputs=[_labels(each, front) for each in request.values],
        summed=frozenset({front - 1}),
        needs=_NEEDS,
    )
    call = cut_along(request, pattern)
    dropout = request.arguments.get("dropout", request.arguments.get("dropout_p", 0.0))
    return replace(call, draws=dropout > 0)


def _labels(value: object, front: int) -> Sequence[Hashable]:
    """The dimensions of samples and heads have labels; one head stands for all."""
    shape = value.shape  # type: ignore[attr-defined]
    return [dim if dim < front and size > 1 else None for dim, size in enumerate(shape)]
