"""Cuts one layer out of a graph as a graph of its own, and tells whether two are alike."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.array import places_in
from meshwright.graph.column import OP_CODES, OP_SIZES, OP_TEXTS
from meshwright.graph.graph import Bools, Floats, Graph, Ints, Phase, Split
from meshwright.graph.ladder import change_times
from meshwright.graph.stack.chain import LayerChain
from meshwright.graph.stack.stack import Template

ENTERING = "entering"
"""Kind of an op that stands for a tensor from elsewhere: no work."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Which ops and tensors of a graph are a layer's, in the order they have there."""

    ops: Ints
    entering: Ints
    """Tensors that other layers make."""
    own: Ints
    tied: Ints
    """Updates in other layers of weights that this one has a copy of, ..."""
    tied_gradients: Ints
    """... and the tensor that each gets from here."""
    copied: Ints
    """Updates of this layer that read a sum with the gradient of a copy elsewhere, ..."""
    copied_gradients: Ints
    """... and the tensor that this layer gives to each sum."""


def excerpt(graph: Graph, chain: LayerChain, layer: int) -> Excerpt:
    """The ops and tensors of a layer."""
    inside = chain.layer == layer
    source, reader = graph.edges
    is_weight = graph.tensor_partial[graph.use_tensor] | (graph.phase[source] == Phase.UPDATE)
    is_weight |= graph.phase[reader] == Phase.UPDATE
    entering = np.unique(graph.use_tensor[inside[reader] & ~inside[source] & ~is_weight])
    # numbers of tensors tell nothing here: side inputs stand before or after a layer's input
    comes = 2 * graph.phase[graph.tensor_source[entering]] + chain.is_side[entering]
    tied_gradients, tied = _tied_updates(graph, inside)
    copied_gradients, copied = _copied_updates(graph, inside)
    return Excerpt(
        ops=np.flatnonzero(inside).astype(np.int32),
        entering=entering[np.argsort(comes, kind="stable")].astype(np.int32),
        own=np.flatnonzero(inside[graph.tensor_source]).astype(np.int32),
        tied=tied,
        tied_gradients=tied_gradients,
        copied=copied,
        copied_gradients=copied_gradients,
    )


def _sums_elsewhere(graph: Graph, inside: Bools) -> Iterator[tuple[int, Ints]]:
    """Gradients of weights that other layers read, and the updates that they end in."""
    gradients = np.flatnonzero(graph.tensor_partial & inside[graph.tensor_source])
    for tensor in gradients.tolist():
        for reader in graph.readers[tensor].tolist():
            if inside[reader]:
                continue
            # in a captured step sums of the gradients stand between, one less than there are uses
            ends = _after_sums(graph, reader)
            yield tensor, ends[graph.phase[ends] == Phase.UPDATE]


def _after_sums(graph: Graph, op: int) -> Ints:
    """What reads the last of the sums that follow one another; the op itself where nothing does."""
    after = graph.successors[op]
    while len(after) == 1 and len(graph.successors[after[0]]):
        after = graph.successors[after[0]]
    return after if len(after) else np.array([op], dtype=np.int32)


def _copied_updates(graph: Graph, inside: Bools) -> tuple[Ints, Ints]:
    """Gradients whose sum with a copy's is made elsewhere, and this layer's updates with it."""
    found: dict[int, int] = {}
    for tensor, updates in _sums_elsewhere(graph, inside):
        here = updates[inside[updates]]
        if len(here) > 1:  # copies in this layer, too: each has its own gradient
            same = graph.group[here] == graph.group[graph.tensor_source[tensor]]
            here = here[same] if same.any() else here
        found.update(dict.fromkeys(here.tolist(), tensor))
    tensors, own = list(found.values()), list(found)
    return np.array(tensors, dtype=np.int32), np.array(own, dtype=np.int32)


def _tied_updates(graph: Graph, inside: Bools) -> tuple[Ints, Ints]:
    """Gradients that the layer makes for updates elsewhere, and those updates.

    It has no update of its own for those weights, and needs them, so it is taken to hold a copy and
    to update it, as Megatron-LM does where the head and the embedding are on different devices.
    """
    found: dict[int, int] = {}
    for tensor, updates in _sums_elsewhere(graph, inside):
        if not inside[updates].any():
            for update in updates.tolist():
                found.setdefault(update, tensor)
    tensors, elsewhere = list(found.values()), list(found)
    return np.array(tensors, dtype=np.int32), np.array(elsewhere, dtype=np.int32)


def key_of(graph: Graph, chain: LayerChain, part: Excerpt) -> Hashable:
    """Equal for layers that are alike op by op and tensor by tensor."""
    ops = part.ops
    place = places_in(ops, graph.num_ops, np.int64)
    tensors = np.concatenate((part.entering, part.own))
    number = places_in(tensors, graph.num_tensors, np.int64)
    uses = (number[graph.use_tensor] >= 0) & (place[graph.use_op] >= 0)
    use_tensor, use_op = number[graph.use_tensor[uses]], place[graph.use_op[uses]]
    order = np.lexsort((use_op, use_tensor))
    partner = np.where(graph.partner[ops] >= 0, place[graph.partner[ops]], -1)
    return (
        tuple(graph.kind[op] for op in ops),
        tuple(graph.precision[op] for op in ops),
        np.stack([getattr(graph, name)[ops] for name in OP_SIZES]).tobytes(),
        np.stack([graph.phase[ops], graph.split[ops]]).tobytes(),
        partner.tobytes(),
        _ranked(graph.group[ops]).tobytes(),
        use_tensor[order].tobytes(),
        use_op[order].tobytes(),
        place[graph.tensor_source[part.own]].tobytes(),
        graph.tensor_bytes[tensors].tobytes(),
        graph.fixed_tensor_bytes[tensors].tobytes(),
        graph.tensor_partial[tensors].tobytes(),
        chain.is_boundary[tensors].tobytes(),
        chain.is_side[tensors].tobytes(),
        graph.phase[graph.tensor_source[part.entering]].tobytes(),
        len(part.tied),
    )


def _ranked(groups: Ints) -> Ints:
    """The same groups, numbered by their first member; -1 stays."""
    place: dict[int, int] = {-1: -1}
    for group in groups.tolist():
        place.setdefault(group, len(place) - 1)
    return np.array([place[group] for group in groups.tolist()], dtype=np.int32)


def make_template(graph: Graph, chain: LayerChain, part: Excerpt, alike: Ints) -> Template:
    """The layer as a graph: what enters first, then its ops, then updates of copies.

    `alike`: the ops of the layers that it stands for, a row a layer. Measured times are their
    averages, NaN where one has none.
    """
    num_entering = len(part.entering)

    def averaged(each: Floats) -> Floats:
        return np.concatenate((np.zeros(num_entering), each[alike].mean(axis=0), each[part.tied]))

    ops = np.concatenate((part.ops, part.tied))
    place = np.full(graph.num_ops, -1, dtype=np.int32)
    place[ops] = np.arange(len(ops), dtype=np.int32) + num_entering
    tensors = np.concatenate((part.entering, part.own))
    number = places_in(tensors, graph.num_tensors, np.int32)
    columns: dict[str, Any] = _op_columns(graph, part, ops, place)
    source = np.concatenate(
        (np.arange(num_entering, dtype=np.int32), place[graph.tensor_source[part.own]])
    )
    uses = (number[graph.use_tensor] >= 0) & (place[graph.use_op] >= 0)
    use_tensor, use_op = number[graph.use_tensor[uses]], place[graph.use_op[uses]]
    use_tensor, use_op = _with_tied(part, number, place, use_tensor, use_op)
    order = np.argsort(use_tensor, kind="stable")
    sizes, fixed = graph.tensor_bytes[tensors], graph.fixed_tensor_bytes[tensors]
    for update, tensor in zip(part.tied, part.tied_gradients, strict=True):
        # it may be in fewer bits here, where the sum with the other gradient casts it
        sizes[number[tensor]] = fixed[number[tensor]] = tied_bytes(graph, update)
    template = Graph(
        name=graph.name,
        batch=graph.batch,
        **columns,
        **change_times(graph.seconds, graph.ladders, averaged),
        tensor_source=source,
        tensor_bytes=sizes,
        fixed_tensor_bytes=fixed,
        tensor_partial=graph.tensor_partial[tensors],
        use_tensor=use_tensor[order],
        use_op=use_op[order],
    )
    is_own = np.arange(len(tensors)) >= num_entering
    enters_forward = graph.phase[graph.tensor_source[tensors]] == Phase.FORWARD
    side = chain.is_side[tensors]
    return Template(
        graph=template,
        num_entering=num_entering,
        is_side=side,
        is_input=~is_own & enters_forward & ~side,
        is_leaving=is_own & chain.is_boundary[tensors],
    )


def _op_columns(graph: Graph, part: Excerpt, ops: Ints, place: Ints) -> dict[str, Any]:
    """Columns of stand-ins, then of ops; weights that are tied count here, too."""
    extra = len(part.entering)
    texts = {"op_names": "", "kind": ENTERING, "module": "", "precision": "fp32"}
    columns: dict[str, Any] = {
        name: (text,) * extra + tuple(getattr(graph, name)[op] for op in ops)
        for name, text in texts.items()
        if name in OP_TEXTS
    }
    columns["op_names"] = (
        *(f"{ENTERING}.{number}" for number in range(extra)),
        *columns["op_names"][extra:],
    )
    phases = graph.phase[graph.tensor_source[part.entering]]
    codes = {"split": int(Split.BATCH), "group": -1, "partner": -1}
    for name in OP_CODES:
        column = getattr(graph, name)
        start = phases if name == "phase" else np.full(extra, codes[name], dtype=column.dtype)
        columns[name] = np.concatenate((start, column[ops]))
    known = columns["partner"] >= 0
    columns["partner"] = np.where(known, place[columns["partner"]], -1).astype(np.int32)
    for name in OP_SIZES:
        columns[name] = np.concatenate((np.zeros(extra), getattr(graph, name)[ops]))
    for update, tensor in zip(part.tied, part.tied_gradients, strict=True):
        _hold_copy(graph, update, tensor, place, columns)
    return columns


def _hold_copy(
    graph: Graph, update: int, tensor: int, place: Ints, columns: dict[str, Any]
) -> None:
    """Give the op that reads tied weights their bytes."""
    reader = graph.partner[graph.tensor_source[tensor]]
    if reader >= 0 and place[reader] >= 0:
        op = int(place[reader])
        columns["parameter_bytes"][op] += tied_bytes(graph, update)
        columns["state_bytes"][op] = max(columns["state_bytes"][op], columns["parameter_bytes"][op])


def tied_bytes(graph: Graph, update: int) -> float:
    """Of the weights that an op updates: a gradient is as large as they are."""
    tensors = graph.inputs[update]
    gradients = tensors[graph.tensor_partial[tensors]]
    return float(graph.tensor_bytes[gradients].max(initial=0.0))


def _with_tied(
    part: Excerpt, number: Ints, place: Ints, use_tensor: Ints, use_op: Ints
) -> tuple[Ints, Ints]:
    """Copies are updated with the layer's own part of the gradient, which is as large as all."""
    known = set(zip(use_tensor.tolist(), use_op.tolist(), strict=True))
    gradients = np.concatenate((part.tied_gradients, part.copied_gradients))
    updates = np.concatenate((part.tied, part.copied))
    tied = zip(number[gradients].tolist(), place[updates].tolist(), strict=True)
    more = [each for each in tied if each not in known]
    tensors, ops = [tensor for tensor, _ in more], [op for _, op in more]
    return (
        np.append(use_tensor, np.array(tensors, dtype=np.int32)),
        np.append(use_op, np.array(ops, dtype=np.int32)),
    )
