"""The negative log-likelihood of rows that are cut: a member has its rows of the scores.

Cross entropy over classes that a tensor team divides has no rule here, because its members exchange
numbers meanwhile: `meshwright.execute.rebuild.loss` calls it.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from meshwright.execute.cut.call import MemberCall, Operand, Request
from meshwright.execute.cut.cut import TERMS, WHOLE, Cut, pieces
from meshwright.execute.cut.label import Pattern, cut_along

NONE, MEAN = 0, 1
"""Values of the argument `reduction`; the remaining one, 2, is a sum."""
_SUM = 2


@dataclass(frozen=True)
class LossOfRows:
    """A member's term of the loss of rows that are cut, where it has all targets, and the weight of
    all rows."""

    cut: Cut
    width: int
    member: int
    __name__ = "nll_loss_forward"

    def __call__(
        self, logs: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
    ) -> tuple[Tensor, Tensor]:
        """The member's term of the loss, and the weight of all rows."""
        own = pieces(target, self.cut, self.width, self.member).contiguous()
        terms = torch.ops.aten.nll_loss_forward.default(logs, own, weight, _SUM, ignored)[0]
        total = sample_weights(target, weight, ignored, logs.dtype).sum()
        return (terms / total if reduction == MEAN else terms), total


def cut_nll_loss(request: Request) -> MemberCall:
    """The loss of rows that are cut: each row's, or a term of what they add up to."""
    logs: Operand = request["self"]
    call = cut_along(request, _rows_pattern(request))
    if request["reduction"] == NONE:  # the weight is zero then
        return replace(call, cuts=(call.cuts[0], WHOLE))
    if request["target"].cut is not WHOLE or not isinstance(logs.cut, Cut):
        raise request.refuse("targets that are whole, of which every member weighs all")
    own = LossOfRows(logs.cut.at(0), request.width, request.member)
    names = ("self", "target", "weight", "reduction", "ignore_index")
    return request.answer([TERMS, WHOLE], own, args=[request[name] for name in names])


def cut_nll_loss_backward(request: Request) -> MemberCall:
    """The gradient of the loss, cut as the rows are."""
    return cut_along(request, _rows_pattern(request))


def _rows_pattern(request: Request) -> Pattern:
    """Rows are cut alike; the loss of each is cut, their sum is terms, the weight has no rows."""
    logs, target = request["self"], request["target"]
    has_rows = logs.value.dim() == 2
    inputs = [(logs, ["row", None] if has_rows else [None]), (target, ["row"] * has_rows)]
    outputs: list[list[str | None]] = [["row", None]]
    if request.name == "nll_loss_forward":
        outputs = [["row"] if request["reduction"] == NONE else [], []]
    elif request["grad_output"].value.dim() == 1:
        inputs.append((request["grad_output"], ["row"]))
    return Pattern(inputs=inputs, outputs=outputs, summed=frozenset({"row"}))


def sample_weights(
    target: Tensor, weight: Tensor | None, ignored: int, dtype: torch.dtype
) -> Tensor:
    """How much each sample counts: by its class, and nothing where its target is ignored."""
    is_ignored = target == ignored
    if weight is None:
        return (~is_ignored).to(dtype)
    return weight[target.masked_fill(is_ignored, 0)].masked_fill(is_ignored, 0)
