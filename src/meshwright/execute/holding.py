"""What ranks hold of the tensors of a checkpoint: who writes which piece, and how one is read.

Any piece can be read, whichever pieces were written, so that a checkpoint of one plan serves every
other. Writes and reads files, and knows neither processes nor folders of checkpoints.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from meshwright.errors import InputError, quoted, some
from meshwright.execute.manifest import (
    PIECE_VERSION,
    WHOLE_VERSION,
    Manifest,
    SavedFile,
    SavedPiece,
    SavedTensor,
    check_pieces,
    name_file,
)
from meshwright.execute.piece import TensorHolding, whole_holding
from meshwright.execute.tensor_file import Extract, find_type, read_extracts, write_tensors
from meshwright.program.piece import Box, find_overlaps

_PIECE = " @ "
"""Stands between the name of a tensor and what tells a piece of it from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBox:
    """A box of a tensor that a rank has."""

    name: str
    """The name of the tensor."""
    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    box: Box
    data: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """How many bytes the box takes in a file."""
        return self.data.numel() * self.data.element_size()


def _holding_of(
    name: str, tensor: torch.Tensor, holdings: Mapping[str, TensorHolding]
) -> TensorHolding:
    found = holdings.get(name) or whole_holding(tensor)
    assert tensor.numel() == found.size, f"{name}: the holding is of another tensor"
    return found


def name_parts(
    state: Mapping[str, torch.Tensor], holdings: Mapping[str, TensorHolding]
) -> dict[str, HeldBox]:
    """The boxes that a rank holds, by their names in a file; equal boxes of a tensor have equal
    names, and empty ones are left out."""
    found = {}
    for name, tensor in state.items():
        holding = _holding_of(name, tensor, holdings)
        for tile in holding.tiles:
            box = tile.box
            if not (box.size or holding.is_whole):
                continue
            key = name if holding.is_whole else name + _PIECE + repr((box.offset, box.shape))
            found[key] = HeldBox(name=name, shape=holding.shape, box=box, data=tile.view(tensor))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a rank has written, or why it has not."""

    tensors: dict[str, SavedTensor]
    files: dict[str, SavedFile]
    fault: str = ""


def choose_parts(held: Sequence[Mapping[str, int]], rank: int) -> list[str]:
    """The pieces that a rank writes, from the bytes of those that each rank holds, by name.

    The largest come first, and each goes to the rank that has the fewest bytes to write so far.
    """
    holders: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for holder, own_sizes in enumerate(held):
        for name, size in own_sizes.items():
            holders.setdefault(name, []).append(holder)
            sizes[name] = size
    load = [0] * len(held)
    own = []
    for name in list(sizes):  # whoever has all of a tensor saves the others from writing pieces
        whole, is_piece, _ = name.rpartition(_PIECE)
        if is_piece and whole in sizes:
            del sizes[name]
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        writer = min(holders[name], key=lambda each: (load[each], each))
        load[writer] += sizes[name]
        if writer == rank:
            own.append(name)
    return own


def write_parts(
    folder: Path, rank: int, parts: Mapping[str, HeldBox], tick: Callable[[], None]
) -> Written:
    """Write a rank's file, if it has tensors to write."""
    if not parts:
        return Written(tensors={}, files={})
    file = name_file(rank)
    try:
        saved = write_tensors(folder / file, {key: each.data for key, each in parts.items()}, tick)
    except OSError as error:
        return Written(tensors={}, files={}, fault=describe_os(error))
    except InputError as error:
        return Written(tensors={}, files={}, fault=str(error))
    entries: dict[str, SavedTensor] = {}
    for key, each in parts.items():
        made = SavedTensor(dtype=name_type(each.data.dtype), shape=list(each.shape), pieces=[])
        entries.setdefault(each.name, made).pieces.append(SavedPiece.of(each.box, file, key))
    return Written(tensors=entries, files={file: saved})


def join_parts(step: int, parts: Sequence[Written], weights: Sequence[str] = ()) -> Manifest:
    """The manifest of what all ranks have written; InputError where it is not all of a tensor."""
    found: dict[str, list[SavedTensor]] = {}
    for part in parts:
        for name, each in part.tensors.items():
            found.setdefault(name, []).append(each)
    tensors = {}
    for name, own in found.items():
        pieces = [piece for each in own for piece in each.pieces]
        tensors[name] = joined = SavedTensor(own[0].dtype, own[0].shape, pieces)
        if any((each.dtype, each.shape) != (joined.dtype, joined.shape) for each in own):
            raise InputError(f"{quoted(name)} must be one tensor for all ranks that have pieces")
        if not joined.is_whole:
            check_pieces(name, joined)
    files = {name: each for part in parts for name, each in part.files.items()}
    is_whole = all(each.is_whole for each in tensors.values())
    version = WHOLE_VERSION if is_whole else PIECE_VERSION
    return Manifest(version=version, step=step, files=files, tensors=tensors, weights=list(weights))


def fill_parts(
    path: Path,
    saved: Mapping[str, SavedTensor],
    state: Mapping[str, torch.Tensor],
    holdings: Mapping[str, TensorHolding],
    tick: Callable[[], None],
) -> None:
    """Fill tensors in place, of which it is known that the files have them in these shapes.

    Numbers of another type are converted.
    """
    by_file: dict[str, list[tuple[Extract, torch.Tensor]]] = {}
    for name, tensor in state.items():
        wanted = _holding_of(name, tensor, holdings)
        for file, extract, target in _find_reads(saved[name], wanted, tensor):
            by_file.setdefault(file, []).append((extract, target))
    with torch.no_grad():
        for file, reads in by_file.items():
            found = read_extracts(path / file, [extract for extract, _ in reads], tick)
            for (_, target), part in zip(reads, found, strict=True):
                target.copy_(part)


def _find_reads(
    saved: SavedTensor, wanted: TensorHolding, tensor: torch.Tensor
) -> Iterator[tuple[str, Extract, torch.Tensor]]:
    """The reads that together fill what a rank wants of a saved tensor: from which file, what of
    it, and the view of the tensor where it goes."""
    boxes = [each.box for each in saved.pieces]
    overlaps, missing = find_overlaps(wanted.boxes, boxes)
    assert not missing, "the manifest was checked"
    for overlap in overlaps:
        tile, source = wanted.tiles[overlap.wanted], boxes[overlap.source]
        stored = saved.pieces[overlap.source]
        extract = Extract(
            key=stored.key,
            dtype=find_type(saved.dtype),
            shape=source.shape,
            where=overlap.box.within(source),
        )
        yield stored.file, extract, tile.view(tensor)[overlap.box.within(tile.box)]


def check_state(
    state: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    holdings: Mapping[str, TensorHolding],
) -> None:
    """Check that a checkpoint has every tensor of the state, in its shape and type."""
    missing = [quoted(name) for name in state if name not in saved]
    if missing:
        raise InputError(f"must have every tensor of the model, lacks {some(missing)}")
    for name, tensor in state.items():
        shape = list(_holding_of(name, tensor, holdings).shape)
        if saved[name].shape != shape:
            raise InputError(
                f"{quoted(name)} must have the model's shape {shape}, got {saved[name].shape}"
            )
        if saved[name].dtype != name_type(tensor.dtype):
            raise InputError(
                f"{quoted(name)} must have the model's type "
                f"{name_type(tensor.dtype)}, got {quoted(saved[name].dtype)}"
            )


def name_type(dtype: torch.dtype) -> str:
    """What manifests call a type."""
    return str(dtype).removeprefix("torch.")


def describe_os(error: OSError) -> str:
    """What went wrong with a file, and which."""
    reason = error.strerror or str(error)
    return f"{reason}: {error.filename}" if error.filename else reason
