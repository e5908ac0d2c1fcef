"""Follows features through the forward ops of a layer: which of them can a tensor team divide?

A product with weights that reads the residual stream can have its columns cut; what follows works
on a member's own features, until a product with weights sums over them (Shoeybi et al. 2019,
"Megatron-LM", section 3). Where features are needed whole before such a product comes - by a norm
or a sort, by a sum with the stream, by the next layer - the first product is not cut. Looks at
structure, not at names of modules.
"""

from enum import IntEnum

import numpy as np

from meshwright.graph.graph import Bools, Ints, Phase
from meshwright.graph.stack.product import (
    attends,
    has_weight,
    is_cast,
    is_expert,
    is_product,
    is_thin,
)
from meshwright.graph.stack.stack import Codes, Role, Template
from meshwright.graph.stack.template import ENTERING

_FACTOR_SHARE = 1 / 16
"""A tensor with so few bytes beside another has a number a row: a factor, not features."""
_REDUCED_SHARE = 2.5
"""A result with fewer than this over the features is one sum a row (it may be in more bits)."""
_ALONG = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "topk", "fft")
"""In the names of ops that work along a dimension, which may be that of the features: a graph does
not say which it is."""
_OF_CLASSES = ("softmax", "nll", "crossentropy")
"""In the names of ops whose sums over divided features a team can put together: the losses of
classes. Others, as of squares, need all features."""
_FEWEST_FEATURES = 64.0
"""Where a graph does not say how many there are: less than any model has."""


class FeatureState(IntEnum):
    """What a member of a tensor team has of a tensor."""

    SIDE = 0
    """All of it, and it does not depend on the layer's input."""
    STREAM = 1
    """The member has all features of every row."""
    CUT = 2
    """The member has its own share of the features."""
    REDUCED = 3
    """A sum over features that members must add up: a loss."""


class FeatureFlow:
    """What each forward op does and each tensor of forward is, with some products allowed to be
    cut."""

    def __init__(self, layer: Template, candidates: frozenset[int]) -> None:
        self.layer = layer
        self.graph = layer.graph
        self.candidates = candidates
        self.refused: set[int] = set()
        self.state: Codes = np.zeros(self.graph.num_tensors, dtype=np.int8)
        """A `FeatureState` a tensor; SIDE for tensors of backward."""
        self.role: Codes = np.zeros(self.graph.num_ops, dtype=np.int8)
        """A `Role` an op; WHOLE for ops of backward."""
        self.origins: dict[int, frozenset[int]] = {}  # of a cut tensor: the products it comes from
        self.columns: set[int] = set()
        """Ops whose columns are cut."""
        self.rows: set[int] = set()
        """Ops whose depth is cut."""
        self.losses: set[int] = set()
        """Ops that sum over cut features."""
        self.shared: set[int] = set()
        """Ops on cut features that are no products, and whose weights, if any, are not the
        features' own: those of all heads, or of places."""
        self.closed: set[int] = set()  # products whose features some other product sums over
        self.weighted: Bools = has_weight(self.graph)
        self.is_expert: Bools = is_expert(self.graph)
        self.attends: Bools = attends(self.graph)
        self.is_cast: Bools = is_cast(self.graph)
        self.tables = _tables(layer)
        """The ops whose rows are divided by vocabulary."""

    def run(self) -> None:
        """Walk, then refuse products whose features nothing sums over, or that leave."""
        for op in np.flatnonzero(self.graph.phase == Phase.FORWARD).tolist():
            self._visit(op)
        for tensor in np.flatnonzero(self.layer.is_leaving).tolist():
            self.refused |= self.origins.get(tensor, frozenset())
        self.refused |= self.columns - self.closed

    def finish(self) -> "FeatureFlow":
        """With what attention and casts are, which follows from the rest."""
        self._join_attention()
        self._join_casts()
        return self

    def _visit(self, op: int) -> None:
        if self.graph.kind[op] == ENTERING:
            if not self.layer.is_side[op]:  # the stand-ins come first, as their tensors do
                self._give(op, FeatureState.STREAM)
            return
        if self.is_cast[op]:
            return  # with the product that reads it
        inputs = self.graph.inputs[op]
        states = self.state[inputs]
        cut = inputs[(states == FeatureState.CUT) | (states == FeatureState.REDUCED)]
        if len(cut):
            self._visit_inner(op, cut, inputs[states == FeatureState.STREAM])
        elif self.weighted[op] and op in self.candidates and (states == FeatureState.STREAM).any():
            self.columns.add(op)
            self._give(op, FeatureState.CUT, frozenset((op,)))
            self.role[op] = Role.EXPERT if self.is_expert[op] else Role.INNER
        elif op in self.tables:
            self._give(op, FeatureState.STREAM)
            self.role[op] = Role.INNER
        elif (states == FeatureState.STREAM).any() or self.graph.parameter_bytes[op] > 0:
            self._give(op, FeatureState.STREAM)

    def _visit_inner(self, op: int, cut: Ints, stream: Ints) -> None:
        """An op that reads cut features: a row product, a loss, or something between products."""
        states = {int(self.state[tensor]) for tensor in cut}
        origins = frozenset().union(*(self.origins[int(tensor)] for tensor in cut))
        size = self.graph.tensor_bytes
        has_stream = bool(np.any(size[stream] > _FACTOR_SHARE * size[cut].max()))
        if self.weighted[op]:
            if has_stream or states != {FeatureState.CUT}:
                self.refused |= origins
            self.rows.add(op)
            self.closed |= origins
            self._give(op, FeatureState.STREAM)
            self.role[op] = Role.EXPERT if self.is_expert[op] else Role.INNER
            return
        if not self._has_own_weights(op, origins):
            self.shared.add(op)
        is_after_loss = states == {FeatureState.REDUCED}
        sums = not is_after_loss and self._sums(op, cut, origins)
        mixes = len(states) > 1 and not self._ends(op)
        needs_all = self._norms(op, cut, origins) or self._goes_along(op)
        needs_all = needs_all or (sums and not self._is_of_classes(op))
        if (has_stream and not is_after_loss) or mixes or needs_all:
            self.refused |= origins
        self.role[op] = self._inner_role(op, origins)
        if is_after_loss or sums:
            self.losses.add(op)
            self.closed |= origins if not self.layer.is_leaving.any() else set()
            self._give(op, FeatureState.REDUCED, origins)
        else:
            self._give(op, FeatureState.CUT, origins)

    def _inner_role(self, op: int, origins: frozenset[int]) -> Role:
        if self.attends[op]:
            return Role.ATTENTION
        is_all_expert = all(self.is_expert[each] for each in origins)
        return Role.EXPERT if is_all_expert else Role.INNER

    def _ends(self, op: int) -> bool:
        """Whether nothing in forward reads it."""
        readers = self.graph.successors[op]
        return not np.any(self.graph.phase[readers] == Phase.FORWARD)

    def _sums(self, op: int, cut: Ints, origins: frozenset[int]) -> bool:
        """Whether it gives no more than a number a row; sums over each head give more."""
        made = self.graph.tensor_bytes[self.graph.outputs[op]]
        few = self._row_bytes(cut, origins)
        return bool(len(made) and not self.attends[op] and made.max() <= few)

    def _is_of_classes(self, op: int) -> bool:
        kind = self.graph.kind[op].lower().replace("_", "")
        return not kind or any(each in kind for each in _OF_CLASSES)

    def _norms(self, op: int, cut: Ints, origins: frozenset[int]) -> bool:
        """Whether it norms all features: by its statistics, or by as many weights as features."""
        graph, kind = self.graph, self.graph.kind[op]
        if "norm" not in kind:
            return False
        made = graph.tensor_bytes[graph.outputs[op]]
        weights = graph.parameter_bytes[op] / 2  # scale and shift, in two bytes or more
        has_statistics = bool(np.any(made <= self._row_bytes(cut, origins)))
        return has_statistics or bool(weights >= self._features(origins))

    def _has_own_weights(self, op: int, origins: frozenset[int]) -> bool:
        """Whether it has a weight, or a scale and a shift, of every feature that it reads."""
        weights = self.graph.parameter_bytes[op] / self._features(origins)
        return any(weights in (size, 2 * size) for size in self._item_bytes(origins))

    def _item_bytes(self, origins: frozenset[int]) -> set[float]:
        """Of one number: as products make them, or in single precision."""
        graph, found = self.graph, {4.0}
        for op in origins:
            count = float(graph.product_rows[op] * graph.product_columns[op])
            made = graph.tensor_bytes[graph.outputs[op]].tolist()
            found |= {each / count for each in made if count}
        return found

    def _goes_along(self, op: int) -> bool:
        """Whether it may need all features, to sort them or to add them up one after another."""
        return any(each in self.graph.kind[op] for each in _ALONG)

    def _features(self, origins: frozenset[int]) -> float:
        known = max(float(self.graph.product_columns[each]) for each in origins)
        return known or _FEWEST_FEATURES

    def _row_bytes(self, cut: Ints, origins: frozenset[int]) -> float:
        """What a tensor with one number a row has at most."""
        size = float(self.graph.tensor_bytes[cut].max())
        return size * _REDUCED_SHARE / self._features(origins)

    def _give(self, op: int, state: FeatureState, origins: frozenset[int] = frozenset()) -> None:
        for tensor in self.graph.outputs[op].tolist():
            self.state[tensor] = state
            if origins:
                self.origins[tensor] = origins

    def _join_casts(self) -> None:
        """A cast weight is cut as its product is: a matrix always, a bias with the columns."""
        for op in sorted(self.columns | self.rows):
            inputs = self.graph.inputs[op]
            cast = inputs[self.is_cast[self.graph.tensor_source[inputs]]]
            sizes = self.graph.tensor_bytes[cast]
            matrix = sizes == sizes.max(initial=0.0)
            for tensor in cast[matrix | (op in self.columns)].tolist():
                self.state[tensor] = FeatureState.CUT
                self.role[self.graph.tensor_source[tensor]] = self.role[op]

    def _join_attention(self) -> None:
        """What lies between scores and context (softmax, dropout) is attention's, too."""
        graph = self.graph
        after = np.zeros(graph.num_ops, dtype=np.bool_)
        before = np.zeros(graph.num_ops, dtype=np.bool_)
        inner = self.role == Role.INNER
        inner[list(self.columns | self.rows)] = False
        for op in np.flatnonzero(inner).tolist():
            sources = graph.predecessors[op]
            after[op] = np.any(self.attends[sources] | after[sources])
        for op in np.flatnonzero(inner)[::-1].tolist():
            readers = graph.successors[op]
            before[op] = np.any(self.attends[readers] & (graph.phase[readers] == 0))
            before[op] |= np.any(before[readers])
        self.role[after & before] = Role.ATTENTION


def find_flow(layer: Template) -> FeatureFlow:
    """Cut as many products as can be: leave out those whose features are needed whole, again."""
    graph = layer.graph
    heavy = has_weight(graph) & ~is_thin(graph) & (graph.phase == Phase.FORWARD)
    candidates = frozenset(np.flatnonzero(heavy).tolist())
    while True:
        flow = FeatureFlow(layer, candidates)
        flow.run()
        if not flow.refused:
            return flow.finish()
        candidates -= flow.refused


def _tables(layer: Template) -> frozenset[int]:
    """Look-ups in the largest table that rows are looked up in, and in copies of it, as an encoder
    and a decoder have of one.

    Only where the layer has no product, as the embedding: rows of the vocabulary are divided there.
    """
    graph = layer.graph
    forward = (graph.phase == Phase.FORWARD) & ~is_product(graph)
    looked_up = forward & (graph.parameter_bytes > 0)
    looked_up &= graph.parameter_bytes > graph.fixed_bytes_read
    if not looked_up.any() or layer.is_input.any():
        return frozenset()
    first = int(np.argmax(np.where(looked_up, graph.parameter_bytes, 0.0)))
    _, codes = graph.kind_codes
    same = forward & (graph.group == graph.group[first]) & (graph.group[first] >= 0)
    same |= looked_up & (graph.parameter_bytes == graph.parameter_bytes[first])
    return frozenset(np.flatnonzero(same & (codes == codes[first])).tolist())
