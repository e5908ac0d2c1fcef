"""Shares of the batch that fit the memory of unequal devices: less where it is missing."""

from collections.abc import Iterator

import numpy as np

from meshwright.graph.graph import Floats
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.menu import balanced_samples, share_out
from meshwright.search.method.deploy.option import GroupOption, Strategy

_ROUNDS = 12
"""Times that shares are cut, at most."""


def fitting_strategies(evaluator: Evaluator) -> Iterator[Strategy]:
    """Replicas on all devices with fewer and fewer samples where memory is missing, until they fit
    or there is no room for the batch; each was simulated.

    Where every device should get what it computes in the same time, small memories may be too small
    for it; then they get less, and the others more.
    """
    analysis = evaluator.analysis
    graph, cluster = analysis.graph, analysis.cluster
    devices = np.arange(cluster.num_devices)
    if not np.isfinite(analysis.seconds[:, cluster.type_of]).all():
        return
    weights = np.maximum(balanced_samples(graph, cluster, devices), 1e-9)
    limits = np.full(len(devices), np.inf)
    places = tuple(range(len(analysis.device_groups)))
    for _ in range(_ROUNDS):
        samples = fill_up(graph.batch, weights, limits)
        if samples is None:
            return
        action = share_out(graph, places, devices, samples, GroupOption.ALL_REDUCE)
        strategy = (action,) * analysis.num_groups
        evaluation = evaluator.evaluate(strategy)
        yield strategy
        if evaluation.fits:
            return
        held = np.zeros(len(devices))
        held[list(action.devices)] = graph.batch * np.array(
            action.shares or [1 / len(action.devices)] * len(action.devices)
        )
        fill = evaluation.feedback.place_peak[analysis.place_of]
        is_over = (fill > 1) & (held > 0)
        # What does not grow with the batch makes this too little a cut, never too large a one.
        cut = np.minimum(np.floor(held / np.maximum(fill, 1.0)), np.ceil(held) - 1)
        limits = np.where(is_over, np.minimum(limits, np.maximum(cut, 0.0)), limits)


def fill_up(batch: float, weights: Floats, limits: Floats) -> Floats | None:
    """The batch in proportion to weights, no share above its limit; None: there is not room."""
    if limits.sum() < batch:
        return None
    samples = np.zeros(len(weights))
    is_open = np.ones(len(weights), dtype=np.bool_)
    while is_open.any():
        left = batch - samples[~is_open].sum()
        samples[is_open] = left * weights[is_open] / weights[is_open].sum()
        over = is_open & (samples > limits)
        if not over.any():
            return samples
        samples[over] = limits[over]
        is_open &= ~over
    return samples
