"""The network of `deploy.tree.net` in torch, over many decisions at once, to be trained.

Reads and writes its checkpoints; decides nothing of its own: tests hold it against the NumPy one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save
from torch import Tensor, nn

from meshwright.files import write_bytes
from meshwright.search.method.deploy.tree.features import Features
from meshwright.search.method.deploy.tree.net import (
    FORMAT,
    LAYOUT,
    NUM_LAYERS,
    RELATIONS,
    SLOPE,
    TINY,
    VERSION,
    Sizes,
    Weights,
    read_prior,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Features of several decisions, padded to the largest of them."""

    nodes: Mapping[str, Tensor]
    """By kind: decision x node x numbers."""
    exists: Mapping[str, Tensor]
    """By kind: decision x node."""
    edges: Mapping[str, Tensor]
    """By relation: decision x target x source x numbers."""
    is_edge: Mapping[str, Tensor]
    actions: Tensor
    members: Tensor
    allowed: Tensor
    group: Tensor


def stack_features(rows: Sequence[Features]) -> Batch:
    """One batch of them all."""
    ops, places = (max(len(getattr(row, name)) for row in rows) for name in ("ops", "places"))
    actions = max(len(row.actions) for row in rows)
    op_place = _pad([row.op_place for row in rows], ops, places)
    placed = _pad([row.op_place_edges for row in rows], ops, places)
    exists = {
        "op": _pad([np.ones(len(row.ops), dtype=np.bool_) for row in rows], ops),
        "place": _pad([np.ones(len(row.places), dtype=np.bool_) for row in rows], places),
    }
    return Batch(
        nodes={
            "op": _pad([row.ops for row in rows], ops),
            "place": _pad([row.places for row in rows], places),
        },
        exists=exists,
        edges={
            "op_op": _pad([row.op_op for row in rows], ops, ops),
            "place_place": _pad([row.place_place for row in rows], places, places),
            "op_place": op_place,
            "place_op": op_place.transpose(1, 2),
        },
        is_edge={
            "op_op": _pad([row.op_op_edges for row in rows], ops, ops),
            "place_place": exists["place"][:, :, None] & exists["place"][:, None, :],
            "op_place": placed,
            "place_op": placed.transpose(1, 2),
        },
        actions=_pad([row.actions for row in rows], actions),
        members=_pad([row.members for row in rows], actions, places),
        allowed=_pad([row.allowed for row in rows], actions),
        group=torch.tensor([row.group for row in rows]),
    )


def _pad(arrays: Sequence[npt.NDArray[Any]], *sizes: int) -> Tensor:
    """One tensor of arrays whose first dimensions are grown to the sizes."""
    padded = np.zeros((len(arrays), *sizes, *arrays[0].shape[len(sizes) :]), arrays[0].dtype)
    for number, array in enumerate(arrays):
        corner: tuple[slice, ...] = tuple(slice(size) for size in array.shape[: len(sizes)])
        padded[number][corner] = array
    return torch.from_numpy(padded)


class Twin(nn.Module):
    """The network, with weights by the names of its checkpoint."""

    def __init__(self, sizes: Sizes, seed: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict(
            {name: _first_weight(name, shape, generator) for name, shape in sizes.shapes().items()}
        )

    def forward(self, batch: Batch) -> Tensor:
        """Logarithms of the probabilities: decision x action; minus infinity: not allowed."""
        weights = self.weights
        nodes = {
            kind: torch.relu(
                batch.nodes[kind] @ weights[f"{kind}_input"] + weights[f"{kind}_input_bias"]
            )
            for kind in ("op", "place")
        }
        for layer in range(NUM_LAYERS):
            nodes = self._pass_messages(f"layer{layer}_", batch, nodes)
        scores = self._decode(batch, nodes["op"], nodes["place"])
        return torch.log_softmax(scores.masked_fill(~batch.allowed, -torch.inf), dim=1)

    def _pass_messages(
        self, start: str, batch: Batch, nodes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        weights = self.weights
        told = {
            kind: values @ weights[f"{start}{kind}_self"] + weights[f"{start}{kind}_self_bias"]
            for kind, values in nodes.items()
        }
        for name, target, source, _, weight in RELATIONS:
            message = self._attend(
                start + name, nodes[target], nodes[source], batch.edges[name], batch.is_edge[name]
            )
            told[target] = told[target] + weight * message
        return {
            kind: nn.functional.layer_norm(
                values + torch.relu(told[kind]),
                (self.sizes.hidden,),
                weights[f"{start}{kind}_gain"],
                weights[f"{start}{kind}_shift"],
                TINY,
            )
            for kind, values in nodes.items()
        }

    def _attend(
        self, name: str, targets: Tensor, sources: Tensor, edges: Tensor, is_edge: Tensor
    ) -> Tensor:
        weights = self.weights
        own, others = targets @ weights[f"{name}_target"], sources @ weights[f"{name}_source"]
        score = own[:, :, None] + others[:, None] + edges @ weights[f"{name}_edge"]
        score = nn.functional.leaky_relu(score, SLOPE)
        # The largest finite instead of infinity: nodes without neighbours would get no number.
        score = score.masked_fill(~is_edge[..., None], torch.finfo(score.dtype).min)
        weight = torch.softmax(score, dim=2) * is_edge[..., None]
        value = (sources @ weights[f"{name}_value"]).unflatten(2, (self.sizes.heads, -1))
        told = torch.einsum("btsh,bshd->bthd", weight, value).flatten(2)
        along = torch.einsum("bts,btse->bte", weight.mean(dim=3), edges)
        message: Tensor = told + along @ weights[f"{name}_edge_value"]
        return message

    def _decode(self, batch: Batch, ops: Tensor, places: Tensor) -> Tensor:
        weights = self.weights
        chosen = batch.members.to(places.dtype)
        left_out = batch.exists["place"][:, None, :].to(places.dtype) - chosen
        chosen = chosen / chosen.sum(dim=2, keepdim=True).clamp(min=1)
        left_out = left_out / left_out.sum(dim=2, keepdim=True).clamp(min=1)
        exists = batch.exists["op"][..., None].to(ops.dtype)
        model = (ops * exists).sum(dim=1) / exists.sum(dim=1)
        group = ops[torch.arange(len(ops)), batch.group]
        common = (
            group @ weights["decoder_group"]
            + model @ weights["decoder_model"]
            + weights["decoder_bias"]
        )
        first = torch.relu(
            common[:, None]
            + (chosen @ places) @ weights["decoder_chosen"]
            + (left_out @ places) @ weights["decoder_left_out"]
            + batch.actions @ weights["decoder_action"]
        )
        second = torch.relu(first @ weights["decoder_second"] + weights["decoder_second_bias"])
        score, direct = weights["decoder_score"], weights["decoder_direct"]
        scores: Tensor = second @ score + batch.actions @ direct
        return scores

    def to_numpy(self) -> Weights:
        """Copies of all weights."""
        return {
            name: weight.detach().numpy().astype(np.float32)
            for name, weight in self.named_weights()
        }

    def named_weights(self) -> list[tuple[str, Tensor]]:
        """All weights by name."""
        return [(name, self.weights[name]) for name in self.sizes.shapes()]

    def save(self, path: Path, **notes: str) -> None:
        """Write a checkpoint that `net.load_prior` reads; notes go into its header."""
        header = {name: str(getattr(self.sizes, name)) for name in ("hidden", "heads", "decoder")}
        told = {"format": FORMAT, "version": VERSION, "features": LAYOUT, **header, **notes}
        # Not by save_file, which lets only its owner read the file.
        write_bytes(path, save(dict(self.to_numpy()), told))

    @staticmethod
    def load(path: Path) -> "Twin":
        """The network of a checkpoint, to be trained further."""
        weights = read_prior(path).weights
        hidden, heads = weights["layer0_op_op_source"].shape
        twin = Twin(Sizes(hidden=hidden, heads=heads, decoder=len(weights["decoder_bias"])))
        for name, weight in twin.named_weights():
            weight.data = torch.from_numpy(weights[name].copy())
        return twin


def _first_weight(name: str, shape: tuple[int, ...], generator: torch.Generator) -> nn.Parameter:
    """Gains one, biases and what scores directly zero, matrices by the width they read."""
    if name.endswith("gain"):
        return nn.Parameter(torch.ones(shape))
    if name.endswith(("bias", "shift", "direct")):
        return nn.Parameter(torch.zeros(shape))
    return nn.Parameter(torch.randn(shape, generator=generator) * shape[0] ** -0.5)
