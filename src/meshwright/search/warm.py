"""Compiles the searches' own kernels; run as a program by a first plan, on a second core.

Lowering and simulation, and mappings, take as long to compile as the other searches together: the
two go side by side.
"""

import sys
from collections.abc import Sequence

from meshwright.cluster.build import fully_connected
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.search.instance import make_instance
from meshwright.search.mcmc import DEFAULT_BETA, Walk, first_placement
from meshwright.search.pipeline.pipeline import warm_kernels
from meshwright.search.placement.search import search_rounds
from meshwright.search.window import window_bound

_LAYERS = 32
"""Of the step that kernels are compiled on."""


def small_cluster() -> Cluster:
    """Two devices."""
    return fully_connected(num_devices=2, device_type="cpu", bytes_per_second=1.0)


def small_step() -> Graph:
    """A chain with so many layers that searches on several levels make use of all of them."""
    builder = GraphBuilder("small", batch=2)
    layers = range(_LAYERS)
    forward = [builder.add_op(f"forward{k}", seconds={"any": 1.0}) for k in layers]
    backward = [
        builder.add_op(f"backward{k}", phase=Phase.BACKWARD, seconds={"any": 1.0}) for k in layers
    ]
    for k in layers:
        update = builder.add_op(
            f"update{k}", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 0.0}
        )
        builder.add_tensor(
            forward[k], 1.0, [backward[k], *([forward[k + 1]] if k + 1 < _LAYERS else [])]
        )
        builder.add_tensor(backward[k], 1.0, [update], partial=True)
        if k > 0:
            builder.add_tensor(backward[k], 1.0, [backward[k - 1]])
    return builder.finish()


def main(methods: Sequence[str]) -> None:
    """Compile what these methods need besides lowering and simulation, the slowest first."""
    instance = make_instance(small_step(), small_cluster())
    if "placement" in methods:
        next(search_rounds(instance, instance.cluster.memory_bytes, 0, lambda: False))
        window_bound(instance)
    if "pipeline" in methods:
        warm_kernels(instance)
    if "mcmc" in methods:
        first = first_placement(instance)
        assert first is not None, "a CPU can run every op of the small step"
        Walk(instance, first, 0, DEFAULT_BETA)


if __name__ == "__main__":
    main(sys.argv[1:])
