"""Cross entropy over classes that are cut: no member ever has the scores of all classes.

The functions here run on one member and talk to the others through a `Team`. Targets are whole.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from meshwright.execute.cut.call import AllReduce, Call, Operand, Request, Team
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, Cut, pieces, plain_bounds
from meshwright.execute.cut.label import Pattern, cut_along
from meshwright.execute.cut.reduction import cut_along_others

_aten = torch.ops.aten
_NONE, _MEAN = 0, 1
"""Values of the argument `reduction`; the remaining one is a sum."""


def log_softmax_cut(team: Team, scores: Tensor, dim: int, to_float: bool) -> Tensor:
    """A member's part of the logarithm of softmax along a dimension that is cut."""
    scores = scores.float() if to_float else scores
    exact = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    top = team.all_reduce_max(_greatest(exact, dim))
    shifted = exact - top
    total = team.all_reduce_sum(shifted.exp().sum(dim, keepdim=True))
    return (shifted - total.log()).to(scores.dtype)


def log_softmax_backward_cut(
    team: Team, gradient: Tensor, made: Tensor, dim: int, dtype: torch.dtype
) -> Tensor:
    """A member's part of its gradient."""
    half = gradient.dtype in (torch.float16, torch.bfloat16)
    exact, logs = (gradient.float(), made.float()) if half else (gradient, made)
    total = team.all_reduce_sum(exact.sum(dim, keepdim=True))
    return (exact - logs.exp() * total).to(dtype)


def nll_loss_cut(
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    first: int,
) -> tuple[Tensor, Tensor]:
    """A member's term of the loss, and the whole weight; its classes begin with number `first`."""
    counts = sample_weights(target, weight, ignored, logs.dtype)
    own, is_own = own_classes(logs, target, first)
    found = logs.new_zeros(target.shape)
    if logs.shape[-1] > 0:
        found = logs.gather(-1, own.unsqueeze(-1)).squeeze(-1)
    terms = (-found * counts).masked_fill(~is_own | (target == ignored), 0)
    total = counts.sum()
    if reduction == _NONE:
        return terms, total.new_zeros(())
    terms = terms.sum()
    return (terms / total if reduction == _MEAN else terms), total


def nll_loss_backward_cut(
    gradient: Tensor,
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total: Tensor,
    first: int,
) -> Tensor:
    """A member's part of the gradient of the loss; its classes begin with number `first`."""
    counts = sample_weights(target, weight, ignored, logs.dtype)
    own, is_own = own_classes(logs, target, first)
    each = -counts * (gradient / total if reduction == _MEAN else gradient)
    each = each.masked_fill(~is_own | (target == ignored), 0).to(logs.dtype)
    made = torch.zeros_like(logs)
    return made.scatter_(-1, own.unsqueeze(-1), each.unsqueeze(-1)) if logs.shape[-1] else made


def nll_loss_rows(
    team: Team,
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
) -> tuple[Tensor, Tensor]:
    """A member's term of the loss of rows that are cut, and the weight of all rows."""
    terms = _aten.nll_loss_forward.default(logs, target, weight, 2, ignored)[0]
    total = team.all_reduce_sum(sample_weights(target, weight, ignored, logs.dtype).sum())
    return (terms / total if reduction == _MEAN else terms), total


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
        """Both."""
        own = pieces(target, self.cut, self.width, self.member).contiguous()
        terms = _aten.nll_loss_forward.default(logs, own, weight, 2, ignored)[0]
        total = sample_weights(target, weight, ignored, logs.dtype).sum()
        return (terms / total if reduction == _MEAN else terms), total


def cut_log_softmax(request: Request) -> Call:
    """The logarithm of softmax, and its gradient."""
    operands = request.operands
    rank = operands[0].value.dim()
    dim = request["dim"] % rank
    cuts = {each.cut for each in operands}
    if not any(isinstance(cut, Cut) and cut.dim == dim for cut in cuts):
        return cut_along_others(request)
    if len(cuts) != 1:
        raise request.refuse("operands that are cut alike")
    (cut,) = cuts
    shape = (*request.value.shape[:dim], 1, *request.value.shape[dim + 1 :])
    half = request.value.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if half else request.value.dtype
    total = AllReduce("sum", tuple(shape), dtype)
    if request.name == "_log_softmax":
        given = [request["self"], dim, request["half_to_float"]]
        reduces = (AllReduce("max", tuple(shape), dtype), total)
        return replace(request.answer([cut], log_softmax_cut, args=given), reduces=reduces)
    given = [request["grad_output"], request["output"], dim, request["input_dtype"]]
    return replace(request.answer([cut], log_softmax_backward_cut, args=given), reduces=(total,))


def cut_nll_loss(request: Request) -> Call:
    """The loss: a term of it, on classes or rows that are cut."""
    logs: Operand = request["self"]
    names = ("self", "target", "weight", "reduction", "ignore_index")
    if _has_cut_classes(request, logs):
        cut = TERMS
        args = (*(request[name] for name in names), _first(request, logs.cut))
        return request.answer([cut, WHOLE], nll_loss_cut, args=args)
    pattern = _rows_pattern(request)
    call = cut_along(request, pattern)
    if request["reduction"] == _NONE:  # the weight is zero then
        return replace(call, cuts=(call.cuts[0], WHOLE))
    if request["target"].cut is WHOLE and isinstance(logs.cut, Cut):
        own = LossOfRows(logs.cut.at(0), request.width, request.member)
        args = tuple(request[name] for name in names)
        return request.answer([TERMS, WHOLE], own, args=args)
    given = call.args
    reduces = (AllReduce("sum", (), logs.value.dtype),)
    return replace(request.answer([TERMS, WHOLE], nll_loss_rows, args=given), reduces=reduces)


def cut_nll_loss_backward(request: Request) -> Call:
    """The gradient of the loss, cut as the classes or rows are."""
    logs: Operand = request["self"]
    names = ("self", "target", "weight", "reduction", "ignore_index", "total_weight")
    if _has_cut_classes(request, logs):
        args = (request["grad_output"], *(request[name] for name in names))
        args = (*args, _first(request, logs.cut))
        return request.answer([logs.cut], nll_loss_backward_cut, args=args)
    return cut_along(request, _rows_pattern(request))


def _rows_pattern(request: Request) -> Pattern:
    """Rows are cut alike; the loss of each is cut, their sum is terms, the weight has no rows."""
    logs, target = request["self"], request["target"]
    has_rows = logs.value.dim() == 2
    inputs = [(logs, ["row", None] if has_rows else [None]), (target, ["row"] * has_rows)]
    outputs: list[list[str | None]] = [["row", None]]
    if request.name == "nll_loss_forward":
        outputs = [["row"] if request["reduction"] == _NONE else [], []]
    elif request["grad_output"].value.dim() == 1:
        inputs.append((request["grad_output"], ["row"]))
    return Pattern(inputs=inputs, outputs=outputs, summed=frozenset({"row"}))


def _has_cut_classes(request: Request, logs: Operand) -> bool:
    if not (isinstance(logs.cut, Cut) and logs.cut.dim == logs.value.dim() - 1):
        return False
    others = [each for each in request.operands if each is not logs]
    if not logs.cut.is_plain or any(each.cut is not WHOLE for each in others):
        raise request.refuse("classes cut as one segment, and all else whole")
    return True


def _first(request: Request, cut: AnyCut) -> int:
    """The number of the member's first class."""
    assert isinstance(cut, Cut)
    return plain_bounds(cut.size, request.width, request.member)[0]


def _greatest(scores: Tensor, dim: int) -> Tensor:
    """The greatest score; less than any where a member has no classes."""
    if scores.shape[dim] > 0:
        return scores.amax(dim, keepdim=True)
    shape = [*scores.shape]
    shape[dim] = 1
    return scores.new_full(shape, -math.inf)


def sample_weights(
    target: Tensor, weight: Tensor | None, ignored: int, dtype: torch.dtype
) -> Tensor:
    """How much each sample counts: by its class, and nothing where its target is ignored."""
    is_ignored = target == ignored
    if weight is None:
        return (~is_ignored).to(dtype)
    return weight[target.masked_fill(is_ignored, 0)].masked_fill(is_ignored, 0)


def own_classes(logs: Tensor, target: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Targets counted from the member's first class, zero where they are not its own, and where
    they are."""
    own = target - first
    is_own = (own >= 0) & (own < logs.shape[-1])
    return own.where(is_own, 0), is_own
