"""Weights in folders of the Hub's layout: which files have which tensors, and what a model needs.

A folder has `model.safetensors`, or several files and `model.safetensors.index.json`, which names
the file of each tensor. Tensors have the names of the model's `state_dict`; of tied ones one name
suffices. Only headers are read here: a rank reads the slices that it holds (`holding`). Nothing in
such a folder is executed or unpickled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import nn

from meshwright.capture.master import divide_by_size
from meshwright.errors import InputError, errors_in, quoted, some
from meshwright.execute.holding import fill_parts, name_type
from meshwright.execute.manifest import SavedTensor
from meshwright.execute.piece import TensorHolding
from meshwright.execute.tensor_file import find_type, read_headers, write_tensors
from meshwright.files import decode_json, write_bytes

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
FILE_BYTES = 5_000_000_000
"""The size at which a new file is begun: for years the default of the Hub's own tools."""


class _Index(msgspec.Struct):
    """The entries of an index file that are used."""

    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFolder:
    """The tensors of a folder."""

    folder: Path
    tensors: Mapping[str, SavedTensor]
    """By the name of the model's `state_dict`."""

    def real(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The whole tensor of that name, converted to the type that the model has it in."""
        values = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.fill({name: values}, {})
        return values

    def fill(
        self, state: Mapping[str, torch.Tensor], holdings: Mapping[str, TensorHolding]
    ) -> None:
        """Fill shards in place from the tensors of the same names; only the bytes of the shards are
        read."""
        with errors_in(f"weights {self.folder}"):
            fill_parts(self.folder, self.tensors, state, holdings, lambda: None)


def open_weights(folder: Path) -> WeightFolder:
    """The weights of a folder."""
    found: dict[str, SavedTensor] = {}
    for file, expected in _list_files(folder).items():
        with errors_in(f"weights {folder}"):
            headers = read_headers(folder / file)
        missing = [quoted(name) for name in expected or () if name not in headers]
        if missing:
            raise InputError(
                f"weights {folder}: {quoted(file)} must have what {INDEX_FILE} says, lacks "
                f"{some(missing)}"
            )
        for name in headers if expected is None else expected:
            found[name] = headers[name]
    return WeightFolder(folder=folder, tensors=found)


def _list_files(folder: Path) -> dict[str, list[str] | None]:
    """The files of a folder, and the names that an index has for each; None: all that are there."""
    if not folder.is_dir():
        raise InputError(f"weights {folder}: must be a folder")
    index = folder / INDEX_FILE
    if (folder / SINGLE_FILE).exists():
        return {SINGLE_FILE: None}
    if not index.exists():
        raise InputError(f"weights {folder}: must have {SINGLE_FILE} or {INDEX_FILE}")
    files: dict[str, list[str] | None] = {}
    for name, file in decode_json(index.read_bytes(), _Index, str(index)).weight_map.items():
        if Path(file).name != file:
            raise InputError(
                f"weights {folder}: {INDEX_FILE}: a file must be in the folder, got {quoted(file)}"
            )
        names = files.setdefault(file, [])
        assert names is not None
        names.append(name)
    return files


def persistent_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The tensors of a model's `state_dict`: by the first name of each tensor, all its names."""
    known: dict[int, str] = {}
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        known.setdefault(id(each), name)
    found: dict[str, tuple[str, ...]] = {}
    for name, each in model.state_dict(keep_vars=True).items():
        if isinstance(each, torch.Tensor):
            first = known.get(id(each), name)
            found[first] = (*found.get(first, ()), name)
    return found


def match_weights(weights: WeightFolder, model: nn.Module) -> WeightFolder:
    """The weights by the first names of a model's tensors; refused unless they are the model's."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    folder, aliases = weights.folder, persistent_names(model)
    extra = weights.tensors.keys() - {name for names in aliases.values() for name in names}
    if extra:
        first = min(extra)
        saved = weights.tensors[first]
        raise InputError(
            f"weights {folder}: {quoted(saved.pieces[0].file)} must have tensors of "
            f"{type(model).__name__} only, has {quoted(first)} of shape {saved.shape}"
            + (f" and {len(extra) - 1} more" if len(extra) > 1 else "")
        )
    found = {}
    for name, names in aliases.items():
        there = [each for each in names if each in weights.tensors]
        shape = list(held[name].shape)
        if not there:
            raise InputError(
                f"weights {folder}: must have every tensor of {type(model).__name__}, lacks "
                f"{quoted(name)} of shape {shape}"
            )
        saved = found[name] = weights.tensors[there[0]]
        if saved.shape != shape:
            raise InputError(
                f"weights {folder}: {quoted(saved.pieces[0].file)}: {quoted(there[0])} must have "
                f"the model's shape {shape}, got {saved.shape}"
            )
        if find_type(saved.dtype).is_floating_point != held[name].dtype.is_floating_point:
            raise InputError(
                f"weights {folder}: {quoted(saved.pieces[0].file)}: {quoted(there[0])} must have "
                f"the model's type {name_type(held[name].dtype)}, got {saved.dtype}"
            )
    return WeightFolder(folder=folder, tensors=found)


def write_weights(
    folder: Path,
    heads: Mapping[str, torch.Tensor],
    load: Callable[[str], torch.Tensor],
    file_bytes: int = FILE_BYTES,
) -> list[Path]:
    """Write tensors in the Hub's layout, one after the other; returns the files.

    `heads` has the shapes and types of all; `load` gives the values of a tensor when it is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = sorted(each.name for each in folder.glob("*.safetensors*"))
    if there:
        raise InputError(f"{folder}: must have no weights yet, has {quoted(there[0])}")
    groups = list(divide_by_size(heads, lambda name: heads[name].nbytes, file_bytes)) or [[]]
    files: dict[str, str] = {}
    written = []
    for number, names in enumerate(groups, start=1):
        single = len(groups) == 1
        file = SINGLE_FILE if single else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        own = {name: heads[name] for name in names}
        write_tensors(folder / file, own, lambda: None, load=load, metadata={"format": "pt"})
        files |= dict.fromkeys(names, file)
        written.append(folder / file)
    if len(groups) > 1:
        total = sum(each.nbytes for each in heads.values())
        index = {"metadata": {"total_size": total}, "weight_map": files}
        write_bytes(folder / INDEX_FILE, msgspec.json.format(msgspec.json.encode(index), indent=2))
        written.append(folder / INDEX_FILE)
    return written
