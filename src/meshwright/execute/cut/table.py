"""Which rule cuts an op: by torch's own tag for what works entry by entry, else by its name."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from meshwright.capture.torch_private import OpOverload
from meshwright.execute.cut import attention, index, loss, pointwise, product, reduction, view
from meshwright.execute.cut.around import Around
from meshwright.execute.cut.call import (
    MemberCall,
    Operand,
    Request,
    Uncut,
    are_all,
    bind_arguments,
    has_terms,
    operands_in,
)
from meshwright.execute.cut.cut import WHOLE, AnyCut, check_cut
from meshwright.execute.cut.terms import MOVES, cut_terms

Rule = Callable[[Request], MemberCall]

_FAMILIES: tuple[tuple[Rule, str], ...] = (
    (view.cut_view, "view _unsafe_view reshape"),
    (view.cut_permuted, "t transpose permute"),
    (view.cut_unsqueezed, "unsqueeze"),
    (view.cut_squeezed, "squeeze"),
    (view.cut_expanded, "expand"),
    (view.cut_slice, "slice"),
    (view.cut_select, "select unbind"),
    (view.cut_split, "split split_with_sizes chunk"),
    (view.cut_joined, "cat"),
    (view.cut_stacked, "stack"),
    (view.cut_slice_backward, "slice_backward select_backward"),
    (view.cut_beside, "constant_pad_nd roll flip tril triu"),
    (
        pointwise.cut_pointwise,
        "detach alias contiguous lift_fresh lift_fresh_copy _to_copy copy fill zero "
        "masked_fill hardtanh_backward native_dropout bernoulli uniform normal exponential "
        "log_normal cauchy geometric random",
    ),
    (
        pointwise.cut_like,
        "ones_like zeros_like full_like empty_like rand_like randn_like randint_like",
    ),
    (pointwise.cut_new, "new_zeros new_ones new_full new_empty"),
    (pointwise.cut_update, "_fused_adam _fused_adamw _fused_sgd _fused_step"),
    (product.cut_product, "mm bmm mv dot addmm baddbmm"),
    (product.cut_grouped_product, "_grouped_mm"),
    (product.cut_convolution, "convolution"),
    (product.cut_convolution_backward, "convolution_backward"),
    (
        reduction.cut_reduction,
        "sum mean amax amin max min prod var std var_mean std_mean logsumexp any all argmax argmin",
    ),
    (
        reduction.cut_along_others,
        "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data cumsum cumprod "
        "logcumsumexp sort topk",
    ),
    (
        reduction.cut_norm,
        "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    ),
    (
        attention.cut_attention,
        "attention attention_backward _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    (index.cut_embedding, "embedding"),
    (index.cut_embedding_backward, "embedding_dense_backward"),
    (index.cut_gather, "gather scatter scatter_add"),
    (index.cut_index_select, "index_select"),
    (index.cut_index, "index"),
    (index.cut_index_put, "index_put"),
    (loss.cut_nll_loss, "nll_loss_forward"),
    (loss.cut_nll_loss_backward, "nll_loss_backward"),
)
"""Rules with the ops that they cut, whatever the overload, in place or not."""
_RULES = {name: rule for rule, names in _FAMILIES for name in names.split()}
_MAKERS = {pointwise.cut_like, pointwise.cut_new}
"""Rules of ops that take only shape and type of a tensor: terms of a sum do as well as the sum."""


def cut_call(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    value: Any,
    width: int,
    member: int,
    wanted: AnyCut | None = None,
) -> MemberCall:
    """The call that a member of a team of `width` makes in place of `target(*args, **kwargs)`.

    Tensors among the arguments are `Operand`s, and `value` is the result on whole tensors; of all
    of these, shapes and types count. `wanted`: how the result is best cut, where there is a choice.
    Raises `Uncut` where there is no rule: a caller may then add up or gather operands.
    """
    if target is operator.getitem:
        return _get_item(args)
    operands = operands_in((tuple(args), dict(kwargs)))
    for each in operands:
        check_cut(str(target), each.value.shape, each.cut, width)
    if isinstance(target, Around):
        call = cut_call(target.target, args, kwargs, value, width, member, wanted)
        return replace(call, target=target.around(call.target))
    if not isinstance(target, OpOverload):
        if are_all(operands, WHOLE):
            cuts = (WHOLE,) * len(value) if isinstance(value, tuple | list) else WHOLE
            return MemberCall(target=target, args=tuple(args), kwargs=dict(kwargs), cuts=cuts)
        raise Uncut(target, [each.cut for each in operands], "whole operands, being no ATen op")
    arguments, given = bind_arguments(target, args, kwargs)
    request = Request(
        target=target, arguments=arguments, given=given, value=value, width=width, member=member,
        wanted=wanted,
    )  # fmt: skip
    return _find_rule(request)(request)


def _find_rule(request: Request) -> Rule:
    name = request.name
    rule = _RULES.get(name)
    if torch.Tag.pointwise in request.target.tags:
        rule = pointwise.cut_pointwise
    if are_all(request.operands, WHOLE):
        has_choice = rule is index.cut_embedding_backward
        return index.cut_embedding_backward if has_choice else _keep
    if has_terms(request.operands) and rule not in _MAKERS:
        return cut_terms
    is_moved_in_place = request.is_in_place and name in MOVES - {"copy"}
    if rule is None or is_moved_in_place:
        raise request.refuse("whole operands, having no rule")
    return rule


def _keep(request: Request) -> MemberCall:
    """The same call on whole operands."""
    call = request.same()
    dropout = request.arguments.get("dropout", request.arguments.get("dropout_p"))
    return replace(call, draws=call.draws or bool(dropout))


def _get_item(args: Sequence[Any]) -> MemberCall:
    listed, place = args
    cut = listed.cut[place] if isinstance(listed, Operand) else WHOLE
    return MemberCall(target=operator.getitem, args=tuple(args), kwargs={}, cuts=cut)
