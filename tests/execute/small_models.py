"""Small models with what makes execution hard: skips, tied weights, branches, experts, FFTs."""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from small_trainer import OPTIMIZER, Tensors, train_plainly
from torch import nn
from torch.nn import functional as F  # noqa: N812

from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.execute.plain import RepeatedDraws
from meshwright.execute.steps import PlannedSteps
from meshwright.graph.graph import Graph

BATCH = 16


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (8, 16, 24, 16, 4)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Any, y: Any) -> Any:
        for layer in self.layers:
            x = layer(x).tanh()
        return F.mse_loss(x, y)


class Block(nn.Module):
    """Attention and a gated perceptron around residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Language(nn.Module):
    """A causal transformer; its head may be tied to its embedding."""

    def __init__(self, *, is_tied: bool, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.places = nn.Parameter(torch.randn(6, 16) / 8)
        self.blocks = nn.ModuleList(Block(16, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class BiasedBlock(Block):
    """As `Block`, whose queries have a norm a head, and whose scores get a bias of each head by
    distance and one of all heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.table = nn.Parameter(torch.randn(11, heads))
        self.places = nn.Parameter(torch.randn(6, 6))
        self.norm = nn.LayerNorm(width // heads)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        apart = torch.arange(length)[:, None] - torch.arange(length) + 5
        scores = self.norm(query) @ key.transpose(-1, -2) + self.table[apart].permute(2, 0, 1)
        y = (scores + self.places).softmax(-1) @ value
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Biased(Language):
    """A transformer with biases of scores."""

    def __init__(self) -> None:
        super().__init__(is_tied=False)
        self.blocks = nn.ModuleList(BiasedBlock(16, 2) for _ in range(2))


class MaskedBlock(Block):
    """As `Block`, whose places and mask are tables of the model."""

    def __init__(self, width: int, heads: int, mask: torch.Tensor, turns: torch.Tensor) -> None:
        super().__init__(width, heads)
        self.register_buffer("mask", mask)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = (query * self.turns) @ (key * self.turns).transpose(-1, -2)
        y = (scores + self.mask).softmax(-1) @ value
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Masked(Language):
    """A transformer whose layers share a causal mask and a table of rotations, which they read."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__(is_tied=False)
        mask, turns = torch.full((6, 6), -1e9).triu(1), torch.randn(6, 8).cos()
        self.blocks = nn.ModuleList(MaskedBlock(16, 2, mask, turns) for _ in range(layers))


class UNet(nn.Module):
    """Long skips from encoder to decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.leave = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        a = F.gelu(self.enter(x))
        b = F.gelu(self.down(a))
        c = b + F.gelu(self.norm(self.middle(b)))
        return F.l1_loss(self.leave(torch.cat((self.up(c), a), 1)), x)


class Inception(nn.Module):
    """Branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 6, 3, padding=1)
        self.one = nn.Conv2d(6, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(6, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(6, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 5, padding=2))
        self.pool = nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any, label: Any) -> Any:
        x = F.relu(self.enter(x))
        pooled = self.pool(F.max_pool2d(x, 3, 1, 1))
        x = torch.cat((self.one(x), self.three(x), self.five(x), pooled), 1)
        return F.cross_entropy(self.head(F.relu(x).mean((2, 3))), label)


class Residual(nn.Module):
    """Batch norm, whose statistics are those of the samples that one device sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any, label: Any) -> Any:
        x = F.relu(self.norm(self.first(x)))
        x = x + F.relu(self.second(x))
        return F.cross_entropy(self.head(x.mean((2, 3))), label)


class NormedBlock(nn.Module):
    """Two convolutions with batch norm, and a residual connection."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.one, self.two = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.skip = nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after, affine=False)
        )

    def forward(self, x: Any) -> Any:
        y = self.two(self.second(F.relu(self.one(self.first(x)))))
        return F.relu(y + self.skip(x))


class Normed(nn.Module):
    """A residual network with batch norm everywhere, some of it without what can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(NormedBlock(3, 6, 1), NormedBlock(6, 8, 2))
        self.flat = nn.BatchNorm1d(8, momentum=0.3, track_running_stats=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any, label: Any) -> Any:
        return F.cross_entropy(self.head(self.flat(self.blocks(x).mean((2, 3)))), label)


class NormedUNet(nn.Module):
    """Long skips, with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU())
        self.down = nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.GELU()
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 4, 2, stride=2), nn.BatchNorm2d(4))
        self.leave = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        a = self.enter(x)
        return F.mse_loss(self.leave(torch.cat((self.up(self.down(a)), a), 1)), x)


class Ladder(nn.Module):
    """A way down, a way up, and long skips between them."""

    def __init__(self, depth: int = 3, wide: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, wide, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1) for _ in range(depth))
        self.up = nn.ModuleList(nn.Conv2d(2 * wide, wide, 3, padding=1) for _ in range(depth))
        self.leave = nn.Conv2d(wide, 1, 1)

    def forward(self, x: Any) -> Any:
        y = self.enter(x)
        kept = []
        for layer in self.down:
            kept.append(y)
            y = F.gelu(layer(F.avg_pool2d(y, 2)))
        for layer in self.up:
            y = torch.cat((F.interpolate(y, scale_factor=2.0), kept.pop()), 1)
            y = F.gelu(layer(y))
        return F.mse_loss(self.leave(y), x)


class Experts(nn.Module):
    """A gate picks two of four experts; all run, in one grouped product."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.gate = nn.Linear(8, 8), nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 16) / 3)
        self.down = nn.Parameter(torch.randn(4, 16, 8) / 4)

    def forward(self, x: Any) -> Any:
        x = self.enter(x)
        scores = self.gate(x)
        best = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
        hidden = torch.einsum("bi,eih->ebh", x, self.up).tanh()
        mixed = torch.einsum("be,ebi->bi", weights, torch.bmm(hidden, self.down))
        return {"loss": (x + mixed).square().mean()}


class Fourier(nn.Module):
    """FNet's mixing: complex numbers inside."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        x = self.norm(x + torch.fft.fft2(x, dim=(1, 2)).real)
        x = x + self.two(F.gelu(self.one(x)))
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Recurrent(nn.Module):
    """A cell unrolled over time, with state in place, sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.over, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        x = x.transpose(0, 1)
        hidden = x.new_zeros(x.shape[1], 8)
        outputs = []
        for each in self.into(x):
            hidden = torch.tanh(each + self.over(hidden))
            outputs.append(self.out(hidden))
        return torch.stack(outputs).square().mean()


class Contrastive(nn.Module):
    """Two encoders whose outputs are compared, each sample with all, by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 6))
        self.right, self.other = nn.Linear(8, 6), nn.Linear(6, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Any, y: Any) -> Any:
        left, right = F.normalize(self.left(x), dim=-1), F.normalize(self.right(y), dim=-1)
        logits = self.scale.exp() * left @ right.T
        number = torch.arange(x.shape[0])
        loss = F.cross_entropy(logits, number) + F.cross_entropy(logits.T, number)
        return loss + self.other(left).square().mean()


class Triplets(nn.Module):
    """Two views of each sample in one batch; every three of its rows are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 6)

    def forward(self, x: Any, y: Any) -> Any:
        rows = self.encoder(torch.cat([x, y])).tanh()
        apart = (rows[:, None] - rows[None]).square().sum(-1)
        return F.relu(apart[:, :, None] - apart[:, None, :] + 0.2).mean()


def _ids(vocabulary: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randint(0, vocabulary, (BATCH, 6)),)


class Dropping(nn.Module):
    """Draws in every way: for values, weights of attention, whole samples, and no sample at all."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.places = nn.Parameter(torch.randn(6, 16) / 8)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.late, self.head = nn.Linear(16, 16), nn.Linear(16, 20)

    def forward(self, ids: Any) -> Any:
        batch, length = ids.shape
        x = F.dropout(self.words(ids), 0.2) + F.dropout(self.places, 0.3)
        query, key, value = self.qkv(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=0.25)
        y = self.out(y.transpose(1, 2).reshape(batch, length, 16))
        x = x + y * x.new_empty(batch, 1, 1).bernoulli_(0.8)  # whole samples
        x = x + 0.1 * torch.randn_like(x)
        moments = x.transpose(0, 1).reshape(length * batch, 16)  # all samples of one, then the next
        moments = F.dropout(self.late(moments).relu(), 0.5)
        x = x + moments.view(length, batch, 16).transpose(0, 1)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Gated(nn.Module):
    """Blocks with root mean square norms and gates, as Llama's have."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(8, eps=1e-5) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(8, 12) for _ in range(3))
        self.ups = nn.ModuleList(nn.Linear(8, 12) for _ in range(3))
        self.downs = nn.ModuleList(nn.Linear(12, 8) for _ in range(3))

    def forward(self, x: Any, y: Any) -> Any:
        blocks = zip(self.norms, self.gates, self.ups, self.downs, strict=True)
        for norm, gate, up, down in blocks:
            z = norm(x)
            x = x + down(F.silu(gate(z)) * up(z))
        return F.mse_loss(x, y)


class DroppedLayers(nn.Module):
    """Equal layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(6))
        self.ups = nn.ModuleList(nn.Linear(8, 12) for _ in range(6))
        self.downs = nn.ModuleList(nn.Linear(12, 8) for _ in range(6))

    def forward(self, x: Any, y: Any) -> Any:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + F.dropout(down(F.dropout(up(norm(x)).relu(), 0.2)), 0.1)
        return F.mse_loss(x, y)


class Odd(nn.Module):
    """Weights that are hard to divide: one number, three, none that is trained, another order."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.few = nn.Parameter(torch.randn(3))
        self.enter, self.frozen, self.leave = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.frozen.requires_grad_(False)
        self.enter.bias.requires_grad_(False)
        self.turned = nn.Parameter(torch.randn(7, 5).t())

    def forward(self, x: Any) -> Any:
        x = F.gelu(self.enter(x * self.few) * self.scale.exp())
        x = torch.tanh(self.frozen(x)) @ self.turned
        return self.leave(x @ self.turned.t()).square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "perceptron": (Perceptron, lambda: (torch.randn(BATCH, 8), torch.rand(BATCH, 4))),
    "language": (lambda: Language(is_tied=False), _ids(40)),
    "tied": (lambda: Language(is_tied=True), _ids(40)),
    "heads": (lambda: Language(is_tied=False, heads=4), _ids(40)),
    "biased": (Biased, _ids(40)),
    "masked": (Masked, _ids(40)),
    "unet": (UNet, lambda: (torch.randn(BATCH, 1, 8, 8),)),
    "ladder": (Ladder, lambda: (torch.randn(BATCH, 1, 8, 8),)),
    "inception": (
        Inception,
        lambda: (torch.randn(BATCH, 3, 6, 6), torch.randint(0, 5, (BATCH,))),
    ),
    "residual": (Residual, lambda: (torch.randn(BATCH, 3, 6, 6), torch.randint(0, 5, (BATCH,)))),
    "experts": (Experts, lambda: (torch.randn(BATCH, 8),)),
    "fourier": (Fourier, _ids(20)),
    "recurrent": (Recurrent, lambda: (torch.randn(BATCH, 5, 4),)),
    "contrastive": (Contrastive, lambda: (torch.randn(BATCH, 8), torch.randn(BATCH, 8))),
    "dropping": (Dropping, _ids(20)),
    "gated": (Gated, lambda: (torch.randn(BATCH, 8), torch.rand(BATCH, 8))),
    "dropped layers": (
        DroppedLayers,
        lambda: (torch.randn(BATCH, 8), torch.rand(BATCH, 8)),
    ),
    "odd": (Odd, lambda: (torch.randn(BATCH, 3),)),
    "triplets": (Triplets, lambda: (torch.randn(BATCH, 8), torch.randn(BATCH, 8))),
}
NORMED: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "normed": (Normed, lambda: (torch.randn(BATCH, 3, 6, 6) + 3, torch.randint(0, 5, (BATCH,)))),
    "normed unet": (NormedUNet, lambda: (torch.randn(BATCH, 1, 8, 8),)),
    "residual": MODELS["residual"],
}
"""Those with batch norm, which sees all samples."""
MIXING = ("contrastive", "triplets")
"""Those with ops that compare samples with each other."""
DRAWING = ("dropping", "dropped layers")
"""Those that draw random numbers."""


def make_workload(name: str) -> Workload:
    """A model with its weights and a batch, the same in every process."""
    make, inputs = (MODELS | NORMED)[name]
    torch.manual_seed(7)
    return Workload(name=name, model=make(), args=inputs())


@cache
def captured(name: str, optimizer: str = OPTIMIZER, *, untie: bool = False) -> Graph:
    """The graph of a model's step."""
    return capture_workload(make_workload(name), optimizer, untie=untie)


@cache
def train_eagerly(name: str, steps: int, optimizer: str = OPTIMIZER) -> tuple[list[float], Tensors]:
    """Losses and tensors after plain training; random numbers are those of a plan with seed 0."""
    draws = {}
    if name in DRAWING:
        draws = PlannedSteps(make_workload(name), captured(name), OPTIMIZER).draws(BATCH)
    return train_plainly(make_workload(name), steps, optimizer, RepeatedDraws(draws, 0))
