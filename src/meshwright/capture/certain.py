"""Decides comparisons of random numbers whose outcome is the same for every draw.

Models with layer drop (BART, OPT, Whisper) draw a number for each layer and skip the layer where it
is below a rate, which is zero by default: then no layer is ever skipped. What does depend on the
draw is left undecided.
"""

import operator
from collections.abc import Callable

import torch
from torch.fx import Node

_aten = torch.ops.aten
UNIFORM = frozenset({_aten.rand.default})
"""Ops that draw from [0, 1), of a shape that is their first argument."""
_COMPARISONS: dict[object, Callable[[float, float], bool]] = {
    _aten.lt.Scalar: operator.lt,
    _aten.le.Scalar: operator.le,
    _aten.gt.Scalar: operator.gt,
    _aten.ge.Scalar: operator.ge,
}
_LEAST, _GREATEST = 0.0, 1.0 - 2.0**-53
"""The greatest number below one that any floating-point type can draw."""


def find_certain_truth(node: Node) -> bool | None:
    """Whether a comparison of a uniform draw with a number holds; None where the draw decides.

    A comparison with a number is monotonic, so that its ends decide for all that lies between.
    """
    compare = _COMPARISONS.get(node.target)
    if compare is None:
        return None
    drawn, limit = node.args[0], node.args[1]
    if not isinstance(drawn, Node) or drawn.target not in UNIFORM:
        return None
    if not isinstance(limit, int | float):
        return None
    ends = {compare(_LEAST, limit), compare(_GREATEST, limit)}
    return ends.pop() if len(ends) == 1 else None
