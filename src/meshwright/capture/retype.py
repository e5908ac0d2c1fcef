"""What kernels of GPUs make in another type than those of CPUs, as which every step is traced."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.ledger import op_name, storage_of
from meshwright.capture.torch_private import pytree
from meshwright.capture.trace import Trace

_STATISTICS = {"native_layer_norm": (1, 2), "native_batch_norm": (1, 2)}
"""The results of norms that are their mean and spread: of 16-bit numbers 32 bits on GPUs, 16 on
CPUs."""


def retype_for_gpu(trace: Trace) -> Trace:
    """Give the values of a trace the types that they have on GPUs; the trace as it is then."""
    nodes = list(trace.graph.nodes)
    retyped: dict[int, Tensor] = {}
    for node in nodes:
        for place in _STATISTICS.get(op_name(node), ()):
            value = node.meta["val"][place]
            if value.dtype in (torch.bfloat16, torch.float16):
                retyped[storage_of(value)] = value.float()

    def change(value: Any) -> Any:
        found = retyped.get(storage_of(value)) if isinstance(value, Tensor) else None
        if found is None:
            return value
        return found.as_strided(value.shape, value.stride(), value.storage_offset())

    for node in nodes if retyped else ():
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(change, node.meta["val"])
    return replace(trace) if retyped else trace  # what was read of the other does not hold
