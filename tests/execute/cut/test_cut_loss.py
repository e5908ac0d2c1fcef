"""Cross entropy of scores whose rows are cut is that of the whole scores."""

import pytest
import torch
from cut_oracle import check_op, operand

from meshwright.execute.cut.call import Uncut
from meshwright.execute.cut.cut import TERMS, WHOLE, plain_cut

aten = torch.ops.aten
CLASSES, ROWS = 11, 12


def targets() -> torch.Tensor:
    numbers = torch.randint(0, CLASSES, (ROWS,), generator=torch.manual_seed(2))
    numbers[::4] = -100
    return numbers


def test_softmax_and_its_gradient_are_cut_along_rows_and_refused_along_classes() -> None:
    scores, gradient = torch.randn(ROWS, CLASSES) * 30, torch.randn(ROWS, CLASSES)
    logs = scores.log_softmax(1)
    for cut in (plain_cut(0, ROWS), plain_cut(1, CLASSES)):
        forward = aten._log_softmax.default, operand(scores, cut), 1, False
        both = operand(gradient, cut), operand(logs, cut)
        backward = aten._log_softmax_backward_data.default, *both, 1, torch.float32
        for target, *args in (forward, backward):
            if cut.dim == 0:
                check_op(target, *args, expect=cut)
                continue
            with pytest.raises(Uncut):
                check_op(target, *args)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_the_loss_and_its_gradient_are_those_of_all_rows(
    width: int, weighted: bool, reduction: int, ignored: int
) -> None:
    logs = torch.randn(ROWS, CLASSES).log_softmax(1)
    numbers = targets().where(targets() >= 0, torch.tensor(ignored))
    target = operand(numbers)
    weight = operand(torch.rand(CLASSES)) if weighted else None
    rest = (target, weight, reduction, ignored)
    rows = plain_cut(0, ROWS)
    loss = TERMS if reduction else rows
    check_op(aten.nll_loss_forward.default, operand(logs, rows), *rest, width=width,
             expect=(loss, WHOLE))  # fmt: skip
    made, total = aten.nll_loss_forward.default(
        logs, numbers, weight.value if weight else None, reduction, ignored
    )
    gradient = operand(torch.randn_like(made)), operand(logs, rows)
    check_op(aten.nll_loss_backward.default, *gradient, *rest, operand(total), width=width,
             expect=rows)  # fmt: skip


def test_classes_that_are_cut_are_refused() -> None:
    logs = operand(torch.randn(8).log_softmax(0), plain_cut(0, 8))
    with pytest.raises(Uncut):
        check_op(aten.nll_loss_forward.default, logs, operand(torch.tensor(5)), None, 1, -100)
