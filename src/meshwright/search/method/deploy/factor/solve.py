"""Solves the programme of sufficient factor broadcasting, exactly, as a minimum cut.

Every replica may run op i on the whole batch (alpha_i = 1: it is duplicated) if it has all rows of
what i reads, either because their source is duplicated or because they are gathered (b_t = 1):

    min  sum_i alpha_i duplicate_i + sum_t b_t broadcast_t - sum_g alpha_g saved_g
    alpha_i <= alpha_source(t) + b_t    for every tensor t and op i that reads it
    alpha_i <= alpha_j                  where j is no update and reads a sum that i makes
    alpha, b in {0, 1}

TAG (Zhang et al., IEEE TPDS 2023) has the first three lines for one gradient g, and b for each use
of a tensor; here a tensor is gathered once for all readers. The fourth says that a sum over the
batch (part of a gradient, statistics, a loss) is whole for all of its readers or for none: one that
expects its replica's own part, and is itself added up over replicas, would count a whole sum once
for each of them.

All of it is a choice of a set of ops at the price of arcs that leave it (project selection; Picard,
Management Science 22(11), 1976), so a minimum cut is an integer optimum and no branching is needed.
OR-Tools' maximum flow finds one; the tests hold it against enumeration and against the programme as
printed above, given to CP-SAT.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import marked
from meshwright.graph.graph import Bools, Graph, Phase
from meshwright.search.method.deploy.factor.price import FactorPrices

Places = npt.NDArray[np.intp]

_LARGEST = 2**45
"""What all savings together are scaled to: capacities are integers."""
_SOURCE, _SINK = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorChoice:
    """An optimum, beyond what was known."""

    ops: tuple[int, ...]
    """The ops that every replica runs on the whole batch, rising."""
    tensors: tuple[int, ...]
    """The tensors whose rows are gathered on all replicas, rising."""
    gain_seconds: float
    """What it saves less what it costs; with all gradients that the ops make."""


NOTHING = FactorChoice(ops=(), tensors=(), gain_seconds=0.0)


class Known:
    """What is chosen already, and so of no cost to whoever reads it: a truth value an op, and one
    a tensor. Bytes, which Python reads fast and NumPy reads, too."""

    def __init__(self, num_ops: int, num_tensors: int) -> None:
        self.ops = bytearray(num_ops)
        """By op whether it is duplicated."""
        self.tensors = bytearray(num_tensors)
        """By tensor whether it is gathered."""

    def add(self, choice: FactorChoice) -> None:
        """Take a choice for granted from now on."""
        for op in choice.ops:
            self.ops[op] = 1
        for tensor in choice.tensors:
            self.tensors[tensor] = 1


class Programme:
    """A graph and its prices; as arrays for cuts, as lists for walks from a gradient."""

    def __init__(self, graph: Graph, prices: FactorPrices) -> None:
        self.prices = prices
        self.tensor_source = graph.tensor_source
        is_dear = prices.broadcast[graph.use_tensor] > 0
        self.use_tensor, self.use_op = graph.use_tensor[is_dear], graph.use_op[is_dear]
        """The uses of tensors that replicas do not have whole anyway."""
        is_tied = ~np.isfinite(prices.broadcast[self.use_tensor])
        is_tied &= graph.phase[self.use_op] != Phase.UPDATE
        self.tied_op = graph.tensor_source[self.use_tensor[is_tied]]
        self.tied_to = self.use_op[is_tied]
        """The ops that must be duplicated with others, because they read sums of these."""
        self.duplicate: list[float] = prices.duplicate.tolist()
        self.broadcast: list[float] = prices.broadcast.tolist()
        self.saved: list[float] = prices.saved.tolist()
        self.source: list[int] = graph.tensor_source.tolist()
        self.inputs = _lists(self.use_op, self.use_tensor, graph.num_ops)
        self.outputs = _lists(graph.tensor_source, np.arange(graph.num_tensors), graph.num_ops)
        self.tied = _lists(self.tied_op, self.tied_to, graph.num_ops)

    def nothing_known(self) -> Known:
        """What is known before anything is chosen."""
        return Known(len(self.duplicate), len(self.source))

    def solve_all(self, gradients: Sequence[int]) -> FactorChoice:
        """The best set of ops to duplicate for all these gradients together."""
        return self._solve(gradients, self.nothing_known(), np.isfinite(self.prices.duplicate))

    def solve(self, gradient: int, known: Known, near: Sequence[int]) -> FactorChoice:
        """The best of these ops to duplicate for one gradient; empty where none gains."""
        return self._solve([gradient], known, marked(len(self.duplicate), near))

    def find_near(
        self, gradient: int, known: Known, within: Collection[int] | None = None
    ) -> list[int]:
        """The ops that an optimum for one gradient may duplicate.

        An op is duplicated for the gradient's sake, with all ops on a way to it; so it is too far
        where the cheapest way takes as long as what is saved.
        """
        near: dict[int, None] = {}
        waiting = [(self.duplicate[gradient], gradient)]
        while waiting:
            seconds, op = heappop(waiting)
            if op in near or seconds >= self.saved[gradient]:
                continue
            near[op] = None
            upstream = [self.source[each] for each in self.inputs[op] if self._is_dear(each, known)]
            for each in (*upstream, *self.tied[op]):
                is_allowed = within is None or each in within
                if is_allowed and each not in near and not known.ops[each]:
                    heappush(waiting, (seconds + self.duplicate[each], each))
        return list(near)

    def price(self, chosen: Collection[int], known: Known) -> FactorChoice:
        """What it takes to duplicate these ops, too; what they make need be gathered no more."""
        ops = set(chosen)
        gathered = {
            tensor
            for op in ops
            for tensor in self.inputs[op]
            if self._is_dear(tensor, known) and self.source[tensor] not in ops
        }
        spared = (tensor for op in ops for tensor in self.outputs[op] if known.tensors[tensor])
        gain = sum(self.saved[op] - self.duplicate[op] for op in sorted(ops))
        gain -= sum(self.broadcast[tensor] for tensor in sorted(gathered))
        gain += sum(self.broadcast[tensor] for tensor in sorted(spared))
        return FactorChoice(
            ops=tuple(sorted(ops)), tensors=tuple(sorted(gathered)), gain_seconds=gain
        )

    def needed(self, ops: Collection[int], known: Known) -> tuple[int, ...]:
        """These ops and those duplicated ones that they need, rising."""
        found = set(ops)
        waiting = list(ops)
        while waiting:
            op = waiting.pop()
            upstream = (self.source[each] for each in self.inputs[op])
            for each in (*upstream, *self.tied[op]):
                if known.ops[each] and each not in found:
                    found.add(each)
                    waiting.append(each)
        return tuple(sorted(found))

    def _is_dear(self, tensor: int, known: Known) -> bool:
        return not (known.tensors[tensor] or known.ops[self.source[tensor]])

    def _solve(self, gradients: Sequence[int], known: Known, near: Bools) -> FactorChoice:
        roots = np.array([op for op in gradients if near[op]], dtype=np.intp)
        limit = float(self.prices.saved[roots].sum())
        if not limit:
            return NOTHING
        choice = self.price(self._cut(roots, known, near, limit).tolist(), known)
        # Capacities are rounded, so what gains nothing may look as if it gained a little.
        return choice if choice.gain_seconds > 0 else NOTHING

    def _cut(self, roots: Places, known: Known, near: Bools, limit: float) -> Places:
        """The ops on the source's side of a minimum cut, the fewest of all minimum cuts'.

        From the source to gradients, at what they save; from ops to the sink, at what they cost;
        from ops to what they read and from there to its source, at what it costs to gather, or to
        the sink where the source is not near; from ops to those that they are tied to.
        """
        known_op = np.frombuffer(known.ops, dtype=np.bool_)
        known_tensor = np.frombuffer(known.tensors, dtype=np.bool_)
        ops = np.flatnonzero(near)
        node = np.full(len(near), _SINK)
        node[ops] = np.arange(2, len(ops) + 2)
        uses = near[self.use_op] & ~known_tensor[self.use_tensor]
        uses &= ~known_op[self.tensor_source[self.use_tensor]]
        tensors, place = np.unique(self.use_tensor[uses], return_inverse=True)
        tensor_node = np.arange(len(ops) + 2, len(ops) + 2 + len(tensors))
        tied = near[self.tied_op] & ~known_op[self.tied_to]
        arcs = (
            (np.full(len(roots), _SOURCE), node[roots], self.prices.saved[roots]),
            (node[ops], np.full(len(ops), _SINK), self.prices.duplicate[ops]),
            (node[self.use_op[uses]], tensor_node[place], np.full(len(place), np.inf)),
            (tensor_node, node[self.tensor_source[tensors]], self.prices.broadcast[tensors]),
            (node[self.tied_op[tied]], node[self.tied_to[tied]], np.full(tied.sum(), np.inf)),
        )
        tails, heads, seconds = (np.concatenate(each) for each in zip(*arcs, strict=True))
        side = _source_side(tails, heads, seconds, limit)
        return ops[side[(side > _SINK) & (side < len(ops) + 2)] - 2]


def _lists(rows: npt.NDArray[Any], entries: npt.NDArray[Any], num_rows: int) -> list[list[int]]:
    lists: list[list[int]] = [[] for _ in range(num_rows)]
    for row, entry in zip(rows.tolist(), entries.tolist(), strict=True):
        lists[row].append(entry)
    return lists


def _source_side(
    tails: npt.NDArray[Any], heads: npt.NDArray[Any], seconds: npt.NDArray[Any], limit: float
) -> Places:
    """What can be reached from the source beside a maximum flow, rising."""
    # Imported here because it takes 0.1 s.
    from ortools.graph.python import max_flow

    # No minimum cut is above the limit, so nothing needs to cost more.
    sizes = np.minimum(seconds * (_LARGEST / limit), 2.0 * _LARGEST)
    flow: Any = max_flow.SimpleMaxFlow()
    flow.add_arcs_with_capacity(
        tails.astype(np.int32), heads.astype(np.int32), np.rint(sizes).astype(np.int64)
    )
    status = flow.solve(_SOURCE, _SINK)
    assert status == flow.OPTIMAL, status
    return np.sort(np.array(flow.get_source_side_min_cut(), dtype=np.intp))
