"""Keeps attention and dropout one op each while a step is traced.

On a CPU scaled-dot-product attention with dropout, a mask or half precision falls apart into
products, softmax and dropout on the whole score matrix; on the accelerators that plans are for it
is one fused kernel that never stores it (Dao et al., FlashAttention, 2022). So tracing replaces it
by an op of ours with the fused kernel's inputs and outputs. That kernel has no gradient for a mask:
attention with one that is learnt is left to its formula.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshwright.capture.attention_kernel import Attended, KernelChoice, find_kernel
from meshwright.capture.stride import dense_stride
from meshwright.capture.torch_private import scoped_library
from meshwright.errors import InputError


@torch.library.custom_op("meshwright::attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of the sum of exponentials of each row of scores."""
    return attend(choose_kernel, query, key, value, mask, dropout, is_causal, scale)


def attend(choose: Callable[[Attended], KernelChoice], *args: Any) -> tuple[Tensor, Tensor]:
    """What `attention` makes of these arguments, by a kernel of one's choice."""
    given = _attended(*args)
    choice = choose(given)
    if choice.kernel is None:
        return attend_dropping(given, None)
    made, log_sum = choice.kernel.forward(_repeat_heads(given) if choice.repeats else given)
    return _laid_out(made, given.query), log_sum.contiguous()


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> Attended:
    """The arguments of `attention`, which drops nothing."""
    if dropout > 0:
        raise InputError(
            f"attention: a captured step runs without dropout in attention only, got {dropout}; "
            f"a run of a plan gives it its random numbers"
        )
    return Attended(query, key, value, mask, is_causal, scale)


class Kept(NamedTuple):
    """Which numbers of a tensor are not dropped, and what those are multiplied with for it."""

    mask: Tensor
    scale: float

    def of(self, values: Tensor) -> Tensor:
        """The tensor without those that are dropped; of gradients the same."""
        made: Tensor = torch.ops.aten.native_dropout_backward(values, self.mask, self.scale)
        return made  # one kernel, which computes dropout as well


def attend_dropping(given: Attended, kept: Kept | None) -> tuple[Tensor, Tensor]:
    """Attention by its formula; `kept`: the weights that are not dropped, None: all are."""
    query, scores = given.query, _scores(given)
    weights = scores.softmax(-1).to(query.dtype)
    weights = weights if kept is None else kept.of(weights)
    return _laid_out(weights @ _repeated(given.value, query), query), scores.logsumexp(-1)


@attention.register_fake
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    return (
        empty_heads(query, value.shape[-1]),
        query.new_empty(query.shape[:-1], dtype=torch.float32),
    )


@torch.library.custom_op("meshwright::attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    made: Tensor,
    log_sum: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; weights are made anew from the saved sums."""
    rest = (mask, dropout, is_causal, scale)
    return attend_backward(choose_kernel, gradient, query, key, value, made, log_sum, *rest)


def attend_backward(
    choose: Callable[[Attended], KernelChoice], gradient: Tensor, *args: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """What `attention_backward` makes of these arguments, by a kernel of one's choice."""
    query, key, value, made, log_sum, *rest = args
    given = _attended(query, key, value, *rest)
    choice = choose(given)
    if choice.kernel is None:
        return attend_dropping_backward(given, gradient, made, log_sum, None)
    used = _repeat_heads(given) if choice.repeats else given
    first, second, third = choice.kernel.backward(used, gradient, made, log_sum)
    return _laid_out(first, query), _gathered(second, key), _gathered(third, value)


def attend_dropping_backward(
    given: Attended, gradient: Tensor, made: Tensor, log_sum: Tensor, kept: Kept | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value by their formula; `kept` as in forward."""
    query, key, value = given.three
    weights = (_scores(given) - log_sum.unsqueeze(-1)).exp().to(query.dtype)
    value_gradient = (weights if kept is None else kept.of(weights)).mT @ gradient
    weight_gradient = gradient @ _repeated(value, query).mT
    weight_gradient = weight_gradient if kept is None else kept.of(weight_gradient)
    # What a row of weights adds up to with their gradients, dropped ones left out, is this too.
    inner = (gradient * made).sum(-1, keepdim=True)
    score_gradient = weights * (weight_gradient - inner) * given.factor
    key_gradient = score_gradient.mT @ query
    return (
        _laid_out(score_gradient @ _repeated(key, query), query),
        _gathered(key_gradient, key),
        _gathered(value_gradient, value),
    )


def empty_gradients(_: Tensor, /, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the gradients of query, key and value, which are the first of the inputs."""
    query, key, value = map(empty_heads, inputs[:3])
    return query, key, value


attention_backward.register_fake(empty_gradients)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # nobody differentiates the sums
    query, key, value, mask, *ctx.rest = inputs
    ctx.save_for_backward(query, key, value, mask, *output)


def _differentiate(context: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, mask, made, log_sum = context.saved_tensors
    gradients = attention_backward(gradient, query, key, value, made, log_sum, mask, *context.rest)
    return (*gradients, None, None, None, None)


attention.register_autograd(_differentiate, setup_context=_save)


@contextlib.contextmanager
def fused_ops() -> Iterator[None]:
    """While this holds, attention is the op above and dropout one op, as on a GPU.

    Their kernels are replaced in torch's dispatcher, so that calls from within other functions, as
    of `torch.nn.MultiheadAttention`, are seen, too.
    """
    with (
        warnings.catch_warnings(),
        scoped_library("aten", "IMPL") as aten,
    ):
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        aten.impl("scaled_dot_product_attention", _attend, "AutogradCPU")
        aten.impl("dropout", _drop, "AutogradCPU")
        yield


def _drop(values: Tensor, probability: float, is_training: bool) -> Tensor:
    """Dropout by the kernel that also makes the mask, instead of the CPU's four."""
    if not is_training or probability == 0:
        return values
    return torch.native_dropout(values, probability, True)[0]


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001 - the op repeats heads where there are fewer of them
) -> Tensor:
    if attn_mask is not None and attn_mask.requires_grad:  # as a learnt bias of positions does
        given = Attended(query, key, value, attn_mask, is_causal, scale)
        weights = _scores(given).softmax(-1).to(query.dtype)
        return torch.dropout(weights, dropout_p, True) @ _repeated(value, query)
    made: Tensor = attention(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]
    return made


def _scores(given: Attended) -> Tensor:
    query, mask = given.query, given.mask
    scores = (query @ _repeated(given.key, query).mT).float() * given.factor
    if given.is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is not None:
        is_choice = mask.dtype is torch.bool
        scores = scores.masked_fill(~mask, float("-inf")) if is_choice else scores + mask
    return scores


def _repeated(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values with as many heads as the query (grouped-query attention)."""
    times = query.shape[-3] // tensor.shape[-3] if query.dim() > 3 else 1
    return tensor.repeat_interleave(times, -3) if times > 1 else tensor


def choose_kernel(given: Attended) -> KernelChoice:
    """The device's kernel; heads are repeated where none takes fewer."""
    found = find_kernel(given)
    if found is None and given.is_grouped:
        return KernelChoice(find_kernel(_repeat_heads(given)), repeats=True)
    return KernelChoice(found)


def _repeat_heads(given: Attended) -> Attended:
    key, value = (_repeated(each, given.query) for each in (given.key, given.value))
    return replace(given, key=key, value=value)


def _gathered(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of what `_repeated` repeated."""
    if gradient.shape != like.shape:
        shape = (*gradient.shape[:-3], like.shape[-3], -1, *gradient.shape[-2:])
        gradient = gradient.reshape(shape).sum(-3)
    return _laid_out(gradient, like)


def _layout(like: Tensor, width: int) -> tuple[list[int], tuple[int, ...]]:
    """Shape and strides of a dense tensor with heads of so many elements whose dimensions lie in
    memory in the order in which they do in `like`.

    The fused kernels answer so: when heads were split off a row of features, the results stand
    side by side in rows again, and no copy follows.
    """
    shape = [*like.shape[:-1], width]
    return shape, dense_stride(like.stride(), shape)


def empty_heads(like: Tensor, width: int | None = None) -> Tensor:
    """Room for what a kernel makes of a query, in the layout in which it answers."""
    return like.new_empty_strided(*_layout(like, like.shape[-1] if width is None else width))


def _laid_out(made: Tensor, like: Tensor) -> Tensor:
    """What a kernel has made in that layout; a copy only if it is not."""
    shape, stride = _layout(like, made.shape[-1])
    if made.stride() == stride and made.untyped_storage().nbytes() == made.nbytes:
        return made
    return made.new_empty_strided(shape, stride).copy_(made)
