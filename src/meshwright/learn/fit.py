"""Fits the network to examples: cross-entropy to the visits of searches, by AdamW."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from meshwright.learn.play import Example
from meshwright.learn.twin import Twin, stack_features

BATCH = 32
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
MAX_NORM = 1.0
"""Gradients longer than this are shortened."""


def fit(
    twin: Twin, examples: Sequence[Example], *, epochs: int, seed: int, rate: float = LEARNING_RATE
) -> list[float]:
    """Train on all examples so many times, the rate falling to nothing along a cosine; the mean
    loss of each epoch."""
    generator = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    steps = max(1, epochs * -(-len(examples) // BATCH))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(epochs):
        order = generator.permutation(len(examples))
        total = 0.0
        for start in range(0, len(order), BATCH):
            chosen = [examples[each] for each in order[start : start + BATCH]]
            optimizer.zero_grad()
            loss = mean_loss(twin, chosen)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(twin.parameters(), MAX_NORM)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        losses.append(total / max(1, len(examples)))
    return losses


def mean_loss(twin: Twin, examples: Sequence[Example]) -> Tensor:
    """The weighted mean of the Kullback-Leibler divergence from belief to visits.

    That is cross-entropy less what no network could do better: the entropy of the visits.
    """
    logs = twin(stack_features([example.features for example in examples]))
    target = torch.zeros(logs.shape)
    for number, example in enumerate(examples):
        target[number, : len(example.target)] = torch.from_numpy(example.target)
    crossed = -(target * logs.masked_fill(target == 0, 0.0)).sum(dim=1)
    entropy = -torch.special.xlogy(target, target).sum(dim=1)
    weight = torch.tensor([example.weight for example in examples])
    loss: Tensor = (weight * (crossed - entropy)).sum() / weight.sum()
    return loss


def measure_loss(twin: Twin, examples: Sequence[Example]) -> float:
    """The mean loss of examples that are not trained on."""
    if not examples:
        return 0.0
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(examples), BATCH):
            chosen = examples[start : start + BATCH]
            total += mean_loss(twin, chosen).item() * len(chosen)
    return total / len(examples)
