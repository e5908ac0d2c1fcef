"""Gives every op a layer, and checks that layers form a chain, or at least stand in line.

Starts from forward ops that are numbered by layer. What is not numbered goes with what it reads:
before the first layer it is the embedding, after the last the head. Backward ops stand with their
forward ops, updates with their gradients. In a chain a layer reads the one before it, side inputs
aside; in a line any that stand before it, as a decoder does its encoder.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import marked
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Bools, Graph, Ints, Phase

_HEAD = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChain:
    """Layers along the chain, or in line."""

    layer: Ints
    """The number of the layer that each op belongs to."""
    num_layers: int
    is_side: Bools
    """Tensors that layers read from afar, without a gradient: masks, rotary tables."""
    is_boundary: Bools
    """Tensors of forward that the next layer reads; of a line, that any later one does."""


def make_chain(
    graph: Graph, numbered: Ints, num_layers: int, *, is_line: bool = False
) -> LayerChain:
    """Every op's layer; InputError where a layer reads another than its neighbour, or, of a line,
    one that stands after it."""
    layer = _place_forward(graph, numbered, num_layers)
    layer = _complete_last(graph, layer, numbered, num_layers)
    layer = _place_backward(graph, layer)
    layer = _raise_backward(graph, layer) if is_line else layer
    layer = _place_sums(graph, layer)
    layer = _place_far_sums(graph, layer) if is_line else layer
    layer = _place_updates(graph, layer)
    if layer.min() < 0:
        op = graph.op_names[int(layer.argmin())]
        raise InputError(
            f"graph {graph.name}: op {quoted(op)} must belong to a layer, but neither its module "
            f"nor what it reads is in one"
        )
    layer = layer if (layer == 0).any() else layer - 1  # no embedding
    return _check_line(graph, layer) if is_line else _checked(graph, layer)


def _place_forward(graph: Graph, numbered: Ints, num_layers: int) -> Ints:
    """Numbered layers become 1, 2, ...; the embedding is 0, the head `num_layers` + 1."""
    forward = np.flatnonzero(graph.phase == Phase.FORWARD)
    layer = np.where(numbered >= 0, numbered + 1, -1).astype(np.int64)
    wanted = layer.copy()  # the first layer that needs an op
    wanted[wanted < 0] = _HEAD
    for op in forward[::-1].tolist():
        if layer[op] < 0:
            readers = graph.successors[op]
            readers = readers[graph.phase[readers] == Phase.FORWARD]
            if len(readers):
                wanted[op] = wanted[readers].min()
    for op in forward.tolist():
        if layer[op] < 0:
            last = max((int(layer[source]) for source in graph.predecessors[op]), default=0)
            is_head = last == num_layers or (wanted[op] == _HEAD and last in (0, num_layers + 1))
            layer[op] = num_layers + 1 if is_head else last
            if not len(graph.predecessors[op]) and not len(graph.successors[op]) and op:
                layer[op] = layer[op - 1]  # of no consequence
    return layer.astype(np.int32)


def _complete_last(graph: Graph, layer: Ints, numbered: Ints, num_layers: int) -> Ints:
    """Ops between layers went with the layer before; the last layer's stand in the head so far.

    They do where a model's own forward adds the residual: the sum has no layer's path.
    """
    head = num_layers + 1
    between = np.flatnonzero((layer == num_layers - 1) & (numbered < 0))
    between = between[graph.phase[between] == Phase.FORWARD]
    after = np.flatnonzero((layer == head) & (graph.phase == Phase.FORWARD))
    first = after[: len(between)]
    if len(between) and [_signature(graph, op) for op in between] == [
        _signature(graph, op) for op in first
    ]:
        layer = layer.copy()
        layer[first] = num_layers
    return layer


def _signature(graph: Graph, op: int) -> tuple[str, float, float, float]:
    return (
        graph.kind[op],
        float(graph.bytes_read[op]),
        float(graph.bytes_written[op]),
        float(graph.parameter_bytes[op]),
    )


def _place_backward(graph: Graph, layer: Ints) -> Ints:
    """With the forward op; a gradient of weights that this op does not touch, as of a token that is
    only viewed in forward, with the weights where these are in one layer."""
    layer = layer.copy()
    head = layer.max()
    backward = np.flatnonzero(graph.phase == Phase.BACKWARD)
    partner = graph.partner[backward]
    layer[backward] = np.where(partner >= 0, layer[partner], -1)
    users = np.flatnonzero((graph.group >= 0) & (graph.phase == Phase.FORWARD))
    homes: dict[int, set[int]] = {}
    for op in users.tolist():
        homes.setdefault(int(graph.group[op]), set()).add(int(layer[op]))
    is_strange = (partner >= 0) & (graph.group[backward] != graph.group[partner])
    for op in backward[is_strange & (graph.group[backward] >= 0)].tolist():
        home = homes.get(int(graph.group[op]), set())
        layer[op] = next(iter(home)) if len(home) == 1 else layer[op]
    for op in backward[partner < 0].tolist():
        sources = graph.predecessors[op]
        known = layer[sources][layer[sources] >= 0]
        layer[op] = known.min() if len(known) else head
    return layer


def _place_sums(graph: Graph, layer: Ints) -> Ints:
    """A sum of gradients from the next layer stands there, not with what it is the gradient of.

    So that layers whose output one op reads are like those whose output several do, and one
    gradient passes between layers. A residual hands the gradient of the layer after on as it is.
    """
    layer = layer.copy()
    backward = np.flatnonzero((graph.phase == Phase.BACKWARD) & (graph.group < 0))
    arrives: dict[int, list[int]] = {}  # ops that read nothing of their own layer: what they read
    for op in backward[graph.product_count[backward] == 0].tolist():
        sources = [int(source) for source in graph.predecessors[op]]
        own = [source for source in sources if source in arrives]
        if sources and all(
            source in arrives
            or (graph.phase[source] == Phase.BACKWARD and 0 < layer[source] - layer[op] <= 2)
            for source in sources
        ):
            arrives[op] = own
            if len(sources) > 1:
                _move(arrives, op, layer)
    return layer


def _move(arrives: dict[int, list[int]], op: int, layer: Ints) -> None:
    """The op and those it reads, one layer on."""
    waiting = [op]
    while waiting:
        op = waiting.pop()
        if op in arrives:
            waiting.extend(arrives.pop(op))
            layer[op] += 1


def _raise_backward(graph: Graph, layer: Ints) -> Ints:
    """Backward of what a layer made is not before it: where ops without a gradient run after a
    norm, capture may take one of them for the forward op of its backward."""
    layer = layer.copy()
    source, reader = graph.edges
    uses = (graph.phase[source] == Phase.FORWARD) & (graph.phase[reader] == Phase.BACKWARD)
    np.maximum.at(layer, reader[uses], layer[source[uses]])
    return layer


def _place_far_sums(graph: Graph, layer: Ints) -> Ints:
    """A sum of gradients stands in the first of the layers that they come from.

    So that one gradient passes between two layers for each tensor: where all layers of a decoder
    read the encoder, the sum so far is handed on from one to the one before. Branches side by side
    may be summed in another order than that in which they stand.
    """
    layer = layer.copy()
    backward = np.flatnonzero((graph.phase == Phase.BACKWARD) & (graph.group < 0))
    for op in backward[graph.product_count[backward] == 0].tolist():
        sources = graph.predecessors[op]
        if len(sources) > 1 and np.all(graph.phase[sources] == Phase.BACKWARD):
            layer[op] = layer[sources].min()
    return layer


def _place_updates(graph: Graph, layer: Ints) -> Ints:
    layer = layer.copy()
    # by group the layer of its weights: the first op's that holds some, else the first's at all
    users = np.flatnonzero((graph.group >= 0) & (graph.phase == Phase.FORWARD))[::-1]
    holders = users[graph.parameter_bytes[users] > 0]
    owner = {int(graph.group[op]): int(layer[op]) for op in (*users, *holders)}
    updates = np.flatnonzero(graph.phase == Phase.UPDATE)
    for op in updates.tolist():
        layer[op] = _update_layer(graph, layer, op, owner)
    for op in updates[::-1].tolist():  # of several sums all stand with the last
        after = graph.successors[op]
        if len(after) == 1 and len(graph.successors[after[0]]):
            layer[op] = layer[after[0]]
    return layer


def _update_layer(graph: Graph, layer: Ints, op: int, owner: dict[int, int]) -> int:
    """With the gradient; with the weights where gradients of several layers are added up.

    They are, too, where the sum of the gradients of copies is an op of the update's own.
    """
    sources = graph.predecessors[op]
    places = np.unique(layer[sources])
    reads_sum = bool(np.any(graph.phase[sources] == Phase.UPDATE))
    if len(places) == 1 and not reads_sum:
        return int(places[0])
    return owner.get(int(graph.group[op]), int(layer.max()))


def _checked(graph: Graph, layer: Ints) -> LayerChain:
    tensor, reader = graph.use_tensor, graph.use_op
    source = graph.tensor_source[tensor]
    start, end = layer[source], layer[reader]
    # gradients travel to their update, also to that of a copy, outside the chain
    is_weight = graph.tensor_partial[tensor] | (graph.phase[source] == Phase.UPDATE)
    is_weight |= graph.phase[reader] == Phase.UPDATE
    forward = graph.phase[source] == Phase.FORWARD
    step = np.where(forward, end - start, start - end)
    is_far = ~is_weight & ((step < 0) | (step > 1))
    is_side = np.zeros(graph.num_tensors, dtype=np.bool_)
    is_side[tensor[is_far & forward & (start == 0) & (step > 1)]] = True
    has_gradient = is_far & ~forward
    bad = is_far & (has_gradient | ~is_side[tensor])
    if bad.any():
        raise _error(graph, layer, int(np.flatnonzero(bad)[0]))
    is_boundary = np.zeros(graph.num_tensors, dtype=np.bool_)
    passes = ~is_weight & forward & (step == 1) & (graph.phase[reader] == Phase.FORWARD)
    is_boundary[tensor[passes]] = True
    is_boundary &= ~is_side
    returned = np.unique(tensor[~is_weight & ~forward & (step == 1)])
    _refuse_side_gradients(graph, layer, is_side, is_boundary, returned)
    return LayerChain(
        layer=layer,
        num_layers=int(layer.max()) + 1,
        is_side=is_side,
        is_boundary=is_boundary,
    )


def _check_line(graph: Graph, layer: Ints) -> LayerChain:
    """Side inputs are what the embedding makes for other layers than the next and has no gradient
    of: the ops that make it have no backward."""
    tensor, reader = graph.use_tensor, graph.use_op
    source = graph.tensor_source[tensor]
    start, end = layer[source], layer[reader]
    is_weight = graph.tensor_partial[tensor] | (graph.phase[source] == Phase.UPDATE)
    is_weight |= graph.phase[reader] == Phase.UPDATE
    forward = graph.phase[source] == Phase.FORWARD
    bad = np.flatnonzero(~is_weight & np.where(forward, end < start, end > start))
    if len(bad):
        raise _error(graph, layer, int(bad[0]), "stand in line")
    learns = marked(graph.num_ops, graph.partner[graph.partner >= 0])
    is_side = marked(graph.num_tensors, tensor[~is_weight & forward & (start == 0) & (end > 1)])
    is_side &= ~learns[graph.tensor_source]
    passes = ~is_weight & forward & (end > start) & (graph.phase[reader] == Phase.FORWARD)
    return LayerChain(
        layer=layer,
        num_layers=int(layer.max()) + 1,
        is_side=is_side,
        is_boundary=marked(graph.num_tensors, tensor[passes]) & ~is_side,
    )


def _refuse_side_gradients(
    graph: Graph, layer: Ints, is_side: Bools, is_boundary: Bools, returned: Ints
) -> None:
    """The gradient of a side input is handed down the chain, beside that of a layer's input."""
    if not is_side.any():
        return
    num_layers = int(layer.max()) + 1
    passed = np.bincount(layer[graph.tensor_source[is_boundary]], minlength=num_layers)
    gradients = np.bincount(layer[graph.tensor_source[returned]], minlength=num_layers)
    inner = slice(1, num_layers - 2)  # what layers 1, 2, ... pass on, and what comes back for it
    if len(passed[inner]) and np.all(gradients[2 : num_layers - 1] > passed[inner]):
        first = graph.tensor_source[np.flatnonzero(is_side)[0]]
        raise InputError(
            f"graph {graph.name}: layers must form a chain, but all layers read op "
            f"{quoted(graph.op_names[first])} and give it gradients (a decoder and its encoder)"
        )


def _error(graph: Graph, layer: Ints, use: int, rule: str = "form a chain") -> InputError:
    source, reader = graph.tensor_source[graph.use_tensor[use]], graph.use_op[use]
    return InputError(
        f"graph {graph.name}: layers must {rule}, but op {quoted(graph.op_names[reader])} of "
        f"layer {layer[reader]} reads op {quoted(graph.op_names[source])} of layer {layer[source]}"
    )
