"""A small GPT that learns to write like Shakespeare, letter by letter.

`meshwright run` is given `text_gpt:model`, `text_gpt:text`, `text_gpt:optimizer` and
`text_gpt:scheduler`; `train_text.py` does so for several plans. The text is about 1.1 million
letters of Shakespeare's plays, which are in the public domain, as collected in
github.com/karpathy/char-rnn (data/tinyshakespeare).
"""

import gzip
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

TEXT = Path(__file__).resolve().parent / "shakespeare.txt.gz"
LETTERS, LENGTH, WIDTH, HEADS, LAYERS = 65, 64, 64, 4, 4
BATCH, STEPS, WARM_UP = 32, 600, 50
RATE, DECAY = 3e-3, 0.1


class Block(nn.Module):
    """Causal attention and a perceptron, each around a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From features to features."""
        normed = self.norm_attention(x)
        query, key, value = (
            each(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        made: torch.Tensor = x + self.down(F.gelu(self.up(self.norm_mlp(x))))
        return made


class TextGPT(nn.Module):
    """Returns the mean cross-entropy of every next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS, bias=False)

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The loss on texts and what comes after each of their letters."""
        x = self.letters(given) + self.places(torch.arange(LENGTH, device=given.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


@cache
def _read() -> torch.Tensor:
    """The whole text, by the numbers of its letters."""
    text = gzip.decompress(TEXT.read_bytes()).decode("ascii")
    number = {letter: k for k, letter in enumerate(sorted(set(text)))}
    assert len(number) == LETTERS
    return torch.tensor([number[letter] for letter in text])


class Pieces(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of the text one after the other, each with the letters that come after its own."""

    def __init__(self, first: float, last: float) -> None:
        """From one fraction of the text to another."""
        text = _read()
        self.text = text[int(first * len(text)) : int(last * len(text))]

    def __len__(self) -> int:
        return (len(self.text) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * LENGTH
        return (
            self.text[start : start + LENGTH],
            self.text[start + 1 : start + LENGTH + 1],
        )


def text() -> Pieces:
    """What it learns from: nine tenths."""
    return Pieces(0.0, 0.9)


def validation() -> Pieces:
    """What it is held against: the last tenth."""
    return Pieces(0.9, 1.0)


def model() -> tuple[TextGPT, tuple[torch.Tensor, torch.Tensor]]:
    """The model and an example of a batch."""
    nothing = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    return TextGPT(), (nothing, nothing)


def optimizer(trained: nn.Module) -> torch.optim.Optimizer:
    """AdamW; vectors do not decay."""
    parameters = list(trained.parameters())
    groups = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": DECAY},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE)


def scheduler(update: torch.optim.Optimizer) -> LambdaLR:
    """A rate that rises for a while and then falls in a straight line."""
    left = STEPS - WARM_UP
    return LambdaLR(update, lambda step: min((step + 1) / WARM_UP, max(0.0, (STEPS - step) / left)))


def loss_on_validation(trained: nn.Module) -> float:
    """The mean loss on all of the validation text."""
    batches = DataLoader(validation(), batch_size=BATCH, drop_last=True)
    with torch.no_grad():
        losses = [float(trained(*batch)) for batch in batches]
    return sum(losses) / len(losses)
