"""What is known of groups, devices and actions before anything is decided, as numbers.

Everything is a ratio, to the step of data parallelism, to the mean or to the whole, so that models
and clusters that were never seen look like those that were. Of a size near one for a network.
"""

import numpy as np

from meshwright.graph.graph import Bools, Floats
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.estimate import ActionEstimate
from meshwright.search.method.deploy.option import GroupAction, GroupOption

_OVERLAPPED = 2 / 3
"""Of a step's compute, the backward ops, beside which gradients travel."""
_STEEP = 100.0
"""How much of a step is little: below a hundredth of it differences fade."""
_MOST = 1e6
"""Larger ratios count as this."""
_MOST_LOG = 4.0
"""Logarithms of ratios are cut off here."""


def squash(ratio: Floats) -> Floats:
    """Ratios of zero and more: steep where they are small, one at one."""
    clean = np.nan_to_num(np.maximum(ratio, 0.0), nan=0.0, posinf=_MOST)
    squashed: Floats = np.log1p(_STEEP * np.minimum(clean, _MOST)) / np.log1p(_STEEP)
    return squashed


def squash_signed(ratio: Floats) -> Floats:
    """The same of ratios below zero, too."""
    clean = np.nan_to_num(ratio, nan=0.0, posinf=_MOST, neginf=-_MOST)
    return np.sign(clean) * squash(np.abs(clean))


def cut_logs(ratio: Floats) -> Floats:
    """The logarithms of positive ratios, cut off on both sides."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.nan_to_num(np.log(ratio), nan=0.0, posinf=_MOST_LOG, neginf=-_MOST_LOG)
    cut: Floats = np.clip(logs, -_MOST_LOG, _MOST_LOG)
    return cut


def _parts(values: Floats) -> Floats:
    """Of the whole; nothing of nothing."""
    total = float(values.sum())
    return values / total if total > 0 else np.zeros_like(values)


def describe_action(action: GroupAction, analysis: Analysis) -> list[float]:
    """Six numbers: its option, whether shares are unequal, which part of the devices it has."""
    options = [float(action.option is option) for option in GroupOption]
    return [*options, float(bool(action.shares)), len(action.devices) / len(analysis.place_of)]


def describe_ops(analysis: Analysis, estimate: ActionEstimate) -> Floats:
    """By group of ops: times, gradients, memory, tensors in and out, its place in the order."""
    step = estimate.step_seconds
    is_finite = np.isfinite(analysis.seconds)
    seconds = np.where(is_finite, analysis.seconds, 0.0)
    mean = seconds.sum(axis=1) / np.maximum(is_finite.sum(axis=1), 1)
    fixed = np.where(is_finite, analysis.fixed_seconds, 0.0).sum(axis=1)
    fastest = np.where(is_finite, analysis.seconds, np.inf).min(axis=1)
    gradients = _parts(analysis.gradient_bytes)
    room = float(np.mean(analysis.cluster.memory_bytes))
    slowest = float(estimate.byte_seconds.max())
    return np.stack(
        [
            squash(_parts(mean)),
            squash(estimate.group_seconds[:, 0] / step),
            cut_logs(seconds.max(axis=1) / np.maximum(fastest, 1e-30)),
            fixed / np.maximum(seconds.sum(axis=1), 1e-30),
            squash(gradients * estimate.sync_seconds[0] / step),
            analysis.gradient_bytes > 0,
            squash(gradients),
            squash(analysis.state_bytes / room),
            squash(analysis.held_bytes / room),
            squash(analysis.between.sum(axis=0) * slowest / step),
            squash(analysis.between.sum(axis=1) * slowest / step),
            np.arange(analysis.num_groups) / analysis.num_groups,
            ~is_finite.all(axis=1),
        ],
        axis=1,
    ).astype(np.float64)


def describe_places(analysis: Analysis, estimate: ActionEstimate) -> Floats:
    """By device group: how many, how fast, how full, how well connected."""
    step = estimate.step_seconds
    kinds = np.array([place.type for place in analysis.device_groups])
    sizes = np.array([len(place.devices) for place in analysis.device_groups])
    whole = np.where(np.isfinite(analysis.seconds), analysis.seconds, 0.0).sum(axis=0)
    speed = 1.0 / np.maximum(whole[kinds], 1e-30)
    mean = float((speed * sizes).sum() / sizes.sum())
    gradients = float(analysis.gradient_bytes.sum())
    apart = np.where(np.eye(len(sizes), dtype=np.bool_), np.nan, estimate.byte_seconds)
    has_others = len(sizes) > 1
    nearest = np.nanmin(apart, axis=1) if has_others else np.zeros(1)
    farthest = np.nanmax(apart, axis=1) if has_others else np.zeros(1)
    return np.stack(
        [
            sizes / sizes.sum(),
            np.log2(sizes) / 3,
            cut_logs(speed / mean),
            cut_logs(speed / speed.max()),
            squash(estimate.place_fill),
            squash(estimate.inner_sync_seconds / step),
            squash(gradients * nearest / step),
            squash(gradients * farthest / step),
            sizes == 1,
            (kinds[:, None] == kinds[None, :]).mean(axis=1),
            np.isfinite(analysis.seconds[:, kinds]).all(axis=0),
        ],
        axis=1,
    ).astype(np.float64)


def describe_pairs(analysis: Analysis, estimate: ActionEstimate) -> Floats:
    """Device group x device group: how slow their link is, whether they are of one type or host."""
    groups, devices = analysis.device_groups, analysis.cluster.devices
    gradients = float(analysis.gradient_bytes.sum())
    kinds = np.array([place.type for place in groups])
    hosts = np.unique([devices[p.devices[0]].host for p in groups], return_inverse=True)[1]
    return np.stack(
        [
            squash(gradients * estimate.byte_seconds / estimate.step_seconds),
            kinds[:, None] == kinds[None, :],
            hosts[:, None] == hosts[None, :],
        ],
        axis=2,
    ).astype(np.float64)


def describe_tensors(analysis: Analysis, estimate: ActionEstimate) -> tuple[Floats, Floats]:
    """Group x group: tensors from, to, and of both the part of all; and bytes both ways."""
    slowest = float(estimate.byte_seconds.max())
    seconds = squash(analysis.between * slowest / estimate.step_seconds)
    both = analysis.between + analysis.between.T
    return np.stack([seconds.T, seconds, squash(_parts(both))], axis=2), both


def describe_actions(analysis: Analysis, estimate: ActionEstimate) -> Floats:
    """By action: what the whole model costs with it, relative to data parallelism."""
    step = estimate.step_seconds
    compute, sync = estimate.compute_seconds, estimate.sync_seconds
    overlapped = np.maximum(compute, sync + (1 - _OVERLAPPED) * compute)
    possible = overlapped[analysis.allowed.all(axis=0) & (estimate.fill <= 1)]
    best = float(possible.min()) if len(possible) else float(overlapped.min())
    hosts = [
        len({analysis.cluster.devices[device].host for device in action.devices})
        for action in analysis.actions
    ]
    kinds = [
        len(set(analysis.cluster.type_of[list(action.devices)].tolist()))
        for action in analysis.actions
    ]
    costs = [
        cut_logs(compute / max(compute[0], 1e-30)),
        cut_logs((compute + sync) / max(compute[0] + sync[0], 1e-30)),
        cut_logs(overlapped / max(overlapped[0], 1e-30)),
        cut_logs(overlapped / max(best, 1e-30)),
        squash(np.maximum(overlapped - best, 0.0) / step),
        squash_signed((overlapped - overlapped[0]) / step),
        squash(compute / step),
        squash(sync / step),
        squash(estimate.fill),
        estimate.fill > 1,
        estimate.members.mean(axis=1),
        np.array(hosts) == 1,
        np.array(kinds) == 1,
        overlapped <= best * (1 + 1e-9),
    ]
    return np.stack(costs, axis=1).astype(np.float64)


def find_alike(analysis: Analysis) -> Bools:
    """Action x action: whether tensors stay where they are from one to the other."""
    keys = [(action.devices, action.shares) for action in analysis.actions]
    names = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    code = np.array([names[key] for key in keys])
    alike: Bools = code[:, None] == code[None, :]
    return alike
