"""Reductions, softmax, normalisation, attention and lookups on shards."""

from typing import Any

import pytest
import torch
from cut_oracle import check_op, operand

from meshwright.capture import attention as _registers_our_ops  # noqa: F401
from meshwright.execute.cut.call import Uncut
from meshwright.execute.cut.cut import TERMS, WHOLE, Cut, plain_cut
from meshwright.execute.cut.table import cut_call

aten = torch.ops.aten
ours = torch.ops.meshwright


def test_reductions_of_other_dimensions_keep_the_cut() -> None:
    x = operand(torch.randn(3, 8, 5), plain_cut(1, 8))
    for target in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default):
        check_op(target, x, [0], True, expect=plain_cut(1, 8))
        check_op(target, x, [0, -1], expect=plain_cut(0, 8))
    check_op(aten.var.correction, x, [2], correction=1, keepdim=True, expect=plain_cut(1, 8))
    check_op(aten.var_mean.correction, x, [0], correction=0, expect=(plain_cut(0, 8),) * 2)
    check_op(aten.logsumexp.default, x, [2], expect=plain_cut(1, 8))
    check_op(aten.max.dim, x, 2, expect=(plain_cut(1, 8),) * 2)
    check_op(aten.cumsum.default, x, 0, expect=plain_cut(1, 8))
    check_op(aten.max.other, x, operand(torch.randn(8, 5)), expect=plain_cut(1, 8))


def test_a_sum_over_the_cut_dimension_is_terms() -> None:
    x = operand(torch.randn(3, 7), plain_cut(1, 7))
    check_op(aten.sum.dim_IntList, x, [1], True, expect=TERMS)
    check_op(aten.sum.dim_IntList, x, [0, 1], expect=TERMS)
    check_op(aten.sum.default, x, expect=TERMS)
    for target in (aten.mean.dim, aten.amax.default):
        with pytest.raises(Uncut, match="a dimension that it does not reduce"):
            check_op(target, x, [1])


def test_softmax_of_another_dimension_keeps_the_cut() -> None:
    x, g = torch.randn(4, 6, 5), torch.randn(4, 6, 5)
    cut = Cut.of(1, (4, 2))
    for target in (aten._softmax.default, aten._log_softmax.default):
        check_op(target, operand(x, cut), -1, False, expect=cut)
    for target in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default):
        both = operand(g), operand(x.softmax(-1), cut)
        check_op(target, *both, -1, torch.float32, expect=cut)
    with pytest.raises(Uncut):
        check_op(aten._softmax.default, operand(x, cut), 1, False)


@pytest.mark.parametrize("width", [2, 4])
def test_rows_are_normalised_and_add_up_in_weights(width: int) -> None:
    x, g = torch.randn(3, 8, 6), torch.randn(3, 8, 6)
    weight, bias = operand(torch.randn(6)), operand(torch.randn(6))
    cut = plain_cut(1, 8)
    check_op(aten.native_layer_norm.default, operand(x, cut), [6], weight, bias, 1e-5, width=width,
             expect=(cut, cut, cut))  # fmt: skip
    _, mean, scale = aten.native_layer_norm.default(x, [6], weight.value, bias.value, 1e-5)
    for cut_g in (cut, WHOLE):
        check_op(aten.native_layer_norm_backward.default, operand(g, cut_g), operand(x, cut), [6],
                 operand(mean, cut), operand(scale, cut), weight, bias, [True, True, True],
                 width=width, expect=(cut, TERMS, TERMS))  # fmt: skip
    with pytest.raises(Uncut, match="features that are whole"):
        check_op(aten.native_layer_norm.default, operand(x, plain_cut(2, 6)), [6], weight, bias, 0)
    check_op(aten._fused_rms_norm.default, operand(x, cut), [6], weight, 1e-5, width=width,
             expect=(cut, cut))  # fmt: skip
    _, scale = aten._fused_rms_norm.default(x, [6], weight.value, 1e-5)
    args = (operand(g, cut), operand(x, cut), [6], operand(scale, cut), weight, [True, True])
    value = (x, weight.value)  # a CPU has no kernel for it
    call = cut_call(aten._fused_rms_norm_backward.default, args, {}, value, width, 0)
    assert call.cuts == (cut, TERMS)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("width", "key_heads"), [(2, 4), (4, 4), (2, 2), (2, 1), (4, 8)])
def test_attention_is_cut_along_heads_and_samples(width: int, key_heads: int, masked: bool) -> None:
    query = torch.randn(4, 8, 5, 3)
    key, value = torch.randn(4, key_heads, 6, 3), torch.randn(4, key_heads, 6, 3)
    mask = operand(torch.randn(4, 1, 5, 6)) if masked else None
    rest = (mask, 0.0, False, None)
    made, log_sum = ours.attention.default(query, key, value, mask and mask.value, *rest[1:])
    gradient = torch.randn_like(made)
    samples, heads = plain_cut(0, 4), plain_cut(1, 8)
    key_cut = plain_cut(1, key_heads) if key_heads > 1 else WHOLE
    for cut, other in ((samples, samples), (heads, key_cut), (heads, WHOLE)):
        keys = operand(key, other), operand(value, other)
        check_op(ours.attention.default, operand(query, cut), *keys, *rest, width=width,
                 expect=(cut, cut))  # fmt: skip
        key_made = key_cut if cut == heads else samples
        key_made = TERMS if key_made is WHOLE else key_made
        check_op(ours.attention_backward.default, operand(gradient, cut), operand(query, cut),
                 *keys, operand(made, cut), operand(log_sum, cut), *rest, width=width,
                 expect=(cut, key_made, key_made))  # fmt: skip
    cut_keys = (operand(query), operand(key, plain_cut(2, 6)), operand(value))
    with pytest.raises(Uncut, match="along samples or heads"):
        check_op(ours.attention.default, *cut_keys, *rest)


@pytest.mark.parametrize("mask", [None, "added", "chosen", "alike"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("width", "key_heads"), [(2, 4), (4, 2), (2, 1)])
def test_queries_are_cut_along_their_rows(
    width: int, key_heads: int, is_causal: bool, mask: str | None
) -> None:
    """Each member's queries see all keys up to their own place, of whose gradients it has terms."""
    query = torch.randn(3, 4, 8, 5)
    key, value = torch.randn(3, key_heads, 8, 5), torch.randn(3, key_heads, 8, 5)
    added = torch.randn(3, 1, 8, 8)
    masks = {None: None, "added": added, "chosen": added > -2, "alike": added[:1, :, :1]}
    chosen = masks[mask]
    rest = (None if chosen is None else operand(chosen), 0.0, is_causal, None)
    made, log_sum = ours.attention.default(query, key, value, chosen, *rest[1:])
    rows, keys = plain_cut(2, 8), (operand(key), operand(value))
    check_op(ours.attention.default, operand(query, rows), *keys, *rest, width=width,
             expect=(rows, rows))  # fmt: skip
    check_op(ours.attention_backward.default, operand(torch.randn_like(made), rows),
             operand(query, rows), *keys, operand(made, rows), operand(log_sum, rows), *rest,
             width=width, expect=(rows, TERMS, TERMS))  # fmt: skip


@pytest.mark.parametrize(("width", "heads", "key_heads"), [(2, 6, 3), (4, 8, 2)])
def test_key_heads_that_do_not_divide_are_refused(width: int, heads: int, key_heads: int) -> None:
    # of six query heads members have three each, of which the middle two share a key head
    query, key = torch.randn(2, heads, 5, 3), torch.randn(2, key_heads, 5, 3)
    for cut in (plain_cut(1, key_heads), WHOLE):
        keys = operand(key, cut), operand(key.clone(), cut)
        args = (operand(query, plain_cut(1, heads)), *keys, None, 0.0, True, None)
        with pytest.raises(Uncut, match="both counts of heads must divide"):
            check_op(ours.attention.default, *args, width=width)


def test_torch_s_own_fused_attention_is_cut_too() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    cut = plain_cut(1, 4)
    inputs = [operand(each, cut) for each in (q, k, v)]
    check_op(forward, *inputs, 0.0, True, width=4, expect=(cut, cut))
    mask = operand(torch.randn(2, 4, 5, 5))
    check_op(forward, *inputs, attn_mask=mask, expect=(cut, cut))
    made, log_sum = forward(q, k, v, 0.0, True)
    check_op(backward, operand(torch.randn_like(made), cut), *inputs, operand(made, cut),
             operand(log_sum, cut), 0.0, True, width=4, expect=(cut, cut, cut))  # fmt: skip


def test_attention_that_drops_draws() -> None:
    q = operand(torch.randn(2, 4, 5, 3), plain_cut(1, 4))
    value = (q.value, q.value[..., 0])
    args = (q, q, q, None, 0.1, True, None)
    assert cut_call(ours.attention.default, args, {}, value, 2, 0).draws


@pytest.mark.parametrize("width", [2, 3, 4])
def test_rows_of_a_vocabulary_may_be_cut(width: int) -> None:
    weight, numbers = torch.randn(11, 12), torch.randint(0, 11, (3, 12))
    cut = plain_cut(0, 11)
    check_op(aten.embedding.default, operand(weight, cut), operand(numbers), width=width,
             expect=TERMS)  # fmt: skip
    check_op(aten.embedding.default, operand(weight, plain_cut(1, 12)), operand(numbers),
             width=width, expect=plain_cut(2, 12))  # fmt: skip
    check_op(aten.embedding.default, operand(weight), operand(numbers, plain_cut(1, 12)), 3,
             width=width, expect=plain_cut(1, 12))  # fmt: skip
    with pytest.raises(Uncut):
        check_op(aten.embedding.default, operand(weight, cut), operand(numbers, plain_cut(1, 12)))


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("padding", [-1, 4])
def test_gradients_of_a_vocabulary_are_rows_columns_or_terms(width: int, padding: int) -> None:
    gradient, numbers = torch.randn(3, 12, 12), torch.randint(0, 11, (3, 12))
    back, rest = aten.embedding_dense_backward.default, (11, padding, False)
    rows = plain_cut(0, 11)
    check_op(back, operand(gradient), operand(numbers), *rest, width=width, wanted=rows,
             expect=rows)  # fmt: skip
    check_op(back, operand(gradient), operand(numbers), *rest, width=width, expect=WHOLE)
    check_op(back, operand(gradient, plain_cut(2, 12)), operand(numbers), *rest, width=width,
             expect=plain_cut(1, 12))  # fmt: skip
    for cut in (plain_cut(1, 12), WHOLE):
        check_op(back, operand(gradient, plain_cut(1, 12)), operand(numbers, cut), *rest,
                 width=width, expect=TERMS)  # fmt: skip
    with pytest.raises(Uncut):
        check_op(back, operand(gradient, plain_cut(1, 12)), operand(numbers), 11, -1, True)


def test_entries_are_looked_up_beside_the_cut() -> None:
    x, numbers = torch.randn(4, 6, 8), torch.randint(0, 6, (4, 3, 8))
    cut = plain_cut(2, 8)
    check_op(aten.gather.default, operand(x, cut), 1, operand(numbers), expect=cut)
    check_op(aten.scatter.src, operand(x, cut), 1, operand(numbers[:, :1]),
             operand(torch.randn(4, 1, 8)), expect=cut)  # fmt: skip
    check_op(aten.index_select.default, operand(x, cut), 1, operand(torch.tensor([2, 0])),
             expect=cut)  # fmt: skip
    with pytest.raises(Uncut):
        check_op(aten.gather.default, operand(x, plain_cut(1, 6)), 1, operand(numbers))
    few = operand(torch.randint(0, 6, (4, 3, 4)), plain_cut(2, 4))
    with pytest.raises(Uncut):  # its second half has the third and fourth of eight
        check_op(aten.gather.default, operand(x), 1, few)
    chosen: Any = operand(torch.randint(0, 4, (5, 6)))
    check_op(aten.index.Tensor, operand(x, cut), [chosen], expect=plain_cut(3, 8))
    check_op(aten.index.Tensor, operand(x, plain_cut(0, 4)), [None, chosen],
             expect=plain_cut(0, 4))  # fmt: skip
    check_op(aten.index.Tensor, operand(x, plain_cut(1, 6)), [chosen, None, chosen],
             expect=plain_cut(2, 6))  # fmt: skip
    cut_numbers = operand(chosen.value, plain_cut(1, 6))
    check_op(aten.index.Tensor, operand(x), [cut_numbers], expect=plain_cut(1, 6))
    with pytest.raises(Uncut):
        check_op(aten.index.Tensor, operand(x, cut), [operand(torch.rand(4) > 0.5)])


def test_terms_are_added_to_what_all_members_have() -> None:
    numbers, terms = torch.randint(0, 5, (4, 6)), torch.randn(4, 6, 3)
    given = operand(torch.randn(5, 3)), [operand(numbers)], operand(terms, TERMS)
    check_op(aten.index_put.default, *given, True, expect=TERMS)
    with pytest.raises(Uncut):  # of those put at one place, the last counts
        check_op(aten.index_put.default, *given, False)
    rows = plain_cut(0, 4)
    parts = operand(torch.randn(5, 3)), [operand(numbers, rows)], operand(terms, rows)
    check_op(aten.index_put.default, *parts, True, expect=TERMS)
    with pytest.raises(Uncut):
        check_op(aten.index_put.default, *parts, False)


def test_the_greatest_of_a_row_are_found_where_rows_are_cut() -> None:
    x = operand(torch.randn(4, 6), plain_cut(0, 4))
    check_op(aten.topk.default, x, 2, expect=(plain_cut(0, 4), plain_cut(0, 4)))
    with pytest.raises(Uncut):
        check_op(aten.topk.default, operand(torch.randn(4, 6), plain_cut(1, 6)), 2)


def test_a_shard_is_not_turned_in_place() -> None:
    with pytest.raises(Uncut, match="having no rule"):
        check_op(aten.transpose_.default, operand(torch.randn(4, 4), plain_cut(0, 4)), 0, 1)


def test_an_op_without_a_rule_runs_whole_or_is_refused() -> None:
    x = torch.randn(4, 4)
    check_op(aten._linalg_det.default, operand(x), expect=(WHOLE, WHOLE, WHOLE))
    with pytest.raises(Uncut, match=r"aten._linalg_det.default: .* having no rule"):
        check_op(aten._linalg_det.default, operand(x, plain_cut(0, 4)))
