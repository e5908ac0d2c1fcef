"""What the zoo's own models minimise. They take labels and return the loss, or scores without."""

import torch
from torch.nn import functional

IGNORED_LABEL = 255
"""Pixels without a class, as Cityscapes and ADE20K mark them."""


def classification_loss(
    scores: torch.Tensor, labels: torch.Tensor | None, *, smoothing: float = 0.0
) -> torch.Tensor:
    """Mean cross entropy of scores over the last dim; the scores themselves without labels."""
    if labels is None:
        return scores
    return functional.cross_entropy(
        scores.flatten(0, -2), labels.flatten(), label_smoothing=smoothing
    )


def segmentation_loss(scores: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    """Mean cross entropy over pixels, of scores with classes in dim 1."""
    if labels is None:
        return scores
    return functional.cross_entropy(scores, labels, ignore_index=IGNORED_LABEL)
