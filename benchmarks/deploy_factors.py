"""Names the classes of ops that sufficient factor broadcasting duplicates, in TensorFlow's words.

TAG reports its choices in these words, so that ours can be held against them. A captured graph has
ops for kernels only: reshapes and transposes that are views cost nothing, belong to the op that
reads through them, and have no op of their own. What is left of them are copies: one that changes
the order of numbers in memory is a Transpose, one that keeps it a Reshape. The gradient of a linear
layer's weight, t(mm(t(view(dY)), view(x))), is one op, and a MatMul.
"""

from meshwright.graph.graph import Graph, Phase, Split

_PREFIXES = ("strided_", "biased_", "spatial_", "masked_", "causal_", "dropout_")
_PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_grouped_mm", "_scaled_mm"}
)
_CONVOLUTIONS = frozenset({"conv", "conv1d", "conv2d", "conv3d", "convolution"})
_TRANSPOSES = frozenset({"t", "transpose", "permute", "transpose_copy", "t_copy", "permute_copy"})
_COPIES = frozenset({"clone", "copy", "copy_"})
_RESHAPES = frozenset(
    {"view", "reshape", "flatten", "view_copy", "_unsafe_view", "unsafe_view", "squeeze",
     "unsqueeze", "expand_copy", "reshape_copy"}
)  # fmt: skip
_OTHERS = {
    "_to_copy": "Cast",
    "add": "AddN",
    "add_": "AddN",
    "cat": "ConcatV2",
    "concat": "ConcatV2",
    "stack": "Pack",
    "embedding": "GatherV2",
    "embedding_dense_backward": "UnsortedSegmentSum",
    "index_put": "UnsortedSegmentSum",
    "native_batch_norm_backward": "FusedBatchNormGradV3",
    "batchnorm_grad": "FusedBatchNormGradV3",
    "native_batch_norm": "FusedBatchNormV3",
    "native_layer_norm_backward": "LayerNormGrad",
    "native_layer_norm": "LayerNorm",
    "threshold_backward": "ReluGrad",
    "relu": "Relu",
    "relu_": "Relu",
}


def kind_of_factor(graph: Graph, op: int) -> str:
    """The class of an op: MatMul, Reshape, Transpose, Conv2DBackpropFilter, ...; else its kind."""
    kind = graph.kind[op]
    is_strided = kind.startswith("strided_")
    name = _bare(kind)
    if name in _PRODUCTS:
        return "MatMul"
    if name in _TRANSPOSES or (name in _COPIES and is_strided):
        return "Transpose"
    if name in _RESHAPES or name in _COPIES:
        return "Reshape"
    if name == "input_convolution_backward":
        return "Conv2DBackpropInput"
    is_backward, is_sum = graph.phase[op] == Phase.BACKWARD, graph.split[op] == Split.SUM
    if name == "convolution_backward" or (name in _CONVOLUTIONS and is_backward and is_sum):
        return "Conv2DBackpropFilter"
    if name in _CONVOLUTIONS:
        return "Conv2DBackpropInput" if is_backward else "Conv2D"
    if name == "sum" and is_backward and is_sum:
        return "BiasAddGrad"
    return _OTHERS.get(name, kind)


def _bare(kind: str) -> str:
    """Without the words that say which kernel runs."""
    for prefix in _PREFIXES:
        kind = kind.removeprefix(prefix)
    return kind
