"""Rounds of self-play and training (after AlphaZero), and how good the network got by them.

Each round plays with the network of the round before, the first with no belief at all, and trains
on the examples of the last rounds. What counts is how many iterations a search needs to beat data
parallelism on clusters and models that were not trained on.

AdamW fits the network to the examples, by the cross-entropy to the visits of searches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from meshwright.errors import InputError
from meshwright.learn.play import Example, play
from meshwright.learn.scene import (
    RANDOM,
    TRAINING_SEEDS,
    VALIDATION_SEEDS,
    Stock,
    TrainingScene,
    draw_scene,
)
from meshwright.learn.twin import Twin, stack_features
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.tree.net import NetworkPrior, Sizes
from meshwright.search.method.deploy.tree.tree import Prior, iterations_to_beat, uniform_prior

KEPT_ROUNDS = 3
"""Examples of so many rounds are trained on; those of older ones are of a worse network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfPlaySchedule:
    """How much is played and trained."""

    rounds: int = 3
    episodes: int = 80
    """How many scenes are played in a round."""
    iterations: int = 60
    """Of a search, beside those for each action."""
    epochs: int = 15
    validation_scenes: int = 24
    cap: int = 60
    """Iterations after which a validation search gives up."""
    seed: int = 0


Tell = Callable[[Twin, dict[str, object]], None]


def train(
    schedule: SelfPlaySchedule,
    tell: Tell,
    sizes: Sizes | None = None,
    stock: Stock = RANDOM,
    start: Twin | None = None,
) -> Twin:
    """The network after all rounds; `tell` gets that of each round, and how good it is.

    `stock`: a user's own models and clusters, which it is then judged by, too: nothing of them is
    held out. `start`: the network to go on from; None: one that knows nothing.
    """
    generator = np.random.default_rng(schedule.seed)
    judges = _draw_judges(schedule, stock)
    usual = _count_iterations(judges, uniform_prior, schedule.cap)
    twin = start or Twin(sizes or Sizes(), seed=schedule.seed)
    rounds: list[list[Example]] = []
    prior: Prior = uniform_prior if start is None else NetworkPrior(start.to_numpy())
    started = perf_counter()
    for number in range(1, schedule.rounds + 1):
        fresh, gains = _play_round(schedule, number, generator, prior, stock)
        if not fresh:
            raise InputError(
                f"episodes: at least one must leave a choice of deployments, got none of "
                f"{schedule.episodes}"
            )
        before = measure_loss(twin, fresh)
        rounds = [*rounds[1 - KEPT_ROUNDS :], fresh] if KEPT_ROUNDS > 1 else [fresh]
        known = [example for each in rounds for example in each]
        losses = fit(twin, known, epochs=schedule.epochs, seed=schedule.seed + number)
        prior = NetworkPrior(twin.to_numpy())
        learned = _count_iterations(judges, prior, schedule.cap)
        tell(
            twin,
            {
                "round": number,
                "episodes": len(gains),
                "examples": len(known),
                "mean_speedup": round(1 + float(np.mean(gains)), 4) if gains else None,
                "loss_before": round(before, 4),
                "loss_first": round(losses[0], 4),
                "loss_last": round(losses[-1], 4),
                **_compare(learned, usual, schedule.cap),
                "seconds": round(perf_counter() - started, 1),
            },
        )
    return twin


def _play_round(
    schedule: SelfPlaySchedule,
    number: int,
    generator: np.random.Generator,
    prior: Prior,
    stock: Stock,
) -> tuple[list[Example], list[float]]:
    """All examples of a round, and the reward of each episode."""
    examples: list[Example] = []
    gains = []
    for episode in range(schedule.episodes):
        scene = draw_scene(generator, TRAINING_SEEDS, stock)
        seed = schedule.seed + number * 1_000_000 + episode
        played = play(scene, prior, iterations=schedule.iterations, seed=seed)
        if played is not None:
            examples += played.examples
            gains.append(played.reward)
    return examples, gains


def _draw_judges(schedule: SelfPlaySchedule, stock: Stock) -> list[Analysis]:
    generator = np.random.default_rng(schedule.seed + 1)
    scenes: list[TrainingScene] = [
        draw_scene(generator, VALIDATION_SEEDS, stock) for _ in range(schedule.validation_scenes)
    ]
    found = [scene.analyse() for scene in scenes]
    return [each for each in found if each.allowed.any(axis=1).all()]


def _count_iterations(judges: Sequence[Analysis], prior: Prior, cap: int) -> list[int | None]:
    return [
        iterations_to_beat(analysis, prior, seed=number, cap=cap)
        for number, analysis in enumerate(judges)
    ]


def _compare(
    learned: Sequence[int | None], usual: Sequence[int | None], cap: int
) -> dict[str, object]:
    """Means over the scenes in which either search came to an end; the other may count as `cap`."""
    ended = [
        (mine or cap, other or cap)
        for mine, other in zip(learned, usual, strict=True)
        if mine is not None or other is not None
    ]
    means = np.mean(ended, axis=0) if ended else np.full(2, np.nan)
    return {
        "validation_scenes": len(learned),
        "beaten": sum(each is not None for each in learned),
        "beaten_uniform": sum(each is not None for each in usual),
        "iterations": round(float(means[0]), 2),
        "iterations_uniform": round(float(means[1]), 2),
    }


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
