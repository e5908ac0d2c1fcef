"""Which ops of a planned step may be computed again, and which of them are so together.

Decides regions: layers where a model has them, else stretches of forward that few bytes cross. A
region is computed again right before its own backward, from what other regions made. Knows the
planned graph and its parts, not what became of it.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from meshwright.array import Longs, marked
from meshwright.cost.layer.recomputation import find_recomputation
from meshwright.errors import InputError
from meshwright.graph.graph import Bools, Floats, Graph, Ints, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.product import is_product
from meshwright.graph.stack.stack import Stack
from meshwright.kernel.row import gather_rows
from meshwright.plan.plan import Plan, Recompute

_FEW_FLOPS = 8.0
"""FLOPs for each byte that an op moves, up to which it is bound by memory on every accelerator: an
A100 does 9.6 in fp32 in the time of one byte (19.5 TFLOP/s at 2.04 TB/s), others more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """Arrays over the ops of the planned graph."""

    number: Ints
    """The region that an op of forward is of, or that an op of backward belongs to; regions are of
    one part each; -1: none."""
    again: Bools
    """Whether an op of forward may run once more."""


def find_regions(graph: Graph, part_of_op: Ints, plan: Plan) -> Regions:
    """The regions of the parts that compute anything again."""
    full = np.array([part.recompute is Recompute.FULL for part in plan.parts])[part_of_op]
    none = np.array([part.recompute is Recompute.NONE for part in plan.parts])[part_of_op]
    forward = graph.phase == Phase.FORWARD
    try:
        stack: Stack | None = find_layers(graph)
    except InputError:  # it repeats no layers
        stack = None
    if stack is not None:
        number = (part_of_op * stack.num_layers + stack.layer_of_op).astype(np.int32)
    else:
        number = _cut_parts(graph, part_of_op, np.unique(part_of_op[~none]))
    number[none | (graph.phase == Phase.UPDATE)] = -1
    again = forward & full
    if stack is not None:
        wrapped = np.array([stack.kind_of(each).is_wrapped for each in range(stack.num_layers)])
        again &= wrapped[stack.layer_of_op]
    if not (full | none).all():
        again |= forward & ~full & ~none & _select(graph, part_of_op, stack)
    return Regions(number=number, again=again & ~_is_kept(graph))


def _is_kept(graph: Graph) -> Bools:
    """Ops that never run twice in a step.

    Batch norm moves its running statistics along whenever it runs, and a graph does not say so.
    What mixes samples is gathered from all replicas. An input is given to the step, not computed.
    """
    names, codes = graph.kind_codes
    is_kept = [name == "input" or "batchnorm" in name.lower().replace("_", "") for name in names]
    return np.array(is_kept, dtype=np.bool_)[codes] | graph.mixes


def _select(graph: Graph, part_of_op: Ints, stack: Stack | None) -> Bools:
    """What the selective manner repeats: as the cost of layers has it, where that knows anything.

    It needs to know what a layer divides within a team. Of convolutional networks it does not.
    """
    again = np.zeros(graph.num_ops, dtype=np.bool_)
    if stack is not None:
        found = [find_recomputation(kind) for kind in stack.kinds]
        by_layer, begin = gather_rows(stack.layer_of_op, stack.num_layers)
        for layer, ops in enumerate(np.split(by_layer, begin[1:-1])):
            # A kind's graph has stand-ins for what enters first, and updates of copies last.
            start = stack.kind_of(layer).num_entering
            again[ops] = found[stack.layers[layer]].again[start : start + len(ops)]
    return again if again.any() else _select_elementwise(graph, part_of_op)


def _select_elementwise(graph: Graph, part_of_op: Ints) -> Bools:
    """Cheap ops whose outputs backward reads, and whose inputs it reads as well.

    So their inputs are there anyway, or are computed again by such an op themselves.
    """
    moved = graph.bytes_read + graph.bytes_written
    cheap = (graph.phase == Phase.FORWARD) & (moved > 0) & (graph.flops <= _FEW_FLOPS * moved)
    cheap &= (graph.product_count == 0) & ~is_product(graph)
    cheap &= (graph.parameter_bytes == 0) & (graph.group < 0) & ~_is_kept(graph)
    saved = _is_saved(graph, part_of_op)
    source, reader = graph.edges
    is_lost = ~saved[graph.use_tensor] | (part_of_op[source] != part_of_op[reader])
    others = marked(graph.num_ops, reader[is_lost])  # they read what is not kept
    reads = np.diff(graph.inputs.start) > 0
    drops = marked(graph.num_ops, graph.tensor_source[saved & (graph.tensor_bytes > 0)])
    chosen: Bools = cheap & reads & drops & ~others
    return chosen


def _is_saved(graph: Graph, part_of_op: Ints) -> Bools:
    """Tensors that backward reads in the part that makes them in forward."""
    source, reader = graph.edges
    uses = (graph.phase[source] == Phase.FORWARD) & (graph.phase[reader] == Phase.BACKWARD)
    uses &= part_of_op[source] == part_of_op[reader]
    return marked(graph.num_tensors, graph.use_tensor[uses])


def _cut_parts(graph: Graph, part_of_op: Ints, parts: Ints) -> Ints:
    """Regions of every op where there are no layers."""
    number = np.full(graph.num_ops, -1, dtype=np.int32)
    count = 0
    for part in parts.tolist():
        ops = np.flatnonzero((graph.phase == Phase.FORWARD) & (part_of_op == part))
        if len(ops):
            number[ops] = count + _Stretch(graph, part_of_op, ops).cut()
            count = int(number[ops[-1]]) + 1
    _place_backward(graph, part_of_op, number)
    return number


def _place_backward(graph: Graph, part_of_op: Ints, number: Ints) -> None:
    """Backward belongs to the region of its forward op.

    Where that is not known, to the last region that it reads anything within: what crosses regions
    is kept, and may be the input of its forward op, which is of a later one.
    """
    source, reader = graph.edges
    partner = np.where(graph.partner >= 0, graph.partner, 0)
    known = (graph.partner >= 0) & (graph.phase == Phase.BACKWARD) & (number[partner] >= 0)
    known &= (part_of_op == part_of_op[partner]) & (graph.phase[partner] == Phase.FORWARD)
    is_other = (number[source] >= 0) & (number[reader] >= 0) & (number[source] != number[reader])
    is_near = part_of_op[source] == part_of_op[reader]
    crosses = marked(graph.num_tensors, graph.use_tensor[is_other & is_near])
    uses = (graph.phase[reader] == Phase.BACKWARD) & is_near
    uses &= ~known[reader] & ~crosses[graph.use_tensor] & (graph.phase[source] == Phase.FORWARD)
    number[known] = number[partner[known]]
    np.maximum.at(number, reader[uses], number[source[uses]])


class _Stretch:
    """Forward ops of a part, one after the other, to be cut into regions."""

    def __init__(self, graph: Graph, part_of_op: Ints, ops: npt.NDArray[np.intp]) -> None:
        count = len(ops)
        place = np.full(graph.num_ops, -1)
        place[ops] = np.arange(count)
        last = place[graph.tensor_source]
        np.maximum.at(last, graph.use_tensor, place[graph.use_op])  # -1 where elsewhere
        tensors = np.flatnonzero(place[graph.tensor_source] >= 0)
        self.bytes = graph.tensor_bytes[tensors]
        self.first, self.last = place[graph.tensor_source[tensors]], last[tensors]
        self.saved = self.bytes * _is_saved(graph, part_of_op)[tensors]
        """Of tensors that backward reads."""
        self.beside: Floats = graph.saved_bytes[ops]
        """By op: what it saves besides them."""
        self.total = np.cumsum(
            np.bincount(self.first, weights=self.saved, minlength=count) + self.beside
        )
        """Saved by an op and all before it."""
        made = np.bincount(self.first, weights=self.bytes, minlength=count)
        self.crossing = np.cumsum(
            made - np.bincount(self.last, weights=self.bytes, minlength=count)
        )
        """Bytes that pass from an op and those before it to those after it."""

    def cut(self) -> Ints:
        """The region of each op.

        Kept is what crosses the cuts, and one region's activations are there in backward: with n
        alike ops and k regions k + n / k, least for k = sqrt(n) (Chen et al. 2016, section 4.1).
        Ops are not alike, so every k up to twice that is tried.
        """
        count = len(self.crossing)
        tried = [self._cuts(num_regions) for num_regions in range(1, 2 * isqrt(count) + 1)]
        cuts = min(tried, key=self._peak)  # the first of equals: fewest regions
        return np.searchsorted(cuts, np.arange(count)).astype(np.int32)

    def _cuts(self, num_regions: int) -> Longs:
        """After which ops to cut: within half a region of an equal share, where least crosses."""
        share = float(self.total[-1]) / num_regions
        middle = np.arange(1, num_regions) * share
        starts = np.searchsorted(self.total, middle - share / 2)
        ends = np.searchsorted(self.total, middle + share / 2)
        ends = np.minimum(ends, len(self.total) - 1)  # a cut after the last op is none
        found = {
            self._narrowest(start, end, share)
            for start, end, share in zip(starts.tolist(), ends.tolist(), middle, strict=True)
            if start < end
        }
        return np.array(sorted(found), dtype=np.int64)

    def _narrowest(self, start: int, end: int, share: float) -> int:
        """The op of a few after which least crosses, the nearest to a share of equal ones."""
        crossing = self.crossing[start:end]
        least = start + np.flatnonzero(crossing == crossing.min())
        return int(least[np.abs(self.total[least] - share).argmin()])

    def _peak(self, cuts: Longs) -> float:
        """What is kept, and the most that one region has in backward."""
        region, end = np.searchsorted(cuts, self.first), np.searchsorted(cuts, self.last)
        crosses = region != end
        inner = np.bincount(region, self.saved * ~crosses, minlength=len(cuts) + 1)
        every = np.searchsorted(cuts, np.arange(len(self.beside)))
        beside = np.bincount(every, self.beside, minlength=len(cuts) + 1)
        return float(self.bytes[crosses].sum() + (inner + beside).max())
