"""Computes again what a part does not keep.

Ops of forward run once more in backward, right before the first op that reads what they make, and
backward of their region reads that instead. What nobody reads any more from forward is then free by
itself. Every layer is computed again, the last one too: its backward follows at once only if no
other microbatch comes between, and the cost of layers counts it (`cost.layer.price`). What is no
layer (embedding, last norm, head, loss) is not, since frameworks wrap layers only.
"""

from bisect import bisect_left
from typing import Any

import numpy as np

from meshwright.array import marked
from meshwright.graph.graph import Bools, Graph, Ints, Phase, Split
from meshwright.kernel.row import group_values
from meshwright.plan.plan import Plan, Recompute
from meshwright.program.expand.expansion import Expansion, Owned
from meshwright.program.expand.region import Regions, find_regions
from meshwright.program.expand.rewrite import Rewrite

SUFFIX = "again"
"""Ends the name of an op that runs once more."""
_CHANGED: dict[str, Any] = {
    "phase": int(Phase.BACKWARD),
    "partner": -1,
    "parameter_bytes": 0.0,
    "state_bytes": 0.0,
    "saved_bytes": 0.0,
}
"""Columns in which a copy differs: weights stay with the op of forward, and what that saved besides
its tensors becomes a tensor."""


def recompute(before: Expansion, graph: Graph, plan: Plan) -> Expansion:
    """Run ops of forward once more where parts say so; `graph` is the planned one."""
    if all(part.recompute is Recompute.NONE for part in plan.parts):
        return before
    known = np.flatnonzero(before.origin >= 0)
    part_of_op = np.zeros(graph.num_ops, dtype=np.int32)
    part_of_op[before.origin[known]] = before.part_of_op[known]
    repeat = _Repeat(before, find_regions(graph, part_of_op, plan))
    return repeat.rewritten() if repeat.again.any() else before


class _Order:
    """A tensor of no bytes by which ops wait for another, made when the first one does."""

    def __init__(self, source: int) -> None:
        self.source, self.made = source, -1

    def tensor(self, rewrite: Rewrite) -> int:
        """The number of the tensor, which is made at the first call."""
        if self.made < 0:
            self.made = rewrite.add_tensor(self.source, 0.0, 0.0)
        return self.made


class _Repeat:
    """Which ops run once more, and who reads what they make."""

    def __init__(self, before: Expansion, regions: Regions) -> None:
        self.before, self.graph = before, before.graph
        graph = self.graph
        model = _find_models(before)
        has_model = model >= 0
        self.region: Ints = np.where(has_model, regions.number[model], -1)
        may = has_model & regions.again[model] & (graph.phase == Phase.FORWARD)
        source, reader = graph.edges
        is_near = before.part_of_op[source] == before.part_of_op[reader]
        is_inner = is_near & (self.region[source] == self.region[reader])
        is_inner &= graph.phase[reader] != Phase.UPDATE
        self.drops: Bools = may[graph.tensor_source]
        """By tensor: whether readers of its own region get another. What other regions of the part
        read is kept, since it is an input of theirs."""
        self.drops[graph.use_tensor[is_near & ~is_inner]] = False
        reads = is_inner & (graph.phase[reader] == Phase.BACKWARD) & self.drops[graph.use_tensor]
        self.savers = self._find_savers(may)
        self.again = self._find_needed(may, graph.use_tensor[reads])
        self.first = self._find_first(reader[reads])

    def _find_savers(self, may: Bools) -> dict[int, list[int]]:
        """Ops that save something besides their tensors, and the backward ops that it is for."""
        graph, found = self.graph, dict[int, list[int]]()
        backward = np.flatnonzero((graph.phase == Phase.BACKWARD) & (graph.partner >= 0))
        for op in backward.tolist():
            partner = int(graph.partner[op])
            if may[partner] and graph.saved_bytes[partner] > 0:
                found.setdefault(partner, []).append(op)
        return {
            op: readers
            for op, readers in found.items()
            if (self.region[readers] == self.region[op]).all() and op < min(readers)
        }

    def _find_needed(self, may: Bools, read: Ints) -> Bools:
        """Ops that backward needs something of, directly or through other such ops."""
        graph = self.graph
        wanted = marked(graph.num_ops, graph.tensor_source[read])
        wanted[list(self.savers)] = True
        again = wanted & may
        for op in np.flatnonzero(may)[::-1].tolist():
            if again[op]:
                tensors = graph.inputs[op]
                sources = graph.tensor_source[tensors[self.drops[tensors]]]
                again[sources[self.region[sources] == self.region[op]]] = True
        return again

    def _find_first(self, readers: Ints) -> dict[int, int]:
        """By region: the first op of backward that reads anything of it."""
        saved = [op for each in self.savers.values() for op in each]
        first: dict[int, int] = {}
        for op in sorted({*readers.tolist(), *saved}):
            first.setdefault(int(self.region[op]), op)
        return first

    def rewritten(self) -> Expansion:
        """The expansion with all copies."""
        graph, rewrite = self.graph, Rewrite(self.before)
        orders = self._find_orders()
        new: dict[int, int] = {}  # by tensor that readers of its region get another of: that one
        waiting: set[int] = set()  # what is made after the order of its region
        for op in np.flatnonzero(self.again).tolist():
            region = int(self.region[op])
            first = self.first[region]
            reads = [self._read(tensor, region, new) for tensor in rewrite.reads[op]]
            place = max([first - 0.5, *(_place_after(rewrite, tensor) for tensor in reads)])
            priority = float(self.before.priority[first])
            copy = rewrite.copy_op(op, place, SUFFIX, **_CHANGED, priority=priority)
            waits = not waiting.isdisjoint(reads)
            if not waits and region in orders and graph.split[op] != Split.NONE:
                # An op that runs whole on every replica would gather what it waits for from all.
                reads, waits = [*reads, orders[region].tensor(rewrite)], True
            rewrite.reads[copy] = reads
            made = {tensor: rewrite.like(tensor, copy) for tensor in graph.outputs[op].tolist()}
            new.update((old, each) for old, each in made.items() if self.drops[old])
            waiting.update(made.values() if waits else ())
            if op in self.savers:
                self._move_saved(rewrite, op, copy)
        for op in np.flatnonzero(graph.phase == Phase.BACKWARD).tolist():
            region = int(self.region[op])
            rewrite.reads[op] = [self._read(each, region, new) for each in rewrite.reads[op]]
        return rewrite.done()

    def _read(self, tensor: int, region: int, new: dict[int, int]) -> int:
        """What an op that runs in backward reads in place of a tensor."""
        if tensor not in new or self.region[self.graph.tensor_source[tensor]] != region:
            return tensor
        return new[tensor]

    def _move_saved(self, rewrite: Rewrite, op: int, copy: int) -> None:
        """Let a copy save what the op of forward saved besides its tensors."""
        size = float(self.graph.saved_bytes[op])
        # As in `Graph.at_batch`, an op that does not split saves the same for every batch.
        fixed = size if self.graph.split[op] == Split.NONE else 0.0
        saved = rewrite.add_tensor(copy, size, fixed)
        rewrite.resize(op, saved_bytes=0.0)
        for reader in self.savers[op]:
            rewrite.reads[reader].append(saved)

    def _find_orders(self) -> dict[int, _Order]:
        """By region: the op that its copies wait for, so that they do not run as soon as they can.

        All that they read is there from forward on. The op is the last that the first reader waits
        for itself, else the last one before it. Gradients of weights are none: a zero-bubble
        schedule has them later. Collectives are none: they have one tensor each.
        """
        graph, part = self.graph, self.before.part_of_op
        waited = (graph.phase != Phase.UPDATE) & ~self.before.is_collective
        waited &= (graph.phase == Phase.FORWARD) | (graph.split != Split.SUM)
        by_part = group_values((int(part[op]), op) for op in np.flatnonzero(waited).tolist())
        orders: dict[int, _Order] = {}
        for region, first in self.first.items():
            sources = graph.predecessors[first]
            is_own = waited[sources] & (part[sources] == part[first])
            own = sources[is_own & (graph.phase[sources] == Phase.BACKWARD)]
            here = by_part.get(int(part[first]), [])
            earlier = bisect_left(here, first)
            if len(own) or earlier:
                orders[region] = _Order(int(own.max()) if len(own) else here[earlier - 1])
        return orders


def _place_after(rewrite: Rewrite, tensor: int) -> float:
    """The first place at which a tensor can be read, before the next op of the old order."""
    source = int(rewrite.tensors[tensor]["source"])
    return rewrite.place[source] + (0.25 if source < rewrite.graph.num_ops else 0.0)


def _find_models(before: Expansion) -> Ints:
    """By op: the planned op that decides for it; -1: none.

    A collective that adds up terms goes with the op that makes them, any other one with what reads
    it: a layer keeps its own rows of its input and gathers the others again.
    """
    graph, part = before.graph, before.part_of_op
    model = before.origin.copy()
    others = np.flatnonzero(before.origin < 0).tolist()
    for op in others:
        tensors = graph.inputs[op]
        if len(tensors):
            model[op] = model[graph.tensor_source[tensors[0]]]
    for op in reversed(others):
        if (before.held[graph.inputs[op]] != Owned.TERMS).all():
            readers = graph.successors[op]
            readers = readers[
                (graph.phase[readers] == graph.phase[op]) & (part[readers] == part[op])
            ]
            if len(readers):
                model[op] = model[readers.min()]
    return model
