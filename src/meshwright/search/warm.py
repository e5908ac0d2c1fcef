"""Compiles the searches' own kernels; run as a program by a first plan, on a second core.

Lowering and simulation take as long to compile as the searches: the two go side by side. What
pipelines need last, and only for wide graphs (clustering) or where links differ (mapping), is left
to a process that nobody waits for.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from meshwright.cluster.build import fully_connected, multi_rail
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.interpreter import module_command
from meshwright.search.bound.window import window_bound
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.map.solve import compile_mapping
from meshwright.search.method.pipeline.pipeline import warm_clusters, warm_splits
from meshwright.search.method.placement.level_search import search_rounds
from meshwright.search.order.heft import schedule_heft

_LAYERS = 32
"""Of the step that kernels are compiled on."""


def small_cluster() -> Cluster:
    """Two devices with a link, on which kernels are compiled."""
    return fully_connected(num_devices=2, device_type="cpu", bytes_per_second=1.0)


def small_rails() -> Cluster:
    """Two hosts with two ways between them."""
    return multi_rail(num_hosts=2, num_rails=2, devices_per_host=1, device_type="cpu")


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


LATER = "later"
"""Stands for the kernels that pipelines need last, and not on every cluster or graph."""


def main(methods: Sequence[str]) -> None:
    """Compile what takes longest of these methods, besides lowering and simulation, in the order of
    need; the rest is compiled where it is needed."""
    instance = make_instance(small_step(), small_cluster())
    window_bound(instance)  # which every answer has
    if "placement" in methods or "deploy" in methods:
        schedule_heft(instance)  # which begins at it; early, since methods need it elsewhere too
    if "pipeline" in methods:
        warm_splits(instance)
    if "placement" in methods:
        next(search_rounds(instance, instance.cluster.memory_bytes, 0, lambda: False))
    if LATER in methods:
        os.nice(19)
        warm_clusters(instance)
        compile_mapping()
    elif "pipeline" in methods:
        nowhere = subprocess.DEVNULL
        subprocess.Popen(
            module_command("meshwright.search.warm", LATER),
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
