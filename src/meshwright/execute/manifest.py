"""The manifest of a checkpoint: which files it is made of, and which tensors are in them.

A manifest is written when all files are on the disk, and holds their sizes and digests and a digest
of itself, so that a checkpoint with a valid manifest can be told from a damaged one. It is JSON,
the files are safetensors: neither can hold code. Decides what is a valid manifest and an intact
file. Knows nothing of ranks.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import MAX_BYTES, decode_json
from meshwright.program.piece import Box, find_overlaps, whole_box

FILE_NAME = "manifest.json"
OLD_FILE_NAME = ".metadata"
"""The manifest of torch.distributed.checkpoint, a pickle: checkpoints before version 1 had it."""
FORMAT = "meshwright checkpoint"
WHOLE_VERSION, PIECE_VERSION = 1, 2
"""In the first version every tensor is one piece. It is still written where that is so, for those
who read no other."""

_FILE = re.compile(r"rank-[0-9]{5,}\.safetensors")
_CHUNK_BYTES = 16 << 20

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]
"""A number of bytes, elements or steps."""


class SavedPiece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a block of a tensor is."""

    file: str
    key: str
    """The name of the block in its file, where it has its own shape."""
    offset: list[Count]
    """The index of the block's first element in the tensor, one number for each dimension."""
    shape: list[Count]

    @staticmethod
    def of(box: Box, file: str, key: str) -> "SavedPiece":
        """A box under a name in a file."""
        return SavedPiece(file=file, key=key, offset=list(box.offset), shape=list(box.shape))

    @property
    def box(self) -> Box:
        """The numbers that it has."""
        return Box(tuple(self.offset), tuple(self.shape))


class SavedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of a checkpoint."""

    dtype: str
    shape: list[Count]
    pieces: list[SavedPiece]
    """The blocks that the tensor is made of; version 1 has one, which is the whole tensor."""

    @property
    def is_whole(self) -> bool:
        """Whether it is one piece."""
        return [each.box for each in self.pieces] == [whole_box(self.shape)]


class SavedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a checkpoint."""

    bytes: Count
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that a checkpoint holds, by name."""

    format: str = FORMAT
    version: int
    step: Count
    files: dict[str, SavedFile]
    tensors: dict[str, SavedTensor]
    weights: list[str] = []
    """The tensors that are the model's own, in the order of its `state_dict`; others are the
    optimiser's, or the run's. Empty: that is not known."""


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """A manifest as it stands in its file, with the digest of its own text."""

    sha256: str
    manifest: msgspec.Raw


class _Head(msgspec.Struct):
    """The part of a manifest that every version has."""

    format: str
    version: Count


class VersionError(InputError):
    """A checkpoint is intact but of a format that this version of Meshwright does not read."""


def name_file(rank: int) -> str:
    """The name of the file that a rank writes."""
    return f"rank-{rank:05d}.safetensors"


def encode_manifest(manifest: Manifest) -> bytes:
    """The text of a manifest's file."""
    text = msgspec.json.encode(manifest)
    digest = hashlib.sha256(text).hexdigest()
    return msgspec.json.encode(_Envelope(sha256=digest, manifest=msgspec.Raw(text)))


def read_manifest(folder: Path) -> bytes:
    """The text of a checkpoint's manifest; it may be damaged."""
    if not (folder / FILE_NAME).exists() and (folder / OLD_FILE_NAME).exists():
        raise VersionError(
            f"checkpoint {folder}: is of an older version of Meshwright (it has {OLD_FILE_NAME} "
            f"instead of {FILE_NAME}), which is not read any more; move it away to train from the "
            f"beginning, or finish its training with the version that began it"
        )
    if folder.is_symlink():
        raise InputError("must be a folder, and no link to one")
    size = file_bytes(folder / FILE_NAME)
    if size > MAX_BYTES:
        raise InputError(f"{FILE_NAME}: must have at most {MAX_BYTES:,} bytes, got {size}")
    return b"".join(_read_chunks(folder / FILE_NAME))


def decode_manifest(text: bytes, folder: Path) -> Manifest:
    """A manifest from the text of its file; refused unless every part of it is right."""
    envelope = decode_json(text, _Envelope, FILE_NAME)
    body = bytes(envelope.manifest)
    if hashlib.sha256(body).hexdigest() != envelope.sha256:
        raise InputError(f"{FILE_NAME}: is damaged (it has another digest than it says)")
    head = decode_json(body, _Head, FILE_NAME)
    if head.format != FORMAT or head.version not in (WHOLE_VERSION, PIECE_VERSION):
        raise VersionError(
            f"checkpoint {folder}: must be a {FORMAT} of version {WHOLE_VERSION} or "
            f"{PIECE_VERSION}, is a "
            f"{quoted(head.format)} of version {head.version}; move it away, or use the version of "
            f"Meshwright that wrote it"
        )
    manifest = decode_json(body, Manifest, FILE_NAME)
    _check(manifest)
    return manifest


def find_file_fault(path: Path, saved: SavedFile, tick: Callable[[], None]) -> str:
    """How a file differs from what its manifest says; empty if it does not.

    `tick` is called now and then while a large file is read.
    """
    try:
        size = file_bytes(path)
        if size != saved.bytes:
            return f"{quoted(path.name)} must have {saved.bytes:,} bytes, got {size}"
        digest = hashlib.sha256()
        for chunk in _read_chunks(path):
            digest.update(chunk)
            tick()
    except InputError as error:
        return str(error)
    is_same = digest.hexdigest() == saved.sha256
    return "" if is_same else f"{quoted(path.name)} is damaged (it has another digest)"


def file_bytes(path: Path) -> int:
    """The size of a file, which must be one, and not a link to one."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise InputError(
            f"{quoted(path.name)} cannot be read ({error.strerror or error})"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{quoted(path.name)} must be a file, and no link to one")
    return status.st_size


def _read_chunks(path: Path) -> Iterator[bytes]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise InputError(
            f"{quoted(path.name)} cannot be read ({error.strerror or error})"
        ) from None


def _check(manifest: Manifest) -> None:
    """Refuse a manifest that names files elsewhere or tensors that cannot be."""
    for name in manifest.files:
        if not _FILE.fullmatch(name):
            raise InputError(
                f"{FILE_NAME}: a file must be called like {name_file(0)}, got {quoted(name)}"
            )
    for name, tensor in manifest.tensors.items():
        if manifest.version == WHOLE_VERSION:
            if not tensor.is_whole:
                raise InputError(f"{FILE_NAME}: {quoted(name)} must be one piece, the whole tensor")
        else:
            check_pieces(name, tensor)
        unknown = [each.file for each in tensor.pieces if each.file not in manifest.files]
        if unknown:
            raise InputError(
                f"{FILE_NAME}: {quoted(name)} must be in one of its files, is in "
                f"{quoted(unknown[0])}"
            )


def check_pieces(name: str, tensor: SavedTensor) -> None:
    """Refuse pieces that lie outside of their tensor, or do not make up all of it."""
    whole = whole_box(tensor.shape)
    if not all(_is_inside(each, tensor.shape) for each in tensor.pieces):
        raise InputError(f"{FILE_NAME}: a piece of {quoted(name)} must lie in the tensor")
    _, missing = find_overlaps([whole], (each.box for each in tensor.pieces))
    if missing or not tensor.pieces:
        first = missing[0] if missing else whole
        raise InputError(
            f"{FILE_NAME}: {quoted(name)} must have pieces that make up all of it, lacks "
            f"{list(first.shape)} at {list(first.offset)}"
        )


def _is_inside(saved: SavedPiece, shape: list[int]) -> bool:
    """Whether a piece is one of a tensor of this shape."""
    if not len(saved.offset) == len(saved.shape) == len(shape):
        return False
    ends = zip(saved.offset, saved.shape, shape, strict=True)
    return all(offset + size <= whole for offset, size, whole in ends)
