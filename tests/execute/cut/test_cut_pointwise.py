"""Ops that work entry by entry, on shards, with broadcasting, in place and on terms."""

from typing import Any

import pytest
import torch
from cut_oracle import check_op, operand, run_members, shards

from meshwright.execute.cut.call import Narrowed, Uncut
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, Cut, joined, plain_cut
from meshwright.execute.cut.table import cut_call

aten = torch.ops.aten
FUSED = Cut.of(2, (6, 6))


@pytest.mark.parametrize("width", [2, 3])
def test_operands_are_broadcast_to_the_cut_of_the_result(width: int) -> None:
    x = operand(torch.randn(4, 5, 12), FUSED)
    for other in (
        operand(torch.randn(12), Cut.of(0, (6, 6))),
        operand(torch.randn(12)),
        operand(torch.randn(5, 1)),
        operand(torch.randn(4, 5, 12)),
        operand(torch.randn(())),
        2.5,
    ):
        check_op(aten.add.Tensor, x, other, width=width, expect=FUSED)
        check_op(aten.mul.Tensor, x, other, width=width, expect=FUSED)
    other = operand(torch.randn(12), Cut.of(0, (6, 6)))
    check_op(aten.sub.Tensor, operand(torch.randn(4, 5, 12)), other, width=width, expect=FUSED)


def test_an_operand_with_more_dimensions_moves_the_cut() -> None:
    bias = operand(torch.randn(6, 1), plain_cut(0, 6))
    check_op(aten.add.Tensor, operand(torch.randn(3, 1, 5)), bias, expect=plain_cut(1, 6))


@pytest.mark.parametrize("target", [
    aten.gelu.default, aten.tanh.default, aten.silu.default, aten.rsqrt.default, aten.exp.default,
    aten.relu.default, aten.logical_not.default, aten.isinf.default, aten.neg.default,
])  # fmt: skip
def test_functions_of_one_tensor_keep_uneven_cuts(target: Any) -> None:
    check_op(target, operand(torch.rand(3, 7) + 1, plain_cut(1, 7)), expect=plain_cut(1, 7))


def test_functions_of_several_tensors_narrow_what_is_whole() -> None:
    x, y = operand(torch.randn(4, 6), plain_cut(1, 6)), operand(torch.randn(4, 6))
    mask = operand(torch.rand(6) > 0.5)
    cut = plain_cut(1, 6)
    check_op(aten.where.self, mask, x, y, expect=cut)
    check_op(aten.masked_fill.Scalar, x, mask, 0.5, expect=cut)
    check_op(aten.gelu_backward.default, x, y, approximate="tanh", expect=cut)
    check_op(aten.addcmul.default, x, y, y, value=2.0, expect=cut)
    check_op(aten.native_dropout_backward.default, y, operand(mask.value, plain_cut(0, 6)), 2.0)
    call = cut_call(aten.add.Tensor, (x, y), {}, x.value, 2, 0)
    assert isinstance(call.args[1], Narrowed)
    assert call.args[1].cut == cut
    assert not call.draws


def test_cuts_that_differ_are_refused() -> None:
    x = operand(torch.randn(4, 4), plain_cut(0, 4))
    other = operand(torch.randn(4, 4), plain_cut(1, 4))
    with pytest.raises(Uncut, match=r"aten.add.Tensor: .*\(Cut\(0: 4\), Cut\(1: 4\)\)"):
        check_op(aten.add.Tensor, x, other)
    with pytest.raises(Uncut):
        check_op(aten.add.Tensor, x, operand(torch.randn(4, 4), Cut.of(0, (2, 2))))


def test_what_is_written_keeps_its_cut() -> None:
    x, y = operand(torch.randn(4, 6), plain_cut(1, 6)), operand(torch.randn(4, 6))
    for target in (aten.add_.Tensor, aten.mul_.Tensor, aten.copy_.default):
        check_op(target, x, y, expect=plain_cut(1, 6))
        with pytest.raises(Uncut, match="self, which it writes"):
            check_op(target, y, x)
    check_op(aten.fill_.Scalar, x, 3.0, expect=plain_cut(1, 6))
    check_op(aten.masked_fill_.Scalar, x, operand(torch.rand(4, 6) > 0.5), 3.0)


def test_terms_stay_terms_where_the_op_is_linear() -> None:
    terms, more = operand(torch.randn(4, 6), TERMS), operand(torch.randn(6), TERMS)
    whole = operand(torch.rand(4, 1) + 1)
    check_op(aten.add.Tensor, terms, more, expect=TERMS)
    check_op(aten.add.Tensor, terms, more, alpha=2, expect=TERMS)
    check_op(aten.sub.Tensor, terms, more, expect=TERMS)
    check_op(aten.add_.Tensor, terms, more, expect=TERMS)
    check_op(aten.mul.Tensor, terms, whole, expect=TERMS)
    check_op(aten.mul.Tensor, whole, terms, expect=TERMS)
    check_op(aten.mul.Tensor, terms, 2.0, expect=TERMS)
    check_op(aten.div.Tensor, terms, whole, expect=TERMS)
    check_op(aten.div.Scalar, terms, 3.0, expect=TERMS)
    check_op(aten.neg.default, terms, expect=TERMS)
    check_op(aten._to_copy.default, terms, dtype=torch.float64, expect=TERMS)
    check_op(aten.ones_like.default, terms, expect=WHOLE)
    check_op(aten.new_ones.default, terms, [4, 6], expect=WHOLE)


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (aten.add.Tensor, ("terms", "whole")),
        (aten.add.Tensor, ("terms", 1.0)),
        (aten.mul.Tensor, ("terms", "terms")),
        (aten.mul.Tensor, ("terms", "cut")),
        (aten.mul_.Tensor, ("whole", "terms")),
        (aten.div.Tensor, ("whole", "terms")),
        (aten.copy_.default, ("whole", "terms")),
        (aten.exp.default, ("terms",)),
        (aten.mm.default, ("terms", "whole")),
        (aten.sum.dim_IntList, ("terms", [0])),
    ],
)
def test_other_ops_need_the_sum_of_terms(target: Any, arguments: tuple[Any, ...]) -> None:
    kinds: dict[str, AnyCut] = {"terms": TERMS, "whole": WHOLE, "cut": plain_cut(0, 4)}
    args = [
        operand(torch.rand(4, 4) + 1, kinds[each]) if isinstance(each, str) else each
        for each in arguments
    ]
    with pytest.raises(Uncut, match="whole operands in place of terms"):
        check_op(target, *args)


def test_new_tensors_are_cut_as_what_they_are_like() -> None:
    x, cut = operand(torch.randn(4, 7), plain_cut(1, 7)), plain_cut(1, 7)
    check_op(aten.zeros_like.default, x, expect=cut)
    check_op(aten.full_like.default, x, 2.0, dtype=torch.float64, expect=cut)
    check_op(aten.new_zeros.default, x, [4, 7], expect=cut)
    check_op(aten.new_full.default, x, [3], 2.0, expect=WHOLE)
    check_op(aten.arange.default, 5, expect=WHOLE)


def test_ops_that_draw_say_so() -> None:
    x, cut = operand(torch.randn(4, 6), plain_cut(1, 6)), plain_cut(1, 6)
    value = torch.native_dropout(x.value, 0.5, True)
    call = cut_call(aten.native_dropout.default, (x, 0.5, True), {}, value, 2, 0)
    assert call.draws
    assert call.cuts == (cut, cut)
    for target, args in (
        (aten.bernoulli.p, (x, 0.5)),
        (aten.rand_like.default, (x,)),
        (aten.bernoulli_.float, (x, 0.5)),
    ):
        call = cut_call(target, args, {}, x.value, 2, 0)
        assert call.draws
        assert call.cuts == cut
    assert cut_call(aten.rand.default, ([3],), {}, torch.rand(3), 2, 0).draws


STATE = Cut.of(1, (4, 4))
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8,
        "amsgrad": False, "maximize": False}  # fmt: skip
SGD = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False,
       "maximize": False, "is_first_step": False}  # fmt: skip


def update_arguments(gradient: AnyCut, *state: AnyCut) -> list[Any]:
    """A list of a cut and a whole parameter, of their gradients, and of each kind of state."""
    return [
        [operand(torch.rand(3, 8), cut), operand(torch.rand(5))]
        for cut in (STATE, gradient, *state)
    ]


@pytest.mark.parametrize("gradient", [STATE, WHOLE])
@pytest.mark.parametrize("name", ["_fused_adamw_", "_fused_adam_", "_fused_sgd_"])
def test_updates_take_all_of_a_parameter_cut_alike(name: str, gradient: AnyCut) -> None:
    target, rest = getattr(aten, name).default, SGD if "sgd" in name else ADAM
    args = update_arguments(gradient, *[STATE] * (1 if rest is SGD else 2))
    args += [] if rest is SGD else [[], [operand(torch.ones(())), operand(torch.ones(()))]]
    whole = [[each.value.clone() for each in group] for group in args]
    target(*whole, **rest)
    calls = [cut_call(target, args, rest, None, 2, member) for member in range(2)]
    held = {id(each.value): shards(each.value, each.cut, 2) for group in args for each in group}
    run_members(calls, lambda each, member: held[id(each.value)][member])
    for expected, group in zip(whole, args, strict=True):
        for one, each in zip(expected, group, strict=True):
            torch.testing.assert_close(joined(held[id(each.value)], each.cut), one)


def test_updates_of_terms_or_of_state_that_is_cut_otherwise_are_refused() -> None:
    target = aten._fused_sgd_.default
    with pytest.raises(Uncut, match="in place of terms"):
        cut_call(target, update_arguments(TERMS, STATE), SGD, None, 2, 0)
    with pytest.raises(Uncut, match="cut alike"):
        cut_call(target, update_arguments(STATE, WHOLE), SGD, None, 2, 0)
