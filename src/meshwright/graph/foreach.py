"""Updates as PyTorch's optimisers run them by default on CUDA: one element-wise op after another,
each on all parameters at once (`foreach`), where graphs else have one fused kernel.

Decides what such updates move and hold. Counted in torch 2.13, `_multi_tensor_adam` of
torch/optim/adam.py and `_multi_tensor_sgd` of torch/optim/sgd.py, which Adam's and SGD's
constructors choose where neither `foreach` nor `fused` is given. Knows nothing of optimisers that
take their own steps: these say for themselves how.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.graph.column import Phase
from meshwright.graph.graph import Graph

_FUSED, _FOREACH = "_fused_", "_foreach_"


@dataclass(frozen=True, slots=True)
class _Passes:
    """How often an update reads and writes something as large as a parameter."""

    fused_writes: int
    reads: int
    writes: int
    temporaries: int = 0
    """How many such tensors of all parameters are there at once."""


_ADAM = _Passes(fused_writes=3, reads=11, writes=7, temporaries=1)
"""The first moment reads two and writes one; the second one and one, then two and one; its root,
its correction and epsilon one and one each; the step reads three and writes one. The roots of all
parameters are made before the first step is taken."""
_KINDS = {
    ("_fused_adam_", True): _ADAM,
    # Weights decay in a pass of their own.
    ("_fused_adamw_", True): replace(_ADAM, reads=12, writes=8),
    # The momentum is scaled, the gradient added to it, and it to the weights.
    ("_fused_sgd_", True): _Passes(fused_writes=2, reads=5, writes=3),
    ("_fused_sgd_", False): _Passes(fused_writes=1, reads=2, writes=1),
}
"""By the kind of the fused update, and whether it has a state."""


def update_by_foreach(graph: Graph) -> Graph:
    """The step with its fused updates as `foreach` runs them.

    Gradients are held, too, until all parameters are updated: what an update holds then lasts to
    the end of the step.
    """
    kinds = list(graph.kind)
    sizes: dict[str, Any] = {
        name: getattr(graph, name).copy()
        for name in ("bytes_read", "fixed_bytes_read", "bytes_written", "fixed_bytes_written")
    }
    saved = graph.saved_bytes.copy()
    for op in np.flatnonzero(graph.phase == Phase.UPDATE).tolist():
        passes = _KINDS.get((graph.kind[op], bool(graph.state_bytes[op] > 0)))
        if passes is None:
            continue
        size = graph.bytes_written[op] / passes.fused_writes
        kinds[op] = graph.kind[op].replace(_FUSED, _FOREACH)
        sizes["bytes_read"][op] = sizes["fixed_bytes_read"][op] = passes.reads * size
        sizes["bytes_written"][op] = sizes["fixed_bytes_written"][op] = passes.writes * size
        saved[op] += (1 + passes.temporaries) * size
    return replace(graph, kind=tuple(kinds), saved_bytes=saved, **sizes)


def fused_kind(kind: str) -> str:
    """The kind of the fused update in place of one by `foreach`; others are as they are."""
    return kind.replace(_FOREACH, _FUSED) if kind.startswith(_FOREACH) else kind
