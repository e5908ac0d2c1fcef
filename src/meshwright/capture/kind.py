"""Names what an op computes as finely as its time depends on it.

The name of the ATen op, with a word before it where another kernel runs: attention with a mask,
causal or with dropout, or whose scores are stored; convolutions with a bias, of each channel by
itself with channels side by side, and the gradient of their input (that of their
weight has no word of its own); softmax along a dimension that is not the last; element-wise ops
that broadcast or whose tensors lie differently in memory, which load one number at a time instead
of 16 bytes. A step that an optimiser takes itself has its name.
"""

from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.attention_kernel import stores_scores
from meshwright.capture.channels import lies_last
from meshwright.capture.stepped import step_op
from meshwright.capture.stride import effective_strides, is_dense

_ATTENTION_MASK = {"attention": 3, "attention_backward": 6}
"""Where the mask stands among the arguments, before dropout and whether it is causal."""
_SOFTMAX_DIM = {
    "_softmax": 1, "_log_softmax": 1,
    "_softmax_backward_data": 2, "_log_softmax_backward_data": 2,
}  # fmt: skip
"""Where the dimension stands."""
_COPIES = {"clone", "_to_copy", "copy_"}
STRIDED = "strided_"
_NARROW_BYTES = 1024
"""Pieces of rows shorter than this are put together one number at a time."""


def name_kind(node: Node) -> str:
    """The kind of a node's op."""
    packet = getattr(node.target, "_overloadpacket", None)
    name = str(getattr(packet, "__name__", node.target))
    args: Any = node.args
    if name in _ATTENTION_MASK:
        mask, dropout, is_causal = args[_ATTENTION_MASK[name] :][:3]
        seen = "masked_" if mask is not None else "causal_" if is_causal else ""
        query, key = (each.meta["val"] for each in args[name.endswith("backward") :][:2])
        seen = "stored_" if stores_scores(query, key) else seen
        return f"{seen}{'dropout_' if dropout else ''}{name}"
    if name == "convolution":
        return f"{'biased_' * (args[2] is not None)}{_layout(args[0], args[1])}{name}"
    if name == "convolution_backward":
        values, weight, bias = args[10]
        words = f"{'biased_' * bias}{_layout(args[1], args[2])}"
        return f"{words}{'input_' * (values and not weight)}{name}"
    if name in _SOFTMAX_DIM:
        dims = args[0].meta["val"].dim()
        is_last = args[_SOFTMAX_DIM[name]] % max(dims, 1) == dims - 1
        return name if is_last else f"spatial_{name}"
    if node.target is step_op:
        return f"_fused_{node.kwargs['kind']}_"
    if name == "cat":
        return f"{STRIDED}{name}" if _is_narrow(args) else name
    return f"{STRIDED}{name}" if _is_elementwise(node, name) and _is_strided(node) else name


def _layout(values: Node, weight: Node) -> str:
    """Convolutions of each channel by itself have other kernels where channels lie side by side."""
    images, windows = values.meta["val"], weight.meta["val"]
    is_alone = windows.shape[1] == 1 < images.shape[1]
    return "channels_last_" if is_alone and lies_last(images) else ""


def _is_elementwise(node: Node, name: str) -> bool:
    tags = getattr(node.target, "tags", ())
    return name in _COPIES or torch.Tag.pointwise in tags


def _is_strided(node: Node) -> bool:
    """Whether an operand of more than one number lies otherwise than the result."""
    made = node.meta.get("val")
    if not isinstance(made, torch.Tensor) or made.numel() <= 1:
        return False
    read = [each.meta.get("val") for each in node.all_input_nodes]
    operands = [each for each in read if isinstance(each, torch.Tensor) and each.numel() > 1]
    if not all(is_dense(each.shape, each.stride()) for each in (made, *operands)):
        return True
    own = made.shape, effective_strides(made)
    return any((each.shape, effective_strides(each)) != own for each in operands)


def _is_narrow(args: Any) -> bool:
    dim = args[1] if len(args) > 1 else 0
    for node in args[0]:
        value = node.meta["val"]
        run = value.element_size()
        for length in value.shape[dim % max(value.dim(), 1) :]:
            run *= length
        if run < _NARROW_BYTES:
            return True
    return False
