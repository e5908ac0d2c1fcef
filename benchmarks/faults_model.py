"""The model that `faults.py` trains, and the notes that its ranks leave on what they are at.

Ranks import this module to build the model; what they do afterwards is noted in a file of each
rank, in the folder that an environment variable names.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from meshwright.execute import resume
from meshwright.execute.trainer import Trainer

NOTES = "FAULTS_NOTES"
BATCH, LENGTH, VOCABULARY, WIDTH, BLOCKS = 32, 16, 64, 64, 4

T = TypeVar("T")


class Network(nn.Module):
    """Residual blocks on words, with dropout: random numbers must go on as they would have."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 4 * WIDTH),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Linear(4 * WIDTH, WIDTH),
            )
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of guessing each next word."""
        x = self.words(ids)
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def factory() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and a batch."""
    if NOTES in os.environ:
        _take_notes(Path(os.environ[NOTES]))
    return Network(), (torch.randint(0, VOCABULARY, (BATCH, LENGTH)),)


def samples() -> list[tuple[torch.Tensor]]:
    """Other data than the one batch: 400 samples, always the same."""
    draw = torch.Generator().manual_seed(1)
    words = torch.randint(0, VOCABULARY, (400, LENGTH), generator=draw)
    return [(row,) for row in words]


def _take_notes(folder: Path) -> None:
    """From now on, note when steps and checkpoints begin and end."""
    rank = os.environ["RANK"]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    file = os.open(folder / f"rank-{rank}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(phase: str, step: int) -> None:
        line = {"time": time.time(), "attempt": attempt, "phase": phase, "step": step}
        os.write(file, json.dumps(line).encode() + b"\n")

    def noted(action: Callable[..., T], phase: str, step: Callable[[Any], int]) -> Any:
        def run(*args: Any, **kwargs: Any) -> T:
            number = step(args)
            note(phase, number)
            result = action(*args, **kwargs)
            note(f"after {phase}", number)
            return result

        return run

    note("trace", 0)
    Trainer.step = noted(Trainer.step, "step", lambda args: args[0].num_steps + 1)  # type: ignore[method-assign]
    resume.save_checkpoint = noted(resume.save_checkpoint, "checkpoint", lambda args: args[1])  # type: ignore[attr-defined]
