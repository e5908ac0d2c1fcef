"""Exports a checkpoint as weights in the Hub's layout, in one process, one tensor after the
other."""

from collections.abc import Callable
from pathlib import Path

import torch

from meshwright.errors import InputError, quoted
from meshwright.execute.checkpoint import find_checkpoint, load_checkpoint
from meshwright.execute.tensor_file import find_type
from meshwright.execute.weights import write_weights


def export_weights(checkpoints: Path, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Write the model's weights of the latest intact checkpoint of a folder; the files.

    Names are those of the model's `state_dict`, of tied weights the first. At no time is more than
    one tensor in memory, whichever plan wrote the checkpoint.
    """
    found = find_checkpoint(checkpoints, say)
    if found is None:
        raise InputError(f"checkpoints {checkpoints}: there is none")
    manifest = found.manifest
    if not manifest.weights:
        raise InputError(f"checkpoint {found.path}: must say which tensors are the model's weights")
    heads = {}
    for name in manifest.weights:
        saved = manifest.tensors.get(name)
        if saved is None:
            raise InputError(f"checkpoint {found.path}: must have the weight {quoted(name)}")
        heads[name] = torch.empty(saved.shape, dtype=find_type(saved.dtype), device="meta")

    def load(name: str) -> torch.Tensor:
        values = torch.empty(heads[name].shape, dtype=heads[name].dtype)
        load_checkpoint(found, {name: values})
        return values

    return write_weights(folder, heads, load)
