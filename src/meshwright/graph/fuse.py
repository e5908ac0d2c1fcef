"""Merges element-wise ops as a compiler of training steps does (TorchInductor under torch.compile).

Decides which ops become one kernel, and what that kernel reads and writes. Knows kinds of ops,
edges and bytes, but no shapes: whether two ops loop over the same numbers it takes from their
being joined by a tensor. What is recomputed in backward instead of saved it does not know.

Sets of ops are grown so that the merged graph cannot have a cycle: every set has a depth, and every
tensor goes from a set to a deeper one. An op may join the sets of the deepest ops it reads, and a
set may sink to the sets of its nearest readers; neither turns a tensor round. (Inductor's scheduler
compares ancestors instead, which takes quadratic time.) Each edge is looked at twice.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.array import Bools, Floats, Ints, places_in
from meshwright.graph.column import OP_SIZES, STEEP_POWERS, TENSOR_STEEP, Phase, Split
from meshwright.graph.draft import topological_order
from meshwright.graph.graph import Graph
from meshwright.graph.ladder import change_times
from meshwright.graph.merge import find_inner, kept_tensors, merged_tensors, sum_by
from meshwright.kernel.disjoint import DisjointSets

REWRITTEN = (
    "native_batch_norm", "native_batch_norm_backward",
    "native_layer_norm", "native_layer_norm_backward",
)  # fmt: skip
"""Kinds that generated code computes in place of a library's kernel, at the speed of its bytes."""
ALIGNED_BYTES = 16.0
FUSED = "fused"
"""The kind of a merged op without a reduction."""
MAX_OPS = 64
"""No kernel of more ops than this: Inductor's `max_fusion_size`."""
ELEMENTWISE = frozenset({
    "abs", "add", "addcdiv", "addcmul", "arange", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "copy", "cos", "div",
    "elu", "elu_backward", "eq", "erf", "exp", "expm1", "fill", "floor", "floor_divide", "fmod",
    "full", "full_like", "ge", "gelu", "gelu_backward", "gt", "hardsigmoid",
    "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward",
    "isinf", "isnan", "le", "leaky_relu", "leaky_relu_backward", "lerp", "log", "log1p", "log2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum",
    "minimum", "mul", "native_dropout", "native_dropout_backward", "ne", "neg", "new_full",
    "new_ones", "new_zeros", "ones", "ones_like", "pow", "reciprocal", "relu", "remainder",
    "round", "rsqrt", "rsub", "scalar_tensor", "sigmoid", "sigmoid_backward", "sign", "silu",
    "silu_backward", "sin", "softplus", "softplus_backward", "sqrt", "square", "sub", "tanh",
    "tanh_backward", "threshold", "threshold_backward", "_to_copy", "trunc", "where", "xlogy",
    "zero", "zeros", "zeros_like",
})  # fmt: skip
"""Kinds of ops that make each number from the numbers at its place, in place or not."""
REDUCTIONS = frozenset({
    "amax", "amin", "mean", "sum", "var", "var_mean", "native_layer_norm",
    "native_layer_norm_backward", "_softmax", "_softmax_backward_data", "_log_softmax",
    "_log_softmax_backward_data",
})  # fmt: skip
"""Kinds of ops that a kernel can have one of, with element-wise ops before and after it."""
_REPLAYED = {
    f"_fused_{weights}{name}_"
    for weights in ("", "mixed-")
    for name in ("sgd", "momentum", "adam", "adamw")
}
"""Updates that leave nothing to a GPU's host; those of other optimisers may."""
_OF_REDUCTION = tuple(name for name in OP_SIZES if name.startswith(("product_", "fixed_product_")))
_SUMMED = ("flops", "fixed_flops", "parameter_bytes", "state_bytes", "saved_bytes")


def fuse_elementwise(graph: Graph) -> Graph:
    """The step with its chains and trees of element-wise ops merged, reductions among them.

    Ops merge within a phase, a split and a co-location group; those of the update never. A merged
    op has the name, the module and the precision of its last op and the kind of its reduction,
    else "fused". What only its own ops read is neither written nor read, and what several of them
    read is read once. It is one call and has no measured time.
    """
    label = find_sets(graph)
    if len(np.unique(label)) == graph.num_ops:
        return graph
    return _Merger(graph, label).graph()


def may_be_fused(graph: Graph) -> bool:
    """Whether ops of a graph may be merged ones: each is one call, as in a step without views."""
    return bool((graph.calls > 0).any() and (graph.calls <= 1).all())


def call_as_fused(graph: Graph) -> Graph:
    """The step with its ops apart, each with the part that it has in the measured times of a
    compiled run: of those that are merged there only the last is a call, and views are none."""
    is_last = find_sets(graph) == np.arange(graph.num_ops)
    times = np.array(list(graph.seconds.values())).reshape(len(graph.seconds), graph.num_ops)
    is_timed = ~np.isnan(times).any(axis=0) & bool(len(times))
    calls = np.where(is_last | ~is_timed, np.minimum(graph.calls, 1.0), 0.0)
    return replace(graph, calls=calls)


def is_replayed_alone(graph: Graph) -> bool:
    """Whether a device that takes the step alone replays it as one CUDA graph, which its host
    launches at once: ops are merged and updates are fused kernels."""
    is_merged = may_be_fused(graph) and (FUSED in graph.kind or not graph.calls.all())
    updates = {kind for kind in graph.kind_codes[0] if kind.startswith("_fused_")}
    return is_merged and updates <= _REPLAYED


def find_sets(graph: Graph) -> Ints:
    """For every op the last one of the set that it is merged into."""
    fusion = _Fusion(graph)
    for op in range(graph.num_ops):
        fusion.add(op)
    # From the deepest: what a set sinks to has been looked at, so the set is still as it was.
    members: dict[int, list[int]] = {}
    for op, root in enumerate(fusion.sets.roots()):
        members.setdefault(root, []).append(op)
    for root in sorted(members, key=lambda root: -fusion.depth[root]):
        if fusion.can_merge[root]:
            fusion.sink(root, members[root])
    roots = fusion.sets.roots()
    last = {root: op for op, root in enumerate(roots)}
    return np.array([last[root] for root in roots], dtype=np.int32)


class _Fusion:
    """Sets of ops that are merged; what is said of a set stands at its root."""

    def __init__(self, graph: Graph) -> None:
        kinds = [_plain(kind) for kind in graph.kind_codes[0]]
        codes = graph.kind_codes[1]
        is_reduction = np.array([kind in REDUCTIONS for kind in kinds], dtype=bool)[codes]
        is_merged = np.array([kind in ELEMENTWISE for kind in kinds], dtype=bool)[codes]
        is_merged = (is_merged | is_reduction) & (graph.phase != Phase.UPDATE)
        self.graph = graph
        self.barrier = _find_barriers(graph).tolist()
        self.source = graph.tensor_source.tolist()
        self.phase = graph.phase.tolist()
        self.split = list(zip(graph.split.tolist(), graph.mixes.tolist(), strict=True))
        self.sets = DisjointSets(range(graph.num_ops))
        self.depth = [0] * graph.num_ops
        self.deepest = [-1] * len(Phase)
        """Of each phase so far."""
        self.can_merge = is_merged.tolist()
        self.group = graph.group.tolist()
        self.num_ops = [1] * graph.num_ops
        self.num_reductions = is_reduction.astype(int).tolist()

    def add(self, op: int) -> None:
        """Let an op join the sets of the deepest ops that it reads, all of them or none."""
        tensors = self.graph.inputs[op].tolist()
        roots = {self.sets.find(self.source[tensor]) for tensor in tensors}
        deepest = max((self.depth[root] for root in roots), default=-1)
        joined = {root for root in roots if self.depth[root] == deepest}
        held = {self.sets.find(self.source[tensor]) for tensor in tensors if self.barrier[tensor]}
        if joined and not joined & held and self._fit({op, *joined}):
            self._unite(op, joined, deepest)
        else:
            # Below all of the phases before: a backward op that reads no gradient does not then
            # stand between a forward op and its readers.
            before = max(self.deepest[: self.phase[op]], default=-1)
            self.depth[op] = 1 + max(deepest, before)
        depth, phase = self.depth[self.sets.find(op)], self.phase[op]
        self.deepest[phase] = max(self.deepest[phase], depth)

    def sink(self, root: int, members: Collection[int]) -> None:
        """Let a set join those of its nearest readers, all of them or none."""
        readers: dict[int, bool] = {}
        for op in members:
            for tensor in self.graph.outputs[op].tolist():
                for reader in self.graph.readers[tensor].tolist():
                    other = self.sets.find(reader)
                    if other != root:
                        readers[other] = readers.get(other, False) or self.barrier[tensor]
        nearest = min((self.depth[other] for other in readers), default=-1)
        joined = {other for other in readers if self.depth[other] == nearest}
        if joined and not any(readers[other] for other in joined) and self._fit({root, *joined}):
            self._unite(root, joined, nearest)

    def _fit(self, roots: Collection[int]) -> bool:
        """Whether sets may be one, as far as their ops go."""
        groups = {self.group[root] for root in roots if self.group[root] >= 0}
        return (
            all(self.can_merge[root] for root in roots)
            and len({(self.phase[root], self.split[root]) for root in roots}) == 1
            and len(groups) <= 1
            and sum(self.num_reductions[root] for root in roots) <= 1
            and sum(self.num_ops[root] for root in roots) <= MAX_OPS
        )

    def _unite(self, root: int, others: Collection[int], depth: int) -> None:
        for other in others:
            self.sets.lead(root, other)
            self.num_ops[root] += self.num_ops[other]
            self.num_reductions[root] += self.num_reductions[other]
            self.group[root] = max(self.group[root], self.group[other])
        self.depth[root] = depth


def _plain(kind: str) -> str:
    """The kind without what it says of the layout, and of where the result goes."""
    return kind.removeprefix("strided_").removeprefix("spatial_").removesuffix("_")


def _find_barriers(graph: Graph) -> Bools:
    """Tensors that nothing merges across: partial sums, which replicas have to add first.

    Backward is linear in the gradients, so what it makes of partial sums alone is one, too.
    """
    is_linear = (graph.phase == Phase.BACKWARD) & (graph.split == Split.SUM)
    barriers: Bools = graph.tensor_partial & ~is_linear[graph.tensor_source]
    return barriers


class _Merger:
    """The merged graph, column by column."""

    def __init__(self, graph: Graph, label: Ints) -> None:
        self.old = graph
        last, place = np.unique(label, return_inverse=True)
        source, target = (place[ends].astype(np.int32) for ends in graph.edges)
        is_between = source != target
        names = [graph.op_names[op] for op in last]
        order = topological_order(
            source[is_between], target[is_between], names, f"graph {graph.name}"
        )
        self.last = last[order]
        """The last op of each new one."""
        rank = places_in(order, len(order), np.int32)
        self.place = rank[place]
        """The new op of each old one."""
        self.is_merged = np.bincount(self.place) > 1
        self.is_inside = np.equal(*(self.place[ends] for ends in graph.edges))
        """Whether a use is by the op that makes the tensor."""
        self.is_dropped = find_inner(graph, self.place)

    def graph(self) -> Graph:
        """Ops, then tensors, then uses."""
        old, last = self.old, self.last
        columns: dict[str, Any] = {name: getattr(old, name)[last] for name in OP_SIZES}
        for name in _SUMMED:
            columns[name] = self._sum(getattr(old, name))
        columns["flops"] = np.maximum(columns["flops"], columns["fixed_flops"])
        superlinear = self._steep_parts()
        for name, find_saved in (("bytes_read", self._unread), ("bytes_written", self._unwritten)):
            moved = self._moved(name, find_saved)
            columns |= {each: moved.pop(each) for each in (name, f"fixed_{name}")}
            superlinear |= moved
        columns["workspace_bytes"] = self._largest(old.workspace_bytes, 0.0)
        any_calls = self._largest(old.calls, 0.0) > 0
        # Products are padded where their rows are not aligned.
        columns["product_alignment"] = np.where(
            columns["product_alignment"] > 0, ALIGNED_BYTES, columns["product_alignment"]
        )
        # Generated code makes one call a kernel and none for views.
        columns["calls"] = np.where(self.is_merged, any_calls, np.minimum(columns["calls"], 1.0))
        reduction = self._reductions()
        for name in _OF_REDUCTION:
            of_merged = np.where(reduction >= 0, getattr(old, name)[reduction], 0.0)
            columns[name] = np.where(self.is_merged, of_merged, columns[name])
        for name in (each for each in superlinear if "product" in each):
            of_merged = np.where(reduction >= 0, old.superlinear[name][reduction], 0.0)
            superlinear[name] = np.where(self.is_merged, of_merged, superlinear[name])
        return Graph(
            name=old.name,
            batch=old.batch,
            op_names=tuple(old.op_names[op] for op in last),
            kind=self._kinds(reduction),
            module=tuple(old.module[op] for op in last),
            precision=tuple(old.precision[op] for op in last),
            phase=old.phase[last],
            split=old.split[last],
            group=self._largest(old.group, -1),
            partner=self._partners(),
            **self._times(),
            mixes=old.mixes[last],
            superlinear=superlinear,
            **columns,
            **merged_tensors(old, self.place, self.is_dropped),
        )

    def _sum(self, values: Floats) -> Floats:
        return sum_by(self.place, values, len(self.last))

    def _largest(self, values: Any, least: float) -> Any:
        largest = np.full(len(self.last), least, dtype=values.dtype)
        np.maximum.at(largest, self.place, values)
        return largest

    def _reductions(self) -> Ints:
        """The reduction that each new op has, -1: none."""
        is_reduction = np.array([_plain(kind) in REDUCTIONS for kind in self.old.kind_codes[0]])
        ops = np.flatnonzero(is_reduction[self.old.kind_codes[1]])
        reduction = np.full(len(self.last), -1, dtype=np.int32)
        reduction[self.place[ops]] = ops
        return reduction

    def _kinds(self, reduction: Ints) -> tuple[str, ...]:
        kind = self.old.kind
        kind = tuple(FUSED if each in REWRITTEN else each for each in kind)
        return tuple(
            kind[op] if not merged else kind[of] if of >= 0 else FUSED
            for op, of, merged in zip(
                self.last.tolist(), reduction.tolist(), self.is_merged.tolist(), strict=True
            )
        )

    def _partners(self) -> Ints:
        """The first of the forward ops that a new op's are of: gradients go backwards."""
        has_one = np.flatnonzero(self.old.partner >= 0)
        mine, other = self.place[has_one], self.place[self.old.partner[has_one]]
        is_other = mine != other
        first = np.full(len(self.last), len(self.last), dtype=np.int32)
        np.minimum.at(first, mine[is_other], other[is_other])
        return np.where(first < len(self.last), first, -1).astype(np.int32)

    def _times(self) -> Any:
        def kept(each: Floats) -> Floats:
            return np.where(self.is_merged, np.nan, each[self.last])

        times = change_times(self.old.seconds, self.old.ladders, kept)
        known = [kind for kind, each in times["seconds"].items() if not np.isnan(each).all()]
        return {
            name: {kind: each for kind, each in column.items() if kind in known}
            for name, column in times.items()
        }

    def _steep_parts(self) -> dict[str, Floats]:
        """Parts of FLOPs, of products and of tensors that grow faster than the batch."""
        kept = kept_tensors(self.old, self.place, self.is_dropped)
        return {
            name: part[kept]
            if name in TENSOR_STEEP
            else self._sum(part)
            if name.endswith("flops")
            else part[self.last]
            for name, part in self.old.superlinear.items()
        }

    def _moved(self, name: str, find_saved: Any) -> dict[str, Floats]:
        """Bytes read or written and their parts, less what merging saves of each.

        What grows with another power of the batch is treated alike and apart, so that sizes stay
        sums of powers.
        """
        old = self.old
        of_tensor = old.parts_of("tensor_bytes")
        merged, kept = {}, {}
        for power, part in old.parts_of(name).items():
            saved = find_saved(part, of_tensor.get(power, np.zeros(old.num_tensors)))
            merged[power] = np.maximum(self._sum(part) - saved, 0.0)
            kept[power] = part[self.last]
        whole = np.where(self.is_merged, sum(merged.values()), getattr(old, name)[self.last])
        names = {"fixed": 0, **STEEP_POWERS}
        return {name: whole} | {
            f"{start}_{name}": np.where(self.is_merged, merged[power], kept[power])
            for start, power in names.items()
            if power in merged
        }

    def _unread(self, read: Floats, tensor_bytes: Floats) -> Floats:
        """Reads inside a new op, and those of the same tensor after the first."""
        old = self.old
        size = tensor_bytes[old.use_tensor]
        each = size * _shares(read, sum_by(old.use_op, size, old.num_ops))[old.use_op]
        pair, first, inverse = np.unique(
            self.place[old.use_op].astype(np.int64) * max(old.num_tensors, 1) + old.use_tensor,
            return_index=True,
            return_inverse=True,
        )
        needed = np.zeros(len(pair))
        np.maximum.at(needed, inverse, np.where(self.is_inside, 0.0, each))
        saved = sum_by(inverse, each, len(pair)) - needed
        reader = self.place[old.use_op[first]]
        return sum_by(reader, saved, len(self.last))

    def _unwritten(self, written: Floats, tensor_bytes: Floats) -> Floats:
        """Writes of tensors that only a new op itself reads."""
        source = self.old.tensor_source
        share = _shares(written, sum_by(source, tensor_bytes, self.old.num_ops))
        saved = np.where(self.is_dropped, tensor_bytes * share[source], 0.0)
        return sum_by(self.place[source], saved, len(self.last))


def _shares(moved: Floats, tensor_bytes: Floats) -> Floats:
    """How much an op moves of each of its tensors: all, unless it moves less than they have.

    A view moves a part of what it is a view of; how much of which is not known any more. What an
    op moves beyond its tensors is weights.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Floats = np.where(tensor_bytes > 0, np.minimum(moved / tensor_bytes, 1.0), 0.0)
    return share
