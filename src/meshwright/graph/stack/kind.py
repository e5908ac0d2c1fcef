"""Makes a `LayerKind` of one layer: roles, attention's keys, and the sizes that widths divide."""

import numpy as np

from meshwright.graph.graph import Floats, Graph, Phase
from meshwright.graph.stack.flow import FeatureFlow, FeatureState, find_flow
from meshwright.graph.stack.product import attends, has_weight, is_expert, key_bytes
from meshwright.graph.stack.role import find_roles
from meshwright.graph.stack.stack import LayerKind, Role, Template

_MIXERS = ("fft", "roll", "conv", "pool")
"""In kinds of ops that let rows meet."""


def make_kind(name: str, layer: Template) -> LayerKind:
    """The kind that this layer is of."""
    flow = find_flow(layer)
    roles = find_roles(layer, flow)
    graph = layer.graph
    heads, key_heads = _heads(graph, flow)
    all_keys, read_keys, written_keys = _keys(graph, flow)
    experts = graph.product_count[is_expert(graph)]
    return LayerKind(
        **vars(layer),
        **vars(roles),
        name=name,
        key_bytes=all_keys,
        read_keys=read_keys,
        written_keys=written_keys,
        is_loss=bool(flow.losses),
        heads=heads,
        key_heads=key_heads,
        features=_features(graph, flow),
        experts=int(experts.max(initial=0)),
        tokens=_tokens(graph),
        mixes_rows=_mixes_rows(graph, flow),
    )


def _attention_ops(graph: Graph, flow: FeatureFlow) -> list[int]:
    return np.flatnonzero(attends(graph) & (flow.role == Role.ATTENTION)).tolist()


def _heads(graph: Graph, flow: FeatureFlow) -> tuple[int, int]:
    """Heads of queries and of keys; zero where no sizes of products are known.

    There is a product a head and sample, or more where attention is in windows; the product after
    it sums over the heads. Queries have as many bytes as the result, so that the rest of what fused
    attention reads is keys and values; a product that feeds it with fewer columns tells the number
    where keys were repeated for it.
    """
    heads, key_heads = 0, 0
    for op in _attention_ops(graph, flow):
        size = float(graph.product_depth[op])
        if size <= 0 or not _reads_queries(graph, flow, op):
            continue
        summed = [graph.product_depth[each] / size for each in _rows_after(graph, flow, op)]
        count = round(float(min([graph.product_count[op] / graph.batch, *summed])))
        fewest = [graph.product_columns[each] / size for each in _sources(graph, flow, op)]
        if "attention" in graph.kind[op]:
            read, result = _attention_bytes(graph, flow, op)
            fewest.append((read - result) / 2 / result * count)
        heads, key_heads = count, max(1, round(float(min([count, *fewest]))))
    return heads, key_heads


def _reads_queries(graph: Graph, flow: FeatureFlow, op: int) -> bool:
    """Whether it is all of attention or its scores, not what comes after them."""
    inputs = graph.inputs[op]
    sources = graph.tensor_source[inputs[flow.state[inputs] == FeatureState.CUT]]
    return bool(np.all(flow.role[sources] != Role.ATTENTION))


def _attention_bytes(graph: Graph, flow: FeatureFlow, op: int) -> tuple[float, float]:
    """Cut bytes that an op reads, and the largest tensor that it makes."""
    inputs = graph.inputs[op]
    read = graph.tensor_bytes[inputs[flow.state[inputs] == FeatureState.CUT]].sum()
    return float(read), float(graph.tensor_bytes[graph.outputs[op]].max())


def _sources(graph: Graph, flow: FeatureFlow, op: int) -> list[int]:
    """Column products whose features reach an op."""
    found, waiting, seen = [], [op], {op}
    while waiting:
        for source in graph.predecessors[waiting.pop()].tolist():
            if source in flow.columns:
                found.append(source)
            elif source not in seen and flow.role[source] != Role.WHOLE:
                waiting.append(source)
            seen.add(source)
    return found


def _rows_after(graph: Graph, flow: FeatureFlow, op: int) -> list[int]:
    """Row products that read what an op's result becomes; there is one at least."""
    found: list[int] = []
    waiting = [op]
    while waiting:
        for reader in graph.successors[waiting.pop()].tolist():
            if reader in flow.rows:
                found.append(reader)
            elif graph.phase[reader] == Phase.FORWARD:
                waiting.append(reader)
    return found


def _keys(graph: Graph, flow: FeatureFlow) -> tuple[float, Floats, Floats]:
    """Bytes of keys and values, and their shares of what fused attention reads and writes."""
    read_keys, written_keys = np.zeros(graph.num_ops), np.zeros(graph.num_ops)
    total = 0.0
    for op in _attention_ops(graph, flow):
        read, result = _attention_bytes(graph, flow, op)
        if "attention" not in graph.kind[op]:
            keys = _unfused_key_bytes(graph, flow, op, read)
            total, read_keys[op] = total + keys, keys / read
            continue
        inputs = graph.inputs[op]
        apart = graph.tensor_bytes[inputs[flow.state[inputs] == FeatureState.CUT]].tolist()
        keys = key_bytes(apart, result)
        total, read_keys[op] = total + keys, keys / min(read, keys + result)
        for each in np.flatnonzero(graph.partner == op).tolist():
            if graph.phase[each] == Phase.BACKWARD and graph.product_count[each] > 0:
                read_keys[each] = min(keys / graph.bytes_read[each], 1.0)
                written_keys[each] = min(keys / graph.bytes_written[each], 1.0)
    return total, read_keys, written_keys


def _unfused_key_bytes(graph: Graph, flow: FeatureFlow, op: int, read: float) -> float:
    """Scores read keys as large as queries; context reads values beside what scores became."""
    if _reads_queries(graph, flow, op):
        return read / 2
    inputs = graph.inputs[op]
    inputs = inputs[flow.state[inputs] == FeatureState.CUT]
    is_values = flow.role[graph.tensor_source[inputs]] != Role.ATTENTION
    return float(graph.tensor_bytes[inputs[is_values]].sum())


def _features(graph: Graph, flow: FeatureFlow) -> tuple[int, ...]:
    """Cut sizes of products; a vocabulary is padded, so it may be any."""
    sizes = {float(graph.product_depth[op]) for op in flow.rows}
    if not flow.losses:
        sizes |= {float(graph.product_columns[op]) for op in flow.columns}
    return tuple(sorted(round(size) for size in sizes if size > 0))


def _tokens(graph: Graph) -> float:
    """Rows of a sample in the products with weights; experts see other numbers of them."""
    plain = has_weight(graph) & ~is_expert(graph)
    grows = graph.product_rows > graph.fixed_product_rows
    return float((graph.product_rows[plain & grows] / graph.batch).max(initial=0.0))


def _mixes_rows(graph: Graph, flow: FeatureFlow) -> bool:
    """By ops that are known to, or by attention over fewer rows than there are."""
    forward = np.flatnonzero(graph.phase == Phase.FORWARD).tolist()
    if any(word in graph.kind[op] for op in forward for word in _MIXERS):
        return True
    tokens = _tokens(graph)
    rows = [float(graph.product_rows[op]) for op in _attention_ops(graph, flow)]
    return any(0 < each < tokens for each in rows)
