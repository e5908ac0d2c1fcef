"""How the samples of a batch lie in a tensor: next to each other, or apart in several blocks.

A dimension that stands for a batch and something else, as after a reshape, has either all of a
sample in a row, or, where time came before the batch, one block for every moment with all samples
in it. Shapes do not tell, but views of the same memory do in which the batch is by itself. Knows
nothing of plans.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel
from meshwright.execute.traced import TracedStep


@dataclass(frozen=True, slots=True)
class Growth:
    """A dimension that grows with the batch."""

    dim: int
    times: int
    """How many of its entries are of one sample."""
    stride: int


def count_blocks(one: TracedStep, two: TracedStep) -> dict[int, int]:
    """By version that grows, for steps on two numbers of samples: its blocks, one where unknown."""
    if one.samples < two.samples:
        one, two = two, one  # strides of a single sample do not tell where the next would be
    grown = {
        version: growth
        for version, (small, large) in enumerate(zip(one.layouts, two.layouts, strict=True))
        if (growth := find_growth(small.shape, large.shape, small.stride, one.samples, two.samples))
    }
    steps = {version: each.stride for version, each in grown.items() if each.times == 1}
    uses = list(_uses(one, two))
    for kernel, views in uses:
        for version, view in views:
            if view.times == 1 and version in grown:
                steps.setdefault(version, view.stride)
        _spread(kernel, views, grown, steps)
    for kernel, views in reversed(uses):
        _spread(kernel, views, grown, steps)
    return {
        version: _blocks(each, steps.get(version, each.times * each.stride))
        for version, each in grown.items()
    }


def find_growth(
    small: tuple[int, ...], large: tuple[int, ...], stride: tuple[int, ...], one: int, two: int
) -> Growth | None:
    """The dimension in which two shapes differ, for so many samples each; None: they are equal."""
    for dim, (size, other) in enumerate(zip(small, large, strict=True)):
        if size != other:
            times = size // one
            is_whole = size == times * one and other == times * two
            return Growth(dim, times if is_whole else 1, stride[dim])
    return None


def _blocks(growth: Growth, step: int) -> int:
    """From the distance in memory from one sample to the next."""
    entries = step // growth.stride if growth.stride else 0
    is_possible = entries > 0 and step % growth.stride == 0 and growth.times % entries == 0
    return growth.times // entries if is_possible else 1


Views = list[tuple[int, Growth]]
"""Versions that a kernel reads, and how what it sees of them grows."""


def _uses(one: TracedStep, two: TracedStep) -> Iterator[tuple[Kernel, Views]]:
    nodes = [{node.name: node for node in step.trace.graph.nodes} for step in (one, two)]
    for kernel, other in zip(one.ledger.kernels, two.ledger.kernels, strict=True):
        views: Views = []
        for (name, version), twin in zip(kernel.reads.items(), other.reads, strict=True):
            small, large = _value(nodes[0].get(name)), _value(nodes[1].get(twin))
            if small is None or large is None or small[0] == large[0]:
                continue
            growth = find_growth(small[0], large[0], small[1], one.samples, two.samples)
            if growth is not None and growth.stride:
                views.append((version, growth))
        yield kernel, views


def _value(node: Node | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    value = None if node is None else node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    return tuple(value.shape), tuple(value.stride())


def _spread(kernel: Kernel, views: Views, grown: dict[int, Growth], steps: dict[int, int]) -> None:
    """What a kernel reads and makes in equally long dimensions lies alike."""
    found: dict[int, int] = {}
    """By entries of a sample: how many of them lie together."""
    for version, view in views:
        if version in steps and steps[version] % view.stride == 0:
            found.setdefault(view.times, steps[version] // view.stride)
    for version in kernel.made:
        if version in grown and version in steps:
            found.setdefault(grown[version].times, steps[version] // grown[version].stride)
    for version, view in views:
        if version in grown and version not in steps and view.times in found:
            steps[version] = found[view.times] * view.stride
    for version in kernel.made:
        growth = grown.get(version)
        if growth is not None and version not in steps and growth.times in found:
            steps[version] = found[growth.times] * growth.stride
