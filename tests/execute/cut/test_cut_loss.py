"""Cross entropy of scores whose classes or rows are cut is that of the whole scores."""

import pytest
import torch
from cut_oracle import check_op, operand

from meshwright.execute.cut.call import AllReduce, Uncut
from meshwright.execute.cut.cut import TERMS, WHOLE, plain_cut
from meshwright.execute.cut.table import cut_call

aten = torch.ops.aten
CLASSES, ROWS = 11, 12


def targets() -> torch.Tensor:
    numbers = torch.randint(0, CLASSES, (ROWS,), generator=torch.manual_seed(2))
    numbers[::4] = -100
    return numbers


@pytest.mark.parametrize("width", [2, 3, 4])
def test_softmax_over_cut_classes_reduces_a_maximum_and_a_sum(width: int) -> None:
    scores = operand(torch.randn(ROWS, CLASSES) * 30, plain_cut(1, CLASSES))
    check_op(aten._log_softmax.default, scores, 1, False, width=width, expect=scores.cut)
    call = cut_call(aten._log_softmax.default, (scores, -1, False), {}, scores.value, width, 0)
    assert call.reduces == (
        AllReduce("max", (ROWS, 1), torch.float32),
        AllReduce("sum", (ROWS, 1), torch.float32),
    )


@pytest.mark.parametrize("width", [2, 3, 4])
def test_its_gradient_reduces_a_sum(width: int) -> None:
    logs = torch.randn(ROWS, CLASSES).log_softmax(1)
    cut = plain_cut(1, CLASSES)
    both = operand(torch.randn(ROWS, CLASSES), cut), operand(logs, cut)
    target = aten._log_softmax_backward_data.default
    check_op(target, *both, 1, torch.float32, width=width, expect=cut)
    call = cut_call(target, (*both, 1, torch.float32), {}, logs, width, 0)
    assert call.reduces == (AllReduce("sum", (ROWS, 1), torch.float32),)
    with pytest.raises(Uncut):
        check_op(target, both[0], operand(logs), 1, torch.float32)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_the_loss_and_its_gradient_are_those_of_all_classes(
    width: int, weighted: bool, reduction: int, ignored: int
) -> None:
    logs = torch.randn(ROWS, CLASSES).log_softmax(1)
    numbers = targets().where(targets() >= 0, torch.tensor(ignored))
    target = operand(numbers)
    weight = operand(torch.rand(CLASSES)) if weighted else None
    rest = (target, weight, reduction, ignored)
    classes, rows = plain_cut(1, CLASSES), plain_cut(0, ROWS)
    check_op(aten.nll_loss_forward.default, operand(logs, classes), *rest, width=width,
             expect=(TERMS, WHOLE))  # fmt: skip
    loss = TERMS if reduction else rows
    check_op(aten.nll_loss_forward.default, operand(logs, rows), *rest, width=width,
             expect=(loss, WHOLE))  # fmt: skip
    made, total = aten.nll_loss_forward.default(
        logs, numbers, weight.value if weight else None, reduction, ignored
    )
    gradient = torch.randn_like(made)
    for cut in (classes, rows):
        check_op(aten.nll_loss_backward.default, operand(gradient), operand(logs, cut), *rest,
                 operand(total), width=width, expect=cut)  # fmt: skip


def test_one_sample_has_classes_only() -> None:
    logs = operand(torch.randn(8).log_softmax(0), plain_cut(0, 8))
    target = operand(torch.tensor(5))
    check_op(aten.nll_loss_forward.default, logs, target, None, 1, -100, expect=(TERMS, WHOLE))


def test_half_precision_is_summed_in_single() -> None:
    scores = operand(torch.randn(3, 4, dtype=torch.bfloat16), plain_cut(1, 4))
    call = cut_call(aten._log_softmax.default, (scores, 1, False), {}, scores.value, 2, 0)
    assert {each.dtype for each in call.reduces} == {torch.float32}
