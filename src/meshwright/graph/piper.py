"""Reads the JSON graphs of Piper (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021).

Of the ways to run a node it takes the plain one: one device, no recomputation. A sample of Piper
is one microbatch, so the graph's batch is 1.
"""

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import decode_json
from meshwright.graph.column import Columns
from meshwright.graph.draft import ColumnBuilder
from meshwright.graph.foreign import edge_ends, number_nodes
from meshwright.graph.training import Layer, LayerOps, add_layer

FORWARD_SHARE = 1 / 3
"""Of the time of forward and backward together: the backward of a matrix product is two products
of the same size, one for the gradient of each operand."""


class PiperWay(msgspec.Struct, rename="camel"):
    """One way to run a node on some devices (the authors' TMPC)."""

    id: str
    time_per_sample: float
    parameter_size: float
    memory_usage_a: float = msgspec.field(name="memoryUsageA")
    memory_usage_b: float = msgspec.field(name="memoryUsageB")
    sync_time_fw: dict[str, float] = {}
    """Bytes, not time, more for every edge from the node named that comes from another stage."""
    sync_time_bw: dict[str, float] = {}
    """The same for edges to the node named."""


class PiperNode(msgspec.Struct):
    """A layer, with its ways by number of devices."""

    id: int | str
    ways: dict[str, list[PiperWay]] = msgspec.field(name="TMPCs")
    name: str = "op"


class PiperEdge(msgspec.Struct, rename="camel"):
    """What one node makes and another needs, in bytes."""

    source_id: int | str
    dest_id: int | str
    communication_cost: float


class PiperDocument(msgspec.Struct):
    """The graph of a file."""

    nodes: list[PiperNode]
    edges: list[PiperEdge]


def read_piper(data: bytes, name: str, where: str) -> Columns:
    """Forward, backward and update ops of every node.

    A stage's memory is sum(A y + B) with y microbatches in flight: A becomes the forward op's
    saved bytes, B its state bytes. Since A counts all that backward needs, backward ops read no
    activations, only gradients (and a sink's, an empty tensor of its forward op, for the order).
    """
    document = decode_json(data, PiperDocument, where)
    numbers = number_nodes((node.id for node in document.nodes), where)
    draft = ColumnBuilder(name)
    layers = [_layer(node, where) for node in document.nodes]
    ops = [add_layer(draft, layer, group) for group, layer in enumerate(layers)]
    _add_tensors(draft, document.edges, ops, numbers, where)
    return draft.columns()


def _layer(node: PiperNode, where: str) -> Layer:
    ways = node.ways.get("1", [])
    if not ways:
        raise InputError(
            f"{where}: node {quoted(str(node.id))} must have a way to run on one device"
        )
    way = next((each for each in ways if each.id == "vanilla"), ways[0])
    return Layer(
        name=f"{node.name}#{node.id}",
        kind=node.name,
        forward_seconds=way.time_per_sample * FORWARD_SHARE,
        backward_seconds=way.time_per_sample * (1 - FORWARD_SHARE),
        parameter_bytes=way.parameter_size,
        state_bytes=way.memory_usage_b,
        saved_bytes=way.memory_usage_a,
    )


def _add_tensors(
    draft: ColumnBuilder,
    edges: list[PiperEdge],
    ops: list[LayerOps],
    numbers: dict[int | str, int],
    where: str,
) -> None:
    tensors: dict[tuple[int, float], int] = {}
    sources = set()
    distinct = {(e.source_id, e.dest_id, e.communication_cost): e for e in edges}
    for edge in distinct.values():
        source, target = edge_ends(edge.source_id, edge.dest_id, numbers, where)
        size = edge.communication_cost
        # Equal costs from one source are one tensor with several readers.
        if (source, size) not in tensors:
            tensors[source, size] = draft.add_tensor(ops[source].forward, size)
        draft.add_use(tensors[source, size], ops[target].forward)
        draft.add_tensor(ops[target].backward, size, [ops[source].backward])
        sources.add(source)
    for number, each in enumerate(ops):
        if number not in sources:
            draft.add_tensor(each.forward, 0.0, [each.backward])
