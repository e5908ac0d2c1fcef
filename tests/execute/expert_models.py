"""Small models with experts, each run by tokens that are sorted by expert."""

from functools import cache
from typing import Any

import torch
from small_trainer import Tensors, train_plainly
from torch import nn
from torch.nn import functional as F  # noqa: N812

from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.graph.graph import Graph

BATCH, TOKENS, WIDTH, INNER, WORDS = 8, 6, 16, 24, 40


class Mixture(nn.Module):
    """A gated perceptron for every expert; each token goes to its best few."""

    def __init__(self, experts: int, chosen: int, *, is_lopsided: bool) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 2 * INNER) / 4)
        self.down = nn.Parameter(torch.randn(experts, INNER, WIDTH) / 4)
        if is_lopsided:
            with torch.no_grad():
                self.gate.bias[:chosen] += 100.0

    def forward(self, x: Any) -> Any:
        rows = self.norm(x).flatten(0, 1)
        best = self.gate(rows).softmax(-1).topk(self.chosen)
        number, order = best.indices.flatten().sort(stable=True)
        ends = F.one_hot(number, self.experts).sum(0).cumsum(0).to(torch.int32)
        owner = order // self.chosen
        made = F.grouped_mm(rows[owner], self.up, offs=ends)
        made = F.gelu(made[:, :INNER]) * made[:, INNER:]
        made = F.grouped_mm(made, self.down, offs=ends) * best.values.flatten()[order, None]
        return x + torch.zeros_like(rows).index_add(0, owner, made).view(x.shape)


class Layer(nn.Module):
    """A perceptron and experts."""

    def __init__(self, experts: int, chosen: int, *, is_lopsided: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.one, self.two = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.mixture = Mixture(experts, chosen, is_lopsided=is_lopsided)

    def forward(self, x: Any) -> Any:
        return self.mixture(x + self.two(F.gelu(self.one(self.norm(x)))))


class Words(nn.Module):
    """Layers with experts between an embedding and a head."""

    def __init__(self, experts: int, chosen: int, *, is_lopsided: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            Layer(experts, chosen, is_lopsided=is_lopsided) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.roll(1, 1).flatten())


def _mixtral() -> Any:
    import transformers

    settings = transformers.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        max_position_embeddings=32,
    )  # fmt: skip
    settings._experts_implementation = "grouped_mm"
    return transformers.MixtralForCausalLM(settings)


MODELS = {
    "two of four": lambda: Words(4, 2),
    "one of eight": lambda: Words(8, 1),
    "lopsided": lambda: Words(4, 2, is_lopsided=True),
    "mixtral": _mixtral,
}
"""In the lopsided one, all tokens go to the same two experts, and others get none."""


def make_workload(name: str) -> Workload:
    """A model with its weights and a batch, the same in every process."""
    torch.manual_seed(7)
    model = MODELS[name]()
    ids = torch.randint(0, WORDS, (BATCH, 8 if name == "mixtral" else TOKENS))
    if name != "mixtral":
        return Workload(name=name, model=model, args=(ids,))
    kwargs = {"input_ids": ids, "labels": ids, "use_cache": False}
    return Workload(name=name, model=model, args=(), kwargs=kwargs)


@cache
def captured(name: str, optimizer: str) -> Graph:
    """Its graph."""
    return capture_workload(make_workload(name), optimizer)


@cache
def train_eagerly(name: str, steps: int, optimizer: str) -> tuple[list[float], Tensors]:
    """Losses and weights after plain training in one process."""
    workload = make_workload(name)
    losses, tensors = train_plainly(workload, steps, optimizer)
    return losses, {key: tensors[key] for key, _ in workload.model.named_parameters()}
