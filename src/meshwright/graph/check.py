"""Decides whether columns are a legal graph, and names the op or tensor that breaks a rule."""

from collections.abc import Iterator

import numpy as np

from meshwright.array import Floats
from meshwright.errors import InputError, quoted
from meshwright.files import MAX_NAME
from meshwright.graph.column import (
    OP_CODES,
    OP_LINES,
    OP_SIZES,
    OP_STEEP,
    OP_TEXTS,
    STEEP_POWERS,
    TENSOR_SIZES,
    TENSOR_STEEP,
    Columns,
    Phase,
    Split,
)
from meshwright.units import MOST, MOST_SECONDS, broken_rule

LEAST_BATCH, MOST_BATCH = 1e-6, 1e12
"""Samples of a step: a batch of 1 may be a profile that counts none, and be scaled."""
_BATCHES = f"from {LEAST_BATCH:g} to {MOST_BATCH:g}"


def check_columns(columns: Columns) -> None:
    """Refuse columns of unequal length, bad numbers, references to nothing and a wrong order."""
    _check_texts(columns)
    _check_lengths(columns)
    _check_numbers(columns)
    _check_references(columns)
    _check_parts(columns)


def _check_texts(columns: Columns) -> None:
    for texts in ((columns["name"],), columns["seconds"], *(columns[name] for name in OP_TEXTS)):
        longest = max(texts, key=len, default="")
        if len(longest) > MAX_NAME:
            raise InputError(f"name {quoted(longest)}: must have at most {MAX_NAME:,} characters")


def _check_lengths(columns: Columns) -> None:
    where = f"graph {columns['name']}"
    num_ops, num_tensors = len(columns["op_names"]), len(columns["tensor_source"])
    steep = columns["superlinear"]
    unknown = [name for name in steep if name not in (*OP_STEEP, *TENSOR_STEEP)]
    if unknown:
        known = ", ".join((*OP_STEEP, *TENSOR_STEEP))
        raise InputError(f"{where}: superlinear must be of {known}, got {quoted(unknown[0])}")
    of_ops = {name: columns[name] for name in (*OP_TEXTS, *OP_CODES, *OP_SIZES, "mixes")}
    of_ops |= {f"seconds of {quoted(kind)}": each for kind, each in columns["seconds"].items()}
    of_ops |= {f"ladder of {quoted(kind)}": each for kind, _, each in _rungs(columns)}
    of_ops |= {name: each for name, each in steep.items() if name in OP_STEEP}
    of_tensors = {name: columns[name] for name in (*TENSOR_SIZES, "tensor_partial")}
    of_tensors |= {name: each for name, each in steep.items() if name in TENSOR_STEEP}
    for own, what, count in ((of_ops, "an op", num_ops), (of_tensors, "a tensor", num_tensors)):
        for name, each in own.items():
            if len(each) != count:
                raise InputError(
                    f"{where}: {name} must have one entry {what} ({count}), got {len(each):,}"
                )
    if len(columns["use_op"]) != len(columns["use_tensor"]):
        raise InputError(f"{where}: use_op and use_tensor must be equally long")
    if len(set(columns["op_names"])) != num_ops:
        seen: set[str] = set()
        twice = next(name for name in columns["op_names"] if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"{where}: op names must be unique, {quoted(twice)} stands twice")


def _check_numbers(columns: Columns) -> None:
    if not LEAST_BATCH <= columns["batch"] <= MOST_BATCH:
        rule = "positive" if not 0 < columns["batch"] < np.inf else _BATCHES
        raise InputError(f"graph {columns['name']}: batch must be {rule}, got {columns['batch']}")
    column = {**columns, **columns["superlinear"]}
    for name in (*OP_SIZES, *TENSOR_SIZES, *columns["superlinear"]):
        array = column[name]
        bad = np.flatnonzero(~((array >= 0) & (array <= _limit(MOST))))
        if len(bad):
            value = array[bad[0]]
            owner = _owner(columns, name, bad[0])
            raise InputError(f"{owner}: {name} {broken_rule(value)}, got {value}")
        if array.sum() > _limit(MOST):  # merged ops have sums
            owner = _owner(columns, name, int(array.argmax()))
            raise InputError(
                f"{owner}: {name} of all must be at most {MOST:g} together, got {array.sum():g}, "
                f"most of it here"
            )
    _check_rungs(columns)
    for kind, array in columns["seconds"].items():
        what = f"seconds on {quoted(kind)} must"
        bad = np.flatnonzero(array < 0)  # NaN and infinity have a meaning here
        if len(bad):
            owner = f"op {quoted(columns['op_names'][bad[0]])}"
            raise InputError(f"{owner}: {what} not be negative, got {array[bad[0]]}")
        known = np.where(np.isfinite(array), array, 0.0)
        largest = known.max(initial=0.0)
        if largest > MOST_SECONDS or known.sum() > _limit(MOST_SECONDS):  # a sum may overflow
            owner = f"op {quoted(columns['op_names'][int(known.argmax())])}"
            raise InputError(
                f"{owner}: {what} be at most {MOST_SECONDS:g}, of all ops together, got {largest:g}"
            )


def _rungs(columns: Columns) -> Iterator[tuple[str, float, Floats]]:
    for kind, ladder in columns["ladders"].items():
        for samples, each in ladder.items():
            yield kind, samples, each


def _check_rungs(columns: Columns) -> None:
    """Rungs are of types that have times at the batch, at other numbers of samples, and finite."""
    where = f"graph {columns['name']}"
    for kind, samples, array in _rungs(columns):
        what = f"ladder of {quoted(kind)}"
        if kind not in columns["seconds"]:
            raise InputError(f"{where}: {what} must be of a type of device that seconds has")
        if not LEAST_BATCH <= samples <= MOST_BATCH or samples == columns["batch"]:
            raise InputError(
                f"{where}: {what} must be at samples {_BATCHES} other than the batch, got {samples}"
            )
        bad = np.flatnonzero((array < 0) | (array > MOST_SECONDS))
        if len(bad):
            raise InputError(
                f"op {quoted(columns['op_names'][bad[0]])}: {what} must be from 0 to "
                f"{MOST_SECONDS:g} seconds, got {array[bad[0]]} at {samples:,g} samples"
            )


def _limit(most: float) -> float:
    return most * (1 + _ROUNDING)  # sums in another order differ in the last bits


def _check_parts(columns: Columns) -> None:
    """What does not grow, and what grows faster than the batch, are parts of the whole.

    A fixed part above the whole would make sizes negative at a larger batch.
    """
    for name in (*OP_LINES, "tensor_bytes"):
        whole, fixed = columns[name], columns[f"fixed_{name}"]
        bad = np.flatnonzero(fixed > whole)
        if len(bad):
            raise InputError(
                f"{_owner(columns, name, bad[0])}: fixed_{name} must not exceed {name}, got "
                f"{fixed[bad[0]]} > {whole[bad[0]]}"
            )
        names = [f"{power}_{name}" for power in STEEP_POWERS]
        steep = [columns["superlinear"][each] for each in names if each in columns["superlinear"]]
        if steep:
            _check_steep(columns, name, fixed, np.sum(steep, axis=0))
    bad = np.flatnonzero(columns["mixes"] & (columns["split"] != Split.NONE))
    if len(bad):
        raise InputError(
            f"op {quoted(columns['op_names'][bad[0]])}: mixes samples and needs all of them, so "
            f"its split must be none, got {Split(columns['split'][bad[0]]).name.lower()}"
        )


def _check_steep(columns: Columns, name: str, fixed: Floats, steep: Floats) -> None:
    """Parts add up to no more than the whole, and only ops that mix samples have steep ones."""
    whole = columns[name]
    bad = np.flatnonzero(fixed + steep > whole * (1 + _ROUNDING))
    if len(bad):
        raise InputError(
            f"{_owner(columns, name, bad[0])}: the fixed, square and cube parts of {name} must not "
            f"exceed it, got {(fixed + steep)[bad[0]]} > {whole[bad[0]]}"
        )
    ops = np.flatnonzero(steep > 0)
    if name == "tensor_bytes":
        uses = steep[columns["use_tensor"]] > 0
        ops = np.concatenate((columns["tensor_source"][ops], columns["use_op"][uses]))
    bad = ops[~columns["mixes"][ops]]
    if len(bad):
        raise InputError(
            f"op {quoted(columns['op_names'][bad[0]])}: must be marked as one that mixes samples, "
            f"because its {name} grows faster than the batch"
        )


_ROUNDING = 1e-9
"""Relative. Parts that were scaled apart add up to the whole but for the last bits."""


def _owner(columns: Columns, name: str, place: int) -> str:
    """The op, or the tensor and its op, at a place of a column."""
    names = columns["op_names"]
    if not name.endswith("tensor_bytes"):
        return f"op {quoted(names[place])}"
    source = columns["tensor_source"][place]
    return f"tensor {place} of op {quoted(names[source] if 0 <= source < len(names) else '?')}"


def _check_references(columns: Columns) -> None:
    where = f"graph {columns['name']}"
    num_ops, num_tensors = len(columns["op_names"]), len(columns["tensor_source"])
    ranges: tuple[tuple[str, int, int], ...] = (
        ("phase", 0, len(Phase)),
        ("split", 0, len(Split)),
        ("group", -1, 2**31 - 1),
        ("partner", -1, num_ops),
        ("tensor_source", 0, num_ops),
        ("use_tensor", 0, num_tensors),
        ("use_op", 0, num_ops),
    )
    for name, low, high in ranges:
        array = columns[name]
        bad = np.flatnonzero((array < low) | (array >= high))
        if len(bad):
            raise InputError(
                f"{where}: {name}[{bad[0]}] must be from {low} to {high - 1}, got {array[bad[0]]}"
            )
    if np.any(np.diff(columns["use_tensor"]) < 0):
        raise InputError(f"{where}: use_tensor must be sorted")
    source, target = columns["tensor_source"][columns["use_tensor"]], columns["use_op"]
    bad = np.flatnonzero(source >= target)
    if len(bad):
        names = columns["op_names"]
        first, second = names[source[bad[0]]], names[target[bad[0]]]
        raise InputError(
            f"{where}: ops must stand in a topological order, but {quoted(second)} reads a tensor "
            f"of {quoted(first)} and stands before it"
        )
