"""Meshwright's own graph format: columns as JSON. Knows columns, not what makes a graph legal.

    {"format": "meshwright.graph", "version": 1, "name": "...", "batch": 32,
     "ops": {"names": [...], "kind": ..., "flops": ..., "seconds": {"h200": ...}, ...},
     "tensors": {"source": [...], "bytes": ..., "readers": [[3, 4], [5], ...], ...}}

A column is a list with one entry an op (or tensor), or one value when all entries are equal; one
at its default is left out. A text column with few distinct values is {"values": [...], "codes":
[...]}. In `seconds`, which needs what JSON's numbers lack, null is unknown and "inf" cannot run.
`ladders` has times at other numbers of samples, {"h200": {"16.0": [...], "8.0": [...]}}.
`superlinear`, of ops and of tensors, has parts that grow faster than the batch by name, as
{"square_flops": [...]}.
`readers` has, for each tensor, the numbers of the ops that read it.
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.errors import InputError, quoted
from meshwright.files import MAX_VALUES, Fields, Name, count_keys, decode_json, is_given, probe_json
from meshwright.graph import column as legal

FORMAT = "meshwright.graph"
VERSION = 1

Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
OptionalNumber = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Seconds = float | None | Literal["inf"]
_SecondsColumn: Any = Seconds | list[Seconds]


class Coded(msgspec.Struct, forbid_unknown_fields=True):
    """A text column as numbers into its distinct values."""

    values: list[Name]
    codes: list[Number]


Texts = Name | list[Name] | Coded
Sizes = float | list[float]
_SizesColumn: Any = Sizes


T = TypeVar("T", bound=msgspec.Struct)


_LINES = [each for name in legal.OP_LINES for each in (name, f"fixed_{name}")]
_REST = [name for name in legal.OP_SIZES if name not in _LINES]
OpColumns: Any = msgspec.defstruct(
    "OpColumns",
    [
        ("names", list[Name]),
        ("kind", Texts, "op"),
        ("module", Texts, ""),
        ("precision", Texts, "fp32"),
        ("phase", Texts, "forward"),
        ("split", Texts, "batch"),
        ("group", OptionalNumber | list[OptionalNumber], -1),
        ("partner", OptionalNumber | list[OptionalNumber], -1),
        *((name, Sizes, 0.0) for name in (*_LINES, *_REST)),
        ("seconds", dict[Name, _SecondsColumn], {}),
        ("ladders", dict[Name, dict[Name, _SecondsColumn]], {}),
        ("mixes", bool | list[bool], False),
        ("superlinear", dict[Name, Sizes], {}),
    ],
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
)
"""Columns over ops; the fields of `Graph` with the same names."""


class TensorColumns(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Columns over tensors; the fields of `Graph` that start with `tensor_`, and who reads each."""

    source: list[Number]
    bytes: Sizes = 0.0
    fixed_bytes: Sizes = 0.0
    partial: bool | list[bool] = False
    superlinear: dict[Name, Sizes] = {}
    readers: list[list[Number]]


class GraphDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a graph file holds."""

    format: str
    version: int
    name: Name
    batch: float
    ops: OpColumns
    tensors: TensorColumns


class _GraphHeader(msgspec.Struct):
    version: int


def encode_columns(columns: legal.Columns) -> bytes:
    """The columns as the text of a file."""
    ops = _struct(
        OpColumns,
        names=list(columns["op_names"]),
        **{name: _pack_texts(columns[name]) for name in ("kind", "module", "precision")},
        phase=_pack_texts([legal.Phase(code).name.lower() for code in columns["phase"].tolist()]),
        split=_pack_texts([legal.Split(code).name.lower() for code in columns["split"].tolist()]),
        seconds={kind: _pack_seconds(array) for kind, array in columns["seconds"].items()},
        ladders={
            kind: {repr(float(samples)): _pack_seconds(each) for samples, each in ladder.items()}
            for kind, ladder in columns["ladders"].items()
        },
        superlinear=_pack_steep(columns, legal.OP_STEEP),
        **{name: _pack(columns[name]) for name in ("group", "partner", "mixes", *legal.OP_SIZES)},
    )
    num_tensors = len(columns["tensor_source"])
    ends = np.cumsum(np.bincount(columns["use_tensor"], minlength=num_tensors))
    tensors = _struct(
        TensorColumns,
        source=columns["tensor_source"].tolist(),
        bytes=_pack(columns["tensor_bytes"]),
        fixed_bytes=_pack(columns["fixed_tensor_bytes"]),
        partial=_pack(columns["tensor_partial"]),
        superlinear=_pack_steep(columns, legal.TENSOR_STEEP),
        readers=[each.tolist() for each in np.split(columns["use_op"], ends[:-1])]
        if num_tensors
        else [],
    )
    document = GraphDocument(
        format=FORMAT,
        version=VERSION,
        name=columns["name"],
        batch=float(columns["batch"]),
        ops=ops,
        tensors=tensors,
    )
    try:
        return msgspec.json.encode(document) + b"\n"
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(f"graph {columns['name']!a}: not all text is Unicode ({error})") from None


def _struct(kind: type[T], /, **values: Any) -> T:
    """A struct without the values at their default, so that the encoder leaves them out.

    Compared as text: -0.0 is not the default 0.0.
    """
    defaults = {each.name: repr(each.default) for each in msgspec.structs.fields(kind)}
    kept = {
        name: value
        for name, value in values.items()
        if isinstance(value, list) or repr(value) != defaults[name]
    }
    return kind(**kept)


def decode_columns(data: bytes, where: str) -> legal.Columns:
    """The text of a file as columns."""
    version = probe_json(data, _GraphHeader, where).version
    if version != VERSION:
        raise InputError(
            f"{where}: {FORMAT} version must be {VERSION}, got {version}; "
            f"write the file again with this version of Meshwright"
        )
    document = Fields(data, GraphDocument, where)
    ops = Fields(document.raw("ops"), OpColumns, where, "ops.")
    tensors = Fields(document.raw("tensors"), TensorColumns, where, "tensors.")
    fields = {
        "name": document.read("name"),
        "batch": document.read("batch"),
        **_decode_ops(ops, where),
        **_decode_tensors(tensors, where),
    }
    fields["superlinear"] = {
        **_decode_superlinear(ops, legal.OP_STEEP, len(fields["op_names"])),
        **_decode_superlinear(tensors, legal.TENSOR_STEEP, len(fields["tensor_source"])),
    }
    return fields


def _decode_ops(ops: Fields, where: str) -> dict[str, Any]:
    names = tuple(ops.read("names"))
    num_ops = len(names)
    if not 0 < num_ops <= legal.MAX_OPS:
        raise InputError(
            f"{where}: a graph must have at least one op and at most {legal.MAX_OPS}, got "
            f"{num_ops or 'none'}"
        )

    def texts(name: str) -> tuple[str, ...]:
        return _unpack_texts(ops.read(name), num_ops, ops.label(name))

    def codes(name: str, kind: type[legal.Phase] | type[legal.Split]) -> npt.NDArray[np.int8]:
        return _unpack_names(ops.read(name), num_ops, kind, ops.label(name))

    return {
        "op_names": names,
        **{name: texts(name) for name in ("kind", "module", "precision")},
        "phase": codes("phase", legal.Phase),
        "split": codes("split", legal.Split),
        "group": _unpack(ops.read("group"), num_ops, np.int32),
        "partner": _unpack(ops.read("partner"), num_ops, np.int32),
        **{name: _unpack(ops.read(name), num_ops, np.float64) for name in legal.OP_SIZES},
        "seconds": _decode_seconds(ops, num_ops),
        "ladders": _decode_ladders(ops, num_ops),
        "mixes": _unpack(ops.read("mixes"), num_ops, np.bool_),
    }


def _decode_seconds(ops: Fields, num_ops: int) -> dict[str, Floats]:
    """The measured times by type of device, decoded one type at a time."""
    raw, where = ops.raw("seconds"), ops.label("seconds")
    if not is_given(raw):
        return {}
    legal.check_seconds(count_keys(raw), num_ops, where)
    columns: dict[str, Any] = probe_json(raw, dict[Name, msgspec.Raw], where)
    return {
        kind: _unpack_seconds(decode_json(column, _SecondsColumn, where), num_ops)
        for kind, column in columns.items()
    }


def _decode_ladders(ops: Fields, num_ops: int) -> dict[str, dict[float, Floats]]:
    """The measured times at other numbers of samples, decoded one rung at a time."""
    raw, where = ops.raw("ladders"), ops.label("ladders")
    if not is_given(raw):
        return {}
    legal.check_seconds(count_keys(raw), num_ops, where, "types of devices and samples")
    found: dict[str, dict[float, Floats]] = {}
    for kind, ladder in probe_json(raw, dict[Name, msgspec.Raw], where).items():
        columns: dict[str, Any] = probe_json(ladder, dict[Name, msgspec.Raw], where)
        rungs = {
            _samples(name, where): _unpack_seconds(
                decode_json(each, _SecondsColumn, where), num_ops
            )
            for name, each in columns.items()
        }
        if len(rungs) < len(columns):
            raise InputError(f"{where}: rungs of {quoted(kind)} must be at different samples")
        found[kind] = rungs
    return found


def _samples(name: str, where: str) -> float:
    try:
        return float(name)
    except ValueError:
        raise InputError(f"{where}: samples must be a number, got {quoted(name)}") from None


def _decode_superlinear(fields: Fields, known: Sequence[str], count: int) -> dict[str, Floats]:
    """The parts of quantities that grow faster than the batch, decoded one quantity at a time."""
    raw, where = fields.raw("superlinear"), fields.label("superlinear")
    if not is_given(raw):
        return {}
    if count_keys(raw) > len(known):
        raise InputError(f"{where}: must be of {', '.join(known)} only, got {count_keys(raw)} keys")
    columns: dict[str, Any] = probe_json(raw, dict[Name, msgspec.Raw], where)
    return {
        name: _unpack(decode_json(column, _SizesColumn, where), count, np.float64)
        for name, column in columns.items()
    }


def _decode_tensors(tensors: Fields, where: str) -> dict[str, Any]:
    source = np.array(tensors.read("source"), dtype=np.int32)
    num_tensors = len(source)
    readers = tensors.read("readers", max_values=2 * MAX_VALUES)
    if len(readers) != num_tensors:
        raise InputError(
            f"{where}: tensors.readers must have one entry a tensor ({num_tensors}), "
            f"got {len(readers):,}"
        )
    lengths = np.fromiter(map(len, readers), np.int64, num_tensors)
    uses = np.fromiter(chain.from_iterable(readers), np.int32, int(lengths.sum()))
    return {
        "tensor_source": source,
        "tensor_bytes": _unpack(tensors.read("bytes"), num_tensors, np.float64),
        "fixed_tensor_bytes": _unpack(tensors.read("fixed_bytes"), num_tensors, np.float64),
        "tensor_partial": _unpack(tensors.read("partial"), num_tensors, np.bool_),
        "use_tensor": np.repeat(np.arange(num_tensors, dtype=np.int32), lengths),
        "use_op": uses,
    }


def _is_constant(array: npt.NDArray[Any]) -> bool:
    """Whether all entries are equal bit for bit (0.0 and -0.0 are not, NaN and NaN are)."""
    return len(array) > 0 and array.tobytes() == array[:1].tobytes() * len(array)


def _pack(array: npt.NDArray[Any]) -> Any:
    return array[0].item() if _is_constant(array) else array.tolist()


def _unpack(value: object, length: int, dtype: Any) -> npt.NDArray[Any]:
    if isinstance(value, list):
        return np.array(value, dtype=dtype)
    return np.full(length, value, dtype=dtype)


def _pack_steep(columns: legal.Columns, names: Sequence[str]) -> dict[str, Any]:
    return {name: _pack(each) for name, each in columns["superlinear"].items() if name in names}


def _pack_seconds(array: Floats) -> Any:
    values = [None if math.isnan(x) else "inf" if x == math.inf else x for x in array.tolist()]
    return values[0] if _is_constant(array) else values


def _unpack_seconds(value: Seconds | list[Seconds], length: int) -> Floats:
    def number(each: Seconds) -> float:
        return math.nan if each is None else math.inf if each == "inf" else each

    if isinstance(value, list):
        return np.array([number(each) for each in value], dtype=np.float64)
    return np.full(length, number(value))


def _pack_texts(texts: Sequence[str]) -> Texts:
    values = list(dict.fromkeys(texts))
    if len(values) == 1:
        return values[0]
    if 2 * len(values) > len(texts):
        return list(texts)
    number = {text: code for code, text in enumerate(values)}
    return Coded(values, [number[text] for text in texts])


def _unpack_texts(texts: Texts, length: int, where: str) -> tuple[str, ...]:
    if isinstance(texts, str):
        return (texts,) * length
    if isinstance(texts, list):
        return tuple(texts)
    if texts.codes and max(texts.codes) >= len(texts.values):
        raise InputError(
            f"{where}: codes must be below the number of values ({len(texts.values)}), "
            f"got {max(texts.codes)}"
        )
    return tuple(map(texts.values.__getitem__, texts.codes))


def _unpack_names(
    texts: Texts, length: int, kind: type[legal.Phase] | type[legal.Split], where: str
) -> npt.NDArray[np.int8]:
    codes = {each.name.lower(): int(each) for each in kind}
    try:
        names = _unpack_texts(texts, length, where)
        return np.array([codes[name] for name in names], dtype=np.int8)
    except KeyError as error:
        raise InputError(
            f"{where}: must be one of {', '.join(codes)}, got {quoted(error.args[0])}"
        ) from None
