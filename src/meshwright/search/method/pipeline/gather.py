"""Gathers blocks into clusters as Parmesan does, before stages are cut.

Decides which blocks share a stage for the sake of a smaller problem; the merging itself is in
`graph/coarsen/parmesan.py`. Refinement, later, moves single blocks again.
"""

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.graph.coarsen.parmesan import cluster_web
from meshwright.graph.coarsen.web import Web
from meshwright.search.method.pipeline.block import Blocks

WEIGHTS = (0.01, 1.0, 100.0)
"""Parmesan's alphas: what communication counts against compute."""


def gather_blocks(
    blocks: Blocks,
    seconds: Floats,
    held_bytes: Floats,
    *,
    num_clusters: int,
    weight: float,
    seconds_per_byte: float,
    memory_bytes: float,
) -> Ints:
    """The cluster of each block, numbered in a topological order.

    Clusters are convex, and hold `memory_bytes` at most unless one block is more. More than
    `num_clusters` are left where nothing else may be merged.
    """
    if blocks.num_blocks <= num_clusters:
        return np.arange(blocks.num_blocks, dtype=np.int32)
    size = {(u, v): bytes_ for u, v, bytes_ in blocks.links}
    rows = [(u, v, size.get((u, v), 0.0)) for u, v in blocks.edges]
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    source, target = (np.array(columns[k], dtype=np.int32) for k in range(2))
    # Links stand for all tensors between two blocks, so that each is one tensor of its own.
    uses = source, target, np.arange(len(rows), dtype=np.int32), np.array(columns[2], np.float64)
    units = np.arange(blocks.num_blocks, dtype=np.int32)
    web = Web(seconds, uses, units, held_bytes)
    cluster_web(web, num_clusters, weight, seconds_per_byte, memory_bytes)
    return web.label()


def project(blocks: Blocks, label: Ints) -> Blocks:
    """The blocks that clusters of blocks are."""
    names = label.tolist()
    pairs = {(names[u], names[v]) for u, v in blocks.edges}
    wires: dict[tuple[int, ...], float] = {}
    for pins, bytes_ in blocks.wires:
        key = tuple(sorted({names[pin] for pin in pins}))
        if len(key) > 1:
            wires[key] = wires.get(key, 0.0) + bytes_
    links: dict[tuple[int, int], float] = {}
    for u, v, bytes_ in blocks.links:
        pair = min(names[u], names[v]), max(names[u], names[v])
        if pair[0] != pair[1]:
            links[pair] = links.get(pair, 0.0) + bytes_
    return Blocks(
        block_of_op=label[blocks.block_of_op],
        is_wrapped=blocks.is_wrapped,
        num_blocks=int(label.max(initial=0)) + 1,
        edges=tuple(sorted(pair for pair in pairs if pair[0] != pair[1])),
        wires=tuple((key, wires[key]) for key in sorted(wires)),
        links=tuple((u, v, bytes_) for (u, v), bytes_ in sorted(links.items())),
    )
