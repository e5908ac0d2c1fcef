"""What ranks read: checkpoints whose digests are right, whoever made them, and variables."""

import hashlib
import json
import socket
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import torch
from fuzz_loop import Reader
from fuzz_mutate import mutate, mutate_text

from meshwright.execute.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from meshwright.execute.environment import read_place
from meshwright.execute.manifest import FILE_NAME

STEP = "step-00000002"
DATA = "rank-00000.safetensors"
VARIABLES = (
    "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
    "MASTER_PORT=29500", "TORCHELASTIC_RESTART_COUNT=1", "MESHWRIGHT_HOST=h0",
    "MESHWRIGHT_INTERFACES=lo", "GLOO_SOCKET_IFNAME=lo", "MESHWRIGHT_TOKEN=" + "0f" * 16,
    "MESHWRIGHT_CHECK_OPS=3",
)  # fmt: skip


@cache
def _saved() -> tuple[bytes, bytes]:
    """A checkpoint's manifest, without its own digest, and its file of tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = save_checkpoint(Path(folder), 2, {**_state(), **_others()})
        envelope = json.loads((path / FILE_NAME).read_bytes())
        return json.dumps(envelope["manifest"]).encode(), (path / DATA).read_bytes()


def _state() -> dict[str, torch.Tensor]:
    """What a rank needs."""
    return {"w": torch.ones(2, 3), "losses of the run": torch.ones(2, dtype=torch.float64)}


def _others() -> dict[str, torch.Tensor]:
    """What a checkpoint has for other ranks, with as much to change."""
    return {f"layers.{number}.weight": torch.ones(number) for number in range(20)}


def feed_manifest(path: Path, data: bytes, _is_thorough: bool) -> None:
    """Resume from a checkpoint with this manifest, which has the right digest of itself."""
    _resume(path.parent / "checkpoints", data, _saved()[1])


def feed_tensors(path: Path, data: bytes, _is_thorough: bool) -> None:
    """Resume from a checkpoint with this file, whose digest its manifest has."""
    manifest = json.loads(_saved()[0])
    manifest["files"][DATA] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _resume(path.parent / "checkpoints", json.dumps(manifest).encode(), data)


def _resume(folder: Path, manifest: bytes, tensors: bytes) -> None:
    step = folder / STEP
    step.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(manifest).hexdigest().encode()
    (step / FILE_NAME).write_bytes(b'{"sha256":"' + digest + b'","manifest":' + manifest + b"}")
    (step / DATA).write_bytes(tensors)
    said: list[str] = []
    found = find_checkpoint(folder, said.append)
    assert found is not None
    state = {name: torch.zeros_like(tensor) for name, tensor in _state().items()}
    load_checkpoint(found, state)


def feed_variables(_path: Path, data: bytes, _is_thorough: bool) -> None:
    """Read a rank's place from variables, a line each."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    with patch.object(socket, "getaddrinfo", _find_numeric):
        read_place(dict(line.partition("=")[::2] for line in lines))


def _find_numeric(host: str, port: None, *, type: int) -> object:  # noqa: A002 - as socket has it
    """Addresses without asking a server for names."""
    return _getaddrinfo(host, port, type=type, flags=socket.AI_NUMERICHOST)


_getaddrinfo = socket.getaddrinfo


def _make_variables(chance: Random) -> bytes:
    """Most of the variables, one or two of them changed."""
    lines = [line for line in VARIABLES if chance.random() < 0.9]
    for _ in range(chance.randint(1, 2)):
        place = chance.randrange(len(lines))
        name, _, value = lines[place].partition("=")
        lines[place] = f"{name}={mutate_text([value], chance)}".replace("\n", "")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


RANK_READERS = (
    Reader(
        name="manifest", make=lambda chance: mutate([_saved()[0]], chance), feed=feed_manifest
    ),
    Reader(name="tensors", make=lambda chance: mutate([_saved()[1]], chance), feed=feed_tensors),
    Reader(name="variables", make=_make_variables, feed=feed_variables),
)  # fmt: skip
