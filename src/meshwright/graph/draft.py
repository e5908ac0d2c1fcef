"""Gathers ops and tensors in any order and puts them into a topological order, as columns.

Below `Graph`, so that the readers of foreign files can use it; everyone else builds with
`meshwright.graph.build.GraphBuilder`.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, places_in
from meshwright.errors import InputError, quoted
from meshwright.graph.column import (
    MAX_OPS,
    OP_SIZES,
    OP_STEEP,
    TENSOR_STEEP,
    Columns,
    Phase,
    Split,
    check_seconds,
)


class ColumnBuilder:
    """Collects ops and tensors; `columns` sorts them. Checked are cycles and the number of ops."""

    def __init__(self, name: str, batch: float = 1) -> None:
        self.name = name
        self.batch = batch
        self._names: list[str] = []
        self._texts: dict[str, list[str]] = {"kind": [], "module": [], "precision": []}
        self._codes: dict[str, list[int]] = {"phase": [], "split": [], "group": [], "partner": []}
        self._sizes: dict[str, list[float]] = {name: [] for name in OP_SIZES}
        self._seconds: list[Mapping[str, float]] = []
        self._mixes: list[bool] = []
        self._tensors: list[tuple[int, float, float, bool, list[int]]] = []
        self._steep: dict[str, dict[int, float]] = {}
        """By part of a quantity that grows faster than the batch: its size by op, or tensor."""

    def add_op(
        self,
        name: str,
        *,
        kind: str = "op",
        phase: Phase = Phase.FORWARD,
        split: Split = Split.BATCH,
        group: int = -1,
        partner: int = -1,
        module: str = "",
        precision: str = "fp32",
        seconds: Mapping[str, float] | None = None,
        mixes: bool = False,
        **sizes: float,
    ) -> int:
        """Add an op and return its number.

        `sizes` are any of `OP_SIZES` and `OP_STEEP`, zero when absent.
        """
        if len(self._names) == MAX_OPS:
            raise InputError(f"graph {self.name}: must have at most {MAX_OPS:,} ops, has more")
        self._names.append(name)
        for column, text in (("kind", kind), ("module", module), ("precision", precision)):
            self._texts[column].append(text)
        codes = {"phase": phase, "split": split, "group": group, "partner": partner}
        for column, code in codes.items():
            self._codes[column].append(int(code))
        for column, values in self._sizes.items():
            values.append(sizes.pop(column, 0.0))
        self._keep_steep(OP_STEEP, len(self._names) - 1, sizes)
        self._seconds.append(seconds or {})
        self._mixes.append(mixes)
        return len(self._names) - 1

    def add_tensor(
        self,
        source: int,
        tensor_bytes: float,
        targets: Sequence[int] = (),
        *,
        fixed_bytes: float | None = None,
        partial: bool | None = None,
        **steep: float,
    ) -> int:
        """Add a tensor that `source` makes; unless said, its op's split says how it scales.

        `steep` are any of `TENSOR_STEEP`, zero when absent.
        """
        split = self._codes["split"][source]
        if fixed_bytes is None:
            fixed_bytes = 0.0 if split == Split.BATCH else tensor_bytes
        if partial is None:
            partial = split == Split.SUM
        self._tensors.append((source, tensor_bytes, fixed_bytes, partial, list(targets)))
        self._keep_steep(TENSOR_STEEP, len(self._tensors) - 1, steep)
        return len(self._tensors) - 1

    def _keep_steep(self, known: Sequence[str], number: int, sizes: Mapping[str, float]) -> None:
        for name, size in sizes.items():
            assert name in known, f"unknown size {name}"
            if size:
                self._steep.setdefault(name, {})[number] = size

    def add_use(self, tensor: int, op: int) -> None:
        """Let `op` read `tensor`."""
        self._tensors[tensor][4].append(op)

    def columns(self) -> Columns:
        """The columns, ops in the topological order nearest to the order they were added in."""
        source = np.array([t[0] for t in self._tensors], dtype=np.int32)
        targets = [sorted(set(t[4])) for t in self._tensors]
        lengths = np.array([len(each) for each in targets], dtype=np.int32)
        use_tensor = np.repeat(np.arange(len(targets), dtype=np.int32), lengths)
        use_op = np.array([op for each in targets for op in each], dtype=np.int32)
        order = topological_order(source[use_tensor], use_op, self._names, f"graph {self.name}")
        place = places_in(order, len(order), np.int32)

        # Tensors follow their source, so that memory is walked in order.
        by_source = np.argsort(place[source], kind="stable") if len(source) else source
        rank = places_in(by_source, len(by_source), np.int32)
        use_order = np.argsort(rank[use_tensor], kind="stable") if len(use_tensor) else use_tensor
        partner = np.array(self._codes["partner"], dtype=np.int32)[order]
        sizes = np.array([t[1:3] for t in self._tensors], dtype=np.float64).reshape(-1, 2)
        return {
            "name": self.name,
            "batch": self.batch,
            "op_names": tuple(self._names[i] for i in order),
            **{name: tuple(texts[i] for i in order) for name, texts in self._texts.items()},
            "phase": np.array(self._codes["phase"], dtype=np.int8)[order],
            "split": np.array(self._codes["split"], dtype=np.int8)[order],
            "group": np.array(self._codes["group"], dtype=np.int32)[order],
            "partner": np.where(partner >= 0, place[partner], -1).astype(np.int32),
            **{name: np.array(v, dtype=np.float64)[order] for name, v in self._sizes.items()},
            "seconds": self._seconds_columns(order),
            "mixes": np.array(self._mixes, dtype=np.bool_)[order],
            "superlinear": {
                name: _dense(by_number, order if name in OP_STEEP else by_source)
                for name, by_number in self._steep.items()
            },
            "tensor_source": place[source][by_source],
            "tensor_bytes": sizes[by_source, 0].copy(),
            "fixed_tensor_bytes": sizes[by_source, 1].copy(),
            "tensor_partial": np.array([t[3] for t in self._tensors], dtype=np.bool_)[by_source],
            "use_tensor": rank[use_tensor][use_order],
            "use_op": place[use_op][use_order],
        }

    def _seconds_columns(self, order: Ints) -> dict[str, Floats]:
        kinds = sorted({kind for each in self._seconds for kind in each})
        check_seconds(len(kinds), len(order), f"graph {self.name}")
        return {
            kind: np.array([self._seconds[i].get(kind, np.nan) for i in order], dtype=np.float64)
            for kind in kinds
        }


def _dense(by_number: Mapping[int, float], order: npt.NDArray[Any]) -> Floats:
    return np.array([by_number.get(number, 0.0) for number in order.tolist()], dtype=np.float64)


def topological_order(source: Ints, target: Ints, names: Sequence[str], where: str) -> Ints:
    """The topological order that keeps smaller numbers first; a cycle is named in the error."""
    num_ops = len(names)
    if np.all(source < target):
        return np.arange(num_ops, dtype=np.int32)
    following: list[list[int]] = [[] for _ in range(num_ops)]
    waiting = [0] * num_ops
    for first, second in zip(source.tolist(), target.tolist(), strict=True):
        following[first].append(second)
        waiting[second] += 1
    ready = [op for op in range(num_ops) if waiting[op] == 0]
    order = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for each in following[op]:
            waiting[each] -= 1
            if waiting[each] == 0:
                heapq.heappush(ready, each)
    if len(order) < num_ops:
        raise InputError(
            f"{where}: must have no cycle, found {_find_cycle(following, waiting, names)}"
        )
    return np.array(order, dtype=np.int32)


def _find_cycle(following: list[list[int]], waiting: list[int], names: Sequence[str]) -> str:
    """One cycle among the ops that never became ready, as text."""
    preceding: dict[int, int] = {}
    for op, each in enumerate(following):
        if waiting[op] > 0:
            for target in each:
                if waiting[target] > 0:
                    preceding[target] = op
    op = next(iter(preceding))
    seen: dict[int, int] = {}
    while op not in seen:  # every waiting op has a waiting predecessor, so the walk must close
        seen[op] = len(seen)
        op = preceding[op]
    cycle = [*reversed(list(seen)[seen[op] :])]
    shown = [quoted(names[each], 40) for each in cycle[:6]]
    more = f" -> ... ({len(cycle):,} ops)" if len(cycle) > 6 else ""
    return " -> ".join(shown) + (more or f" -> {shown[0]}")
