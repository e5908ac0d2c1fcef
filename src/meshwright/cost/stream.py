"""How fast an H200 runs ops that only move bytes, by kind: data, no code.

Made by
    python benchmarks/streams.py \\
        benchmarks/results/2026-11-18-fidelity-h200.jsonl.gz \\
        --updates \\
        benchmarks/results/2026-11-18-sweep-h200.jsonl.gz \\
        -o src/meshwright/cost/stream.py
from kernels measured on 2026-11-18 on an NVIDIA H200 with torch 2.11.0+cu130; kinds that these do
not have, or that are right within a tenth, as they were before, from kernels of 2026-11-15
(`2026-11-15-fidelity-h200.jsonl.gz` and its second part). By hand: sums, strided ops and layer
norms in 16 bits stay as they were, because steps of GPT on A100s (`benchmarks/vtrain.py`) became
worse by 0.2 and 0.6 points with layer norms as fast as wide ones are here. By kind: the stream in
fp32 and that in 16 bits, None where it was not measured; `curve.py` explains the fields.
"""

from meshwright.cost.curve import Stream

USUAL = Stream(0.866, 3e-06)
"""The stream of every kind that was not measured."""
# fmt: off
STREAMS: dict[str, tuple[Stream | None, Stream | None]] = {
    "_adaptive_avg_pool2d": (Stream(0.0353, 1.4e-05), Stream(0.037, 2e-05)),
    "_adaptive_avg_pool2d_backward": (Stream(0.312, 4e-06), Stream(0.179, 1.5e-06)),
    "_fft_c2c": (Stream(0.327, 3e-06), None),
    "_foreach_adamw_": (Stream(0.754, 0), Stream(0.626, 0)),
    "_fused_adamw_": (Stream(0.754, 0), Stream(0.571, 0)),
    "_log_softmax": (Stream(0.474, 3e-06), Stream(0.453, 3e-06)),
    "_log_softmax_backward_data": (Stream(0.598, 3e-06), Stream(0.687, 3e-06)),
    "_softmax": (Stream(0.866, 5e-06), Stream(0.312, 4e-06)),
    "_softmax_backward_data": (Stream(0.453, 8e-06), Stream(0.376, 5e-06)),
    "_to_copy": (Stream(0.907, 4e-06), Stream(0.432, 4e-06)),
    "add": (Stream(0.907, 4e-06), Stream(0.866, 4e-06)),
    "add_": (Stream(0.907, 2.5e-06), Stream(0.907, 4e-06)),
    "avg_pool2d": (Stream(0.136, 2.5e-06), Stream(0.0676, 1e-06)),
    "avg_pool2d_backward": (Stream(0.0893, 1.4e-05), Stream(0.0426, 2e-05)),
    "cat": (Stream(0.79, 1.5e-06), Stream(0.79, 2.5e-06)),
    "constant_pad_nd": (Stream(0.79, 3e-06), Stream(0.359, 1.5e-06)),
    "div": (Stream(0.907, 4e-06), Stream(0.907, 4e-06)),
    "embedding": (Stream(0.754, 3e-06), Stream(0.79, 4e-06)),
    "embedding_dense_backward": (Stream(0.179, 4e-05), Stream(0.098, 4e-05)),
    "gelu": (Stream(0.907, 5e-06), Stream(0.656, 4e-06)),
    "gelu_backward": (Stream(0.95, 8e-06), Stream(0.72, 4e-06)),
    "histc": (Stream(0.00666, 8e-06), None),
    "index": (Stream(1.04, 6e-06), Stream(1.04, 6e-06)),
    "index_put": (Stream(0.413, 5.6e-05), Stream(0.179, 5.6e-05)),
    "max_pool2d_with_indices": (Stream(0.376, 1.5e-06), Stream(0.237, 2e-06)),
    "max_pool2d_with_indices_backward": (Stream(0.216, 2e-05), Stream(0.129, 1e-05)),
    "mean": (Stream(0.656, 5e-06, 8e-09), Stream(0.79, 1.4e-05)),
    "mul": (Stream(0.866, 3e-06), Stream(0.907, 5e-06)),
    "native_batch_norm": (Stream(0.432, 5e-06, 5.29e-10), Stream(0.149, 2e-05, 9.38e-10)),
    "native_batch_norm_backward": (Stream(0.432, 6e-06, 1.44e-09), Stream(0.188, 5e-06, 1.92e-09)),
    "native_dropout": (Stream(0.687, 4e-06), Stream(0.626, 4e-06)),
    "native_dropout_backward": (Stream(0.907, 4e-06), Stream(0.907, 5e-06)),
    "native_group_norm": (Stream(0.26, 1e-05), Stream(0.142, 1e-05)),
    "native_group_norm_backward": (Stream(0.394, 2e-05), Stream(0.226, 2e-05)),
    "native_layer_norm": (Stream(0.497, 6e-06, 1.44e-09), Stream(0.359, 3e-06)),
    "native_layer_norm_backward": (Stream(0.248, 6e-06, 1.08e-09), Stream(0.196, 6e-06)),
    "new_zeros": (Stream(0.95, 2.5e-06), Stream(0.95, 2.5e-06)),
    "nll_loss2d_backward": (Stream(0.656, 2e-05), Stream(0.432, 2e-05)),
    "nll_loss2d_forward": (Stream(0.0489, 1e-05), Stream(0.0709, 2e-05)),
    "nll_loss_backward": (Stream(0.95, 6e-06), Stream(0.656, 6e-06)),
    "nll_loss_forward": (Stream(0.004, 4e-06), Stream(0.004, 4e-06)),
    "pow": (Stream(0.866, 3e-06), Stream(0.95, 6e-06)),
    "relu": (Stream(0.866, 3e-06), Stream(0.907, 4e-06)),
    "relu_": (Stream(0.866, 3e-06), Stream(0.907, 3e-06)),
    "roll": (Stream(0.179, 3e-06), Stream(0.0936, 2e-06)),
    "scatter": (Stream(0.0153, 8e-06), None),
    "select_backward": (Stream(0.327, 1e-06), Stream(0.327, 1e-06)),
    "silu": (None, Stream(0.827, 4e-06)),
    "silu_backward": (None, Stream(0.866, 5e-06)),
    "slice_backward": (Stream(0.453, 4e-06), Stream(0.312, 6e-06)),
    "sort": (Stream(0.00765, 8e-05), None),
    "spatial__log_softmax": (Stream(0.0676, 1e-06), Stream(0.0426, 1e-06)),
    "spatial__log_softmax_backward_data": (Stream(0.52, 1e-06), Stream(0.327, 1e-06)),
    "stack": (Stream(0.394, 6e-06), Stream(0.226, 8e-06)),
    "strided_add": (Stream(0.571, 3e-06), Stream(0.376, 2.5e-06)),
    "strided_cat": (Stream(0.453, 8e-06), Stream(0.206, 5e-06)),
    "strided_clone": (Stream(0.545, 4e-06), Stream(0.298, 3e-06)),
    "strided_copy_": (Stream(0.907, 4e-06), Stream(0.907, 5e-06)),
    "strided_div": (Stream(0.343, 2e-06), Stream(0.272, 5e-06)),
    "strided_mul": (Stream(0.545, 3e-06), Stream(0.327, 4e-06)),
    "strided_neg": (Stream(0.52, 3e-06), Stream(0.343, 4e-06)),
    "strided_threshold_backward": (Stream(0.656, 4e-06), Stream(0.394, 4e-06)),
    "sum": (Stream(0.827, 1e-05, 9.38e-10), Stream(0.656, 1.4e-05, 9.38e-10)),
    "tanh": (Stream(0.866, 3e-06), Stream(0.827, 2.5e-06)),
    "tanh_backward": (Stream(0.907, 4e-06), Stream(0.907, 5e-06)),
    "threshold_backward": (Stream(0.907, 4e-06), Stream(0.907, 4e-06)),
    "topk": (Stream(0.0134, 1.4e-05), None),
    "upsample_bilinear2d": (Stream(0.103, 4e-06), Stream(0.0512, 5e-06)),
    "upsample_bilinear2d_backward": (
        Stream(0.124, 8e-06, 6.41e-13), Stream(0.474, 2e-05, 2.68e-12)),
    "upsample_nearest2d": (Stream(0.413, 5e-06), Stream(0.237, 5e-06)),
    "upsample_nearest2d_backward": (Stream(0.626, 8e-06), Stream(0.343, 8e-06)),
}
