"""Rewrites an expansion: ops are added, copied and resized, and readers are given other tensors.

A pass takes a `Rewrite` of what was there before, says what changes, and gets the new expansion.
Numbers of ops and tensors stay valid until then; new ones are numbered after the old.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.array import places_in
from meshwright.graph.column import OP_CODES, OP_SIZES, OP_STEEP, OP_TEXTS
from meshwright.graph.graph import Floats, Graph, Ints, Split
from meshwright.graph.ladder import change_times, list_times
from meshwright.graph.stack.stack import ProductCut, Role
from meshwright.program.expand.expansion import Axis, Expansion, Owned
from meshwright.program.program import Kind


class Rewrite:
    """What an expansion becomes."""

    def __init__(self, before: Expansion) -> None:
        self.before, self.graph = before, before.graph
        count = self.graph.num_ops
        self.rows = list(range(count))
        """By op: the old op whose columns it has."""
        self.place = [float(op) for op in range(count)]
        """By op: where it stands; the new order is by these."""
        self.changed: list[dict[str, Any]] = [{} for _ in range(count)]
        """By op: columns in which it differs from that row, those of `Expansion` included."""
        columns: dict[str, npt.NDArray[Any]] = {
            "source": self.graph.tensor_source,
            "bytes": self.graph.tensor_bytes,
            "fixed_bytes": self.graph.fixed_tensor_bytes,
            "is_partial": self.graph.tensor_partial,
            "origin": before.tensor_origin,
            "held": before.held,
            "rows": before.rows,
            "row": np.arange(self.graph.num_tensors),
        }
        values = zip(*(each.tolist() for each in columns.values()), strict=True)
        self.tensors: list[dict[str, Any]] = [
            dict(zip(columns, each, strict=True)) for each in values
        ]
        self.reads: list[list[int]] = [
            each.tolist() for each in map(self.graph.inputs.__getitem__, range(count))
        ]
        """By op: the tensors that it reads."""
        self.bundles = list(before.bundles)
        self.times = name_times(self.graph)
        """The columns of measured times, by names that `changed` has them under, too."""
        self._names: Counter[str] = Counter()

    @property
    def num_ops(self) -> int:
        """How many there are by now."""
        return len(self.rows)

    def copy_op(self, op: int, place: float, suffix: str, **changed: Any) -> int:
        """Run an op once more, reading the same; it makes nothing until tensors are added."""
        self.rows.append(self.rows[op])
        self.place.append(place)
        name = f"{self.graph.op_names[self.rows[op]]}.{suffix}"
        self.changed.append({**self.changed[op], "op_names": name, **changed})
        self.reads.append(list(self.reads[op]))
        return self.num_ops - 1

    def add_collective(
        self,
        kind: Kind,
        axis: Axis,
        op: int,
        place: float,
        reads: Iterable[int] = (),
        name: str | None = None,
        **changed: Any,
    ) -> int:
        """A collective in the part and phase of an op, by the name of what it moves there, or by
        another one; or an op of its sort on one device.

        It costs no time of the device and makes nothing until told.
        """
        nothing: dict[str, Any] = dict.fromkeys((*OP_SIZES, *OP_STEEP), 0.0)
        nothing |= dict.fromkeys(self.times, 0.0)
        text = Kind(kind).name.lower()
        self.rows.append(self.rows[op])
        self.place.append(place)
        self.changed.append(
            {
                **nothing,
                "op_names": name or f"{self.graph.op_names[self.rows[op]]}.{text}",
                "kind": text,
                "group": -1,
                "partner": -1,
                "mixes": False,
                "split": int(Split.BATCH),
                "phase": int(self.graph.phase[self.rows[op]]),
                "origin": -1,
                "collective": int(kind),
                "axis": int(axis),
                "role": int(Role.WHOLE),
                "cut": int(ProductCut.NONE),
                "bundle": -1,
                "hop": -1,
                **changed,
            }
        )
        self.reads.append(list(reads))
        return self.num_ops - 1

    def number_name(self, name: str) -> str:
        """A name with how often it was asked for before, which none has the first time."""
        number = self._names[name]
        self._names[name] += 1
        return f"{name}.{number}" if number else name

    def add_tensor(
        self,
        source: int,
        size: float,
        fixed: float,
        *,
        held: Owned = Owned.WHOLE,
        rows: bool = False,
    ) -> int:
        """A tensor that an op makes, of none that was there before."""
        self.tensors.append(
            {
                "source": source,
                "bytes": size,
                "fixed_bytes": fixed,
                "is_partial": False,
                "origin": -1,
                "held": int(held),
                "rows": rows,
                "row": -1,
            }
        )
        return len(self.tensors) - 1

    def add_order(
        self, op: int, inputs: Iterable[int], part_of_op: Sequence[int] | Ints
    ) -> list[int]:
        """A tensor without bytes, by which something may wait for the gradient that an op reads
        among these inputs, from its own part; none where it reads none."""
        phase = self.graph.phase
        for each in inputs:
            source = int(self.graph.tensor_source[each])
            if part_of_op[source] == part_of_op[op] and phase[source] == phase[op]:
                return [self.add_tensor(source, 0.0, 0.0)]
        return []

    def like(self, tensor: int, source: int, **changed: Any) -> int:
        """A tensor as another, made by another op."""
        self.tensors.append({**self.tensors[tensor], "source": source, **changed})
        return len(self.tensors) - 1

    def replace_read(self, op: int, old: int, new: int) -> None:
        """Let an op read another tensor in place of one."""
        self.reads[op] = [new if each == old else each for each in self.reads[op]]

    def resize(self, op: int, **columns: Any) -> None:
        """Give an op other sizes, or other values of any column."""
        self.changed[op].update(columns)

    def value(self, op: int, column: str) -> Any:
        """What an op has in a column of sizes, or of seconds, by now."""
        if column in self.changed[op]:
            return self.changed[op][column]
        known = self.times[column] if column in self.times else getattr(self.graph, column)
        return known[self.rows[op]]

    def done(self) -> Expansion:
        """The new expansion, its ops in the order of their places."""
        order = sorted(range(self.num_ops), key=lambda op: (self.place[op], op))
        ops = _NewOps.of([self.rows[op] for op in order], [self.changed[op] for op in order])
        number = places_in(order, self.num_ops, np.int32)
        by_source = sorted(
            range(len(self.tensors)), key=lambda t: (number[self.tensors[t]["source"]], t)
        )
        uses = [
            (place, int(number[op]))
            for op, reads in enumerate(self.reads)
            for place in dict.fromkeys(reads)
        ]
        place_of = {tensor: place for place, tensor in enumerate(by_source)}
        pairs = sorted((place_of[tensor], op) for tensor, op in uses)
        graph = self._graph(ops, number, by_source, pairs)
        before = self.before
        return Expansion(
            graph=graph,
            part_of_op=ops.column("part_of_op", before.part_of_op),
            priority=self._priorities(ops),
            origin=ops.column("origin", before.origin),
            collective=ops.column("collective", before.collective),
            axis=ops.column("axis", before.axis),
            tensor_origin=np.array([self.tensors[t]["origin"] for t in by_source], dtype=np.int32),
            held=np.array([self.tensors[t]["held"] for t in by_source], dtype=np.int8),
            rows=np.array([self.tensors[t]["rows"] for t in by_source], dtype=np.bool_),
            role=ops.column("role", before.role),
            cut=ops.column("cut", before.cut),
            bundles=tuple(self.bundles),
            bundle=ops.column("bundle", before.bundle),
            hop=ops.column("hop", before.hop),
        )

    def _priorities(self, ops: "_NewOps") -> Floats:
        """Of the op that each was made from; by place where the plan leaves it to the graph."""
        before = self.before.priority
        if np.array_equal(before, -np.arange(len(before), dtype=np.float64)):
            return -np.arange(len(ops.rows), dtype=np.float64)
        given: Floats = ops.column("priority", before)
        return given

    def _graph(
        self, ops: "_NewOps", number: Any, by_source: list[int], pairs: list[tuple[int, int]]
    ) -> Graph:
        graph = self.graph
        columns: dict[str, Any] = {name: ops.texts(name, getattr(graph, name)) for name in OP_TEXTS}
        for name in (*OP_CODES, *OP_SIZES):
            columns[name] = ops.column(name, getattr(graph, name))
        partner = columns["partner"]
        partner[partner >= 0] = number[partner[partner >= 0]]
        tensors = [self.tensors[t] for t in by_source]
        return Graph(
            name=graph.name,
            batch=graph.batch,
            **columns,
            **self._times(ops),
            mixes=ops.column("mixes", graph.mixes),
            superlinear=self._superlinear(ops, tensors),
            tensor_source=np.array([number[each["source"]] for each in tensors], dtype=np.int32),
            tensor_bytes=np.array([each["bytes"] for each in tensors], dtype=np.float64),
            fixed_tensor_bytes=np.array([each["fixed_bytes"] for each in tensors], np.float64),
            tensor_partial=np.array([each["is_partial"] for each in tensors], dtype=np.bool_),
            use_tensor=np.array([tensor for tensor, _ in pairs], dtype=np.int32),
            use_op=np.array([op for _, op in pairs], dtype=np.int32),
        )

    def _times(self, ops: "_NewOps") -> Any:
        """Measured times hold for whole ops; whoever resizes one says what it takes now."""
        names = iter(self.times)
        return change_times(
            self.graph.seconds,
            self.graph.ladders,
            lambda each: ops.column(next(names), each),
        )

    def _superlinear(
        self, ops: "_NewOps", tensors: Iterable[Mapping[str, Any]]
    ) -> dict[str, Floats]:
        made: dict[str, Floats] = {}
        for name, old in self.graph.superlinear.items():
            if name in OP_STEEP:
                made[name] = ops.column(name, old)
            else:
                made[name] = np.array(
                    [old[each["row"]] if each["row"] >= 0 else 0.0 for each in tensors]
                )
        return made


class _NewOps(NamedTuple):
    """The ops of the new expansion, in their order."""

    rows: list[int]
    """By op: the old op whose columns it has."""
    changes: dict[str, tuple[list[int], list[Any]]]
    """By column: the ops that differ from that row, and what they have."""

    @staticmethod
    def of(rows: list[int], changed: Iterable[Mapping[str, Any]]) -> "_NewOps":
        """By op its row, and the columns in which it differs from that."""
        changes: dict[str, tuple[list[int], list[Any]]] = {}
        for op, columns in enumerate(changed):
            for name, value in columns.items():
                ops, values = changes.setdefault(name, ([], []))
                ops.append(op)
                values.append(value)
        return _NewOps(rows, changes)

    def column(self, name: str, old: Any) -> Any:
        """A column of the new ops."""
        new = old[self.rows]
        if name in self.changes:
            ops, values = self.changes[name]
            new[ops] = values
        return new

    def texts(self, name: str, old: Sequence[str]) -> tuple[str, ...]:
        """A column of texts."""
        new = [old[row] for row in self.rows]
        for op, value in zip(*self.changes.get(name, ((), ())), strict=True):
            new[op] = value
        return tuple(new)


def name_times(graph: Graph) -> dict[str, Floats]:
    """The arrays of measured times, in the order that `change_times` takes them in."""
    times = list_times(graph.seconds, graph.ladders)
    return {f"seconds {number}": each for number, each in enumerate(times)}
