"""Turns a step that was recorded at two batch sizes into a Graph, by the rules of `capture`.

The two give every quantity as a line in the batch, and from the lines follows how an op splits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.array import Floats
from meshwright.errors import InputError
from meshwright.graph.architecture.stretch import RECORDED_LAYERS, stretch
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import TapeKernel
from meshwright.graph.column import Phase, Split
from meshwright.graph.graph import Graph
from meshwright.kernel.disjoint import DisjointSets

GROWTH = 2
"""How many times the batch the second recording has, as in `capture`."""
NUMBERED = ("pow", "sum")
"""Names that Python has taken: the first op of such a name has a number, too."""


def build_step(
    name: str, batch: float, layers: int, record: Callable[[int, int], StepTape]
) -> Graph:
    """The graph of a step on `batch` samples; `record` takes whole samples, and layers.

    One sample has other copies than many, and parts of samples have no shapes, so these two come
    from the step on two. Layers are recorded up to three; more are copies of the middle one.
    """
    if not 0 < batch < float("inf"):
        raise InputError(f"{name}: batch must be positive, got {batch}")
    size = int(batch) if batch >= GROWTH and batch % 1 == 0 else GROWTH
    recorded = min(layers, RECORDED_LAYERS)
    small, large = record(size, recorded), record(GROWTH * size, recorded)
    columns = _StepColumns(small, large).columns()
    if layers > recorded:
        columns = stretch(columns, small, layers)
    names = _number_names(columns.pop("names"), columns["module"])
    graph = Graph(name=name, batch=size, op_names=names, **columns)
    return graph if size == batch else graph.at_batch(batch)


def _number_names(names: Sequence[str], modules: Sequence[str]) -> tuple[str, ...]:
    """Numbers names that occur again, as PyTorch's traces do, and puts the module before."""
    counts = dict.fromkeys(NUMBERED, 1)
    found = []
    for name, module in zip(names, modules, strict=True):
        number = counts.get(name, 0)
        counts[name] = number + 1
        whole = f"{name}_{number}" if number else name
        found.append(f"{module}/{whole}" if module else whole)
    return tuple(found)


class _StepColumns:
    """A tape recorded at two batches, and the columns of a graph that follow from them."""

    def __init__(self, small: StepTape, large: StepTape) -> None:
        assert len(small.kernels) == len(large.kernels), "ops must not depend on the batch"
        self.small, self.large = small, large
        self.split, self.partial = self._find_splits()

    def columns(self) -> dict[str, Any]:
        """The columns of a graph, but for `names`, which are not numbered yet."""
        kernels = self.small.kernels
        parameter, state, saved = self._count_held()
        return {
            "names": tuple(kernel.name for kernel in kernels),
            "kind": tuple(kernel.kind for kernel in kernels),
            "module": tuple(kernel.module for kernel in kernels),
            "precision": tuple(kernel.precision for kernel in kernels),
            "phase": np.array([kernel.phase for kernel in kernels], dtype=np.int8),
            "split": np.array(self.split, dtype=np.int8),
            "group": np.array(self._find_groups(), dtype=np.int32),
            "partner": np.array([kernel.partner for kernel in kernels], dtype=np.int32),
            **self._lines(),
            "product_alignment": _column(kernels, lambda kernel: kernel.product.alignment),
            "calls": _column(kernels, lambda kernel: kernel.calls),
            "parameter_bytes": np.array(parameter, dtype=np.float64),
            "state_bytes": np.array(state, dtype=np.float64),
            "saved_bytes": np.array(saved, dtype=np.float64),
            "workspace_bytes": _column(kernels, lambda kernel: kernel.workspace)
            + np.array(self._count_lingering(), dtype=np.float64),
            **self._tensors(),
        }

    def _lines(self) -> dict[str, Floats]:
        lines = {}
        for name, read in _LINES.items():
            whole, grown = (_column(tape.kernels, read) for tape in (self.small, self.large))
            lines[name], lines[f"fixed_{name}"] = whole, _fixed(whole, grown)
        return lines

    def _find_splits(self) -> tuple[list[Split], list[bool]]:
        """How each kernel splits, and which storages are partial sums when it does.

        What does not grow although its kernel does is summed over the batch. Backward is linear in
        gradients, so what it makes of partial sums alone is a partial sum, too.
        """
        partial = [False] * len(self.small.storages)
        splits = []
        for kernel, grown in zip(self.small.kernels, self.large.kernels, strict=True):
            grows = grown.bytes_read > kernel.bytes_read or grown.flops > kernel.flops
            is_backward = kernel.phase is Phase.BACKWARD
            sizes = [
                (self.small.storages[k].bytes, self.large.storages[k].bytes) for k in kernel.made
            ]
            larger = [large > small for small, large in sizes]
            split = Split.NONE
            if grown.bytes_written > kernel.bytes_written or any(larger):  # `empty` writes none
                split = Split.BATCH
            elif grows or (is_backward and any(partial[each] for each in kernel.reads)):
                split = Split.SUM
            splits.append(split)
            for made, is_larger in zip(kernel.made, larger, strict=True):
                partial[made] = split is not Split.NONE and not is_larger
        return splits, partial

    def _count_held(self) -> tuple[list[int], list[int], list[int]]:
        """Weights, buffers and inputs are with the first op that reads them."""
        tape = self.small
        parameter, saved = [0] * len(tape.kernels), [kernel.kept for kernel in tape.kernels]
        state = [kernel.state for kernel in tape.kernels]
        for weight in tape.weights:
            storage = tape.storages[weight.value.storage]
            parameter[storage.readers[0]] += storage.bytes
            state[storage.readers[0]] += storage.bytes
        for number in tape.buffers:
            state[tape.storages[number].readers[0]] += tape.storages[number].bytes
        for number in tape.inputs:
            saved[tape.storages[number].readers[0]] += tape.storages[number].bytes
        return parameter, state, saved

    def _count_lingering(self) -> list[int]:
        """What backward kernels have read is freed when the last kernel of their op is done."""
        kernels, storages = self.small.kernels, self.small.storages
        lingering = [0] * len(kernels)
        first = 0
        for k, kernel in enumerate(kernels):
            if kernel.node < 0 or k == 0 or kernel.node != kernels[k - 1].node:
                first = k
                continue
            for number in {each for j in range(first, k) for each in kernels[j].reads}:
                storage = storages[number]
                if 0 <= storage.source < first and storage.readers[-1] < k:
                    lingering[k] += storage.bytes
        return lingering

    def _find_groups(self) -> list[int]:
        """Ops that share a weight, its gradient for the update, or a buffer."""
        tape = self.small
        sharing = [tape.storages[number].readers for number in tape.buffers]
        for weight, gradient in zip(tape.weights, tape.made_gradients, strict=True):
            readers = tape.storages[weight.value.storage].readers
            sharing.append([*readers, tape.storages[gradient].source])
        sets = DisjointSets(range(len(tape.kernels)))
        return sets.number_groups([sorted(set(members)) for members in sharing])

    def _tensors(self) -> dict[str, Any]:
        """All that kernels make, in their order, and who reads it."""
        storages, larger = self.small.storages, self.large.storages
        made = [number for number, each in enumerate(storages) if each.source >= 0]
        size = np.array([storages[each].bytes for each in made], dtype=np.float64)
        grown = np.array([larger[each].bytes for each in made], dtype=np.float64)
        readers = [storages[each].readers for each in made]
        lengths = [len(each) for each in readers]
        return {
            "tensor_source": np.array([storages[each].source for each in made], dtype=np.int32),
            "tensor_bytes": size,
            "fixed_tensor_bytes": _fixed(size, grown),
            "tensor_partial": np.array([self.partial[each] for each in made], dtype=np.bool_),
            "use_tensor": np.repeat(np.arange(len(made), dtype=np.int32), lengths),
            "use_op": np.array([op for each in readers for op in each], dtype=np.int32),
        }


def _fixed(whole: Floats, grown: Floats) -> Floats:
    """Where the line through both sizes starts, between nothing and the quantity itself."""
    slope = (grown - whole) / (GROWTH - 1)
    return np.minimum(np.maximum(0.0, whole - slope), whole)


def _column(kernels: list[TapeKernel], read: Callable[[TapeKernel], float]) -> Floats:
    return np.array([read(kernel) for kernel in kernels], dtype=np.float64)


_LINES: dict[str, Callable[[TapeKernel], float]] = {
    "flops": lambda kernel: kernel.flops,
    "bytes_read": lambda kernel: kernel.bytes_read,
    "bytes_written": lambda kernel: kernel.bytes_written,
    "product_rows": lambda kernel: kernel.product.rows,
    "product_columns": lambda kernel: kernel.product.columns,
    "product_depth": lambda kernel: kernel.product.depth,
    "product_count": lambda kernel: kernel.product.count,
}
