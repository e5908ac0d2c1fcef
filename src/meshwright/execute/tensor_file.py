"""One file of tensors in the format of safetensors, which can hold numbers and nothing else.

Files are written here, tensor by tensor, because the library would need a copy of all of them in
the host's memory and gives no digest; they are read by the library, which checks what it reads.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from meshwright.errors import InputError, quoted
from meshwright.execute.manifest import SavedFile, SavedPiece, SavedTensor
from meshwright.program.piece import whole_box

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls torch's types."""
_RESERVED = "__metadata__"
"""The one key of a file's header that is no tensor's."""
_ALIGNMENT = 8
_CHUNK_BYTES = 16 << 20


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Refuse a type or a name that the format does not have."""
    if tensor.dtype not in _TYPES:
        raise InputError(f"tensor {quoted(name)}: no checkpoint can hold its type {tensor.dtype}")
    if name == _RESERVED:
        raise InputError(f"tensor {quoted(name)}: no checkpoint can hold a tensor of this name")


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    tick: Callable[[], None],
    *,
    load: Callable[[str], torch.Tensor] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> SavedFile:
    """Write a new file of tensors, which is on the disk when this returns.

    `tick` is called now and then while much is written. The digest is computed beside the writing.
    `load`: the tensors have shapes and types alone, and this gives one with its values.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as stream, ThreadPoolExecutor(1) as beside:
        for chunk in _file_chunks(tensors, load or tensors.__getitem__, metadata):
            hashed = beside.submit(digest.update, chunk)
            stream.write(chunk)
            hashed.result()
            size += len(chunk)
            tick()
        stream.flush()
        os.fsync(stream.fileno())
    return SavedFile(bytes=size, sha256=digest.hexdigest())


def _file_chunks(
    tensors: Mapping[str, torch.Tensor],
    load: Callable[[str], torch.Tensor],
    metadata: Mapping[str, str] | None,
) -> Iterator[memoryview | bytes]:
    header: dict[str, Any] = {_RESERVED: dict(metadata)} if metadata else {}
    end = 0
    # Tensors must start at a multiple of the size of their numbers.
    tensors = dict(sorted(tensors.items(), key=lambda each: -each[1].element_size()))
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for name in tensors:
        data = _to_bytes(load(name)).numpy().data
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


def _to_bytes(tensor: torch.Tensor) -> torch.Tensor:
    row = tensor.detach().cpu().contiguous()
    return row.as_strided((row.numel(),), (1,)).view(torch.uint8)


def find_type(name: str) -> torch.dtype:
    """The type that manifests call so."""
    for dtype in _TYPES:
        if str(dtype) == f"torch.{name}":
            return dtype
    raise InputError(f"type {quoted(name)}: no file of tensors has it")


def read_headers(path: Path) -> dict[str, SavedTensor]:
    """The tensors of a file, by name; their numbers are not read."""
    found = {}
    names = {code: str(dtype).removeprefix("torch.") for dtype, code in _TYPES.items()}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                each = file.get_slice(name)
                code = str(each.get_dtype())
                if code not in names:
                    raise InputError(f"{quoted(path.name)}: {quoted(name)} is of type {code}")
                shape = list(each.get_shape())
                pieces = [SavedPiece.of(whole_box(shape), path.name, name)]
                found[name] = SavedTensor(dtype=names[code], shape=shape, pieces=pieces)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{quoted(path.name)}: cannot be read ({error})") from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """A part of a tensor in a file."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    """The shape that the tensor must have in the file."""
    where: tuple[slice, ...]
    """The range of indices that is read, for each dimension."""


def read_extracts(
    path: Path, extracts: Sequence[Extract], tick: Callable[[], None]
) -> Iterator[torch.Tensor]:
    """Parts of tensors, one after the other; only their bytes are read."""
    try:
        with safe_open(path, framework="pt") as file:
            for each in extracts:
                yield _read_extract(file, path, each)
                tick()
    except (OSError, SafetensorError) as error:
        raise InputError(f"{quoted(path.name)}: cannot be read ({error})") from None


def _read_extract(file: Any, path: Path, extract: Extract) -> torch.Tensor:
    found = file.get_slice(extract.key)
    shape, code = list(found.get_shape()), str(found.get_dtype())
    if (shape, code) != (list(extract.shape), _TYPES[extract.dtype]):
        types = {name: dtype for dtype, name in _TYPES.items()}
        raise InputError(
            f"{quoted(path.name)}: {quoted(extract.key)} must be {extract.dtype} of shape "
            f"{list(extract.shape)}, is {types.get(code, code)} of {shape}"
        )
    is_all = all(
        (part.start, part.stop) == (0, size)
        for part, size in zip(extract.where, shape, strict=True)
    )
    part: torch.Tensor = file.get_tensor(extract.key) if is_all else found[extract.where]
    return part
