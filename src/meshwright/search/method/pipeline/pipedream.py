"""PipeDream's partitioner (Narayanan et al., SOSP 2019, section 3.1): a dynamic programme.

A(i -> j, m), the time a minibatch of the slowest stage of the best pipeline of blocks i to j on m
devices, is the smallest over the last stage's first block and replicas m' of
    max( A(i -> s, m - m'), 2 a_s / B, T(s + 1 -> j, m') )
with T(i -> j, m) = 1/m max( compute, 2 (m - 1) w / B ) for one stage on m replicas: w its weights,
a_s the activations after block s, B the bandwidth. Levels of a network nest: a device of one level
is a whole group of the level below, and compute is that level's A. Chains of more than 256 blocks
are coarsened first; with more than `_MAX_WORK` combinations, further.

The authors' program (optimizer_graph_hierarchical.py) counts otherwise than their paper: compute
and synchronisation add up, synchronisation is 4 (m - 1) w / (m B) and divided by m once more, and
activations cost nothing unless a compression ratio is given. `as_published` does the same, to be
held against their published results.

The plan runs the stages on consecutive devices under 1F1B with a flush; microbatches are chosen
by simulation. Identical devices are assumed, as in the paper: of several types the slowest counts.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.level import levels
from meshwright.compiled import compiled, inlined
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import Instance
from meshwright.search.method.pipeline.candidate import Candidate
from meshwright.search.method.pipeline.chain import MAX_BLOCKS, Chain, chain_candidate, make_chain
from meshwright.search.method.pipeline.consecutive import (
    Trial,
    counts_samples,
    equal_pipelines,
    microbatch_choices,
    open_pipeline,
    pipeline_devices,
)
from meshwright.search.problem import Problem

USUAL = ("consecutive", "pipedream")
"""Origins of the candidates that are made here."""

_MAX_WORK = 4e8
"""Combinations of the dynamic programme, about a nanosecond each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of the network: so many groups of the level below, joined at this rate."""

    width: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A pipeline: where stages end and the devices of each, and its objective."""

    seconds: float
    ends: tuple[int, ...]
    devices: tuple[Ints, ...]
    """Positions, tier by tier, to be read in the order of the cluster's devices."""


def pipedream(problem: Problem, attempt: Attempt) -> None:
    """PipeDream's stages and replicas, with the best number of microbatches."""
    if (devices := open_pipeline(problem, attempt)) is None:
        return
    trial = Trial(problem)
    chain, found, homes = best_pipeline(problem.instance, devices)
    trial.try_stages(chain, found.ends, homes)
    trial.statistics["objective_seconds"] = found.seconds
    trial.conclude(attempt)


def best_pipeline(instance: Instance, devices: Ints) -> tuple[Chain, Partition, list[Ints]]:
    """The best pipeline on these devices, and the devices of each of its stages."""
    tiers, order = find_tiers(instance.cluster, devices)
    chain = make_chain(instance, np.unique(instance.type_of[devices]).tolist(), max_blocks(tiers))
    found = partition_chain(chain, tiers)
    return chain, found, [order[each] for each in found.devices]


def find_tiers(cluster: Cluster, devices: Ints) -> tuple[tuple[Tier, ...], Ints]:
    """The network's levels where they are regular, else one at the least bandwidth.

    Also the devices in an order in which each group's stand together.
    """
    if len(devices) == 1:
        return (Tier(width=1, bytes_per_second=math.inf),), devices
    if len(devices) == cluster.num_devices:
        found = levels(cluster)
        sizes = [{len(group) for group in level.groups} for level in found]
        if all(len(each) == 1 for each in sizes):
            members = [each.pop() for each in sizes]
            widths = [
                size // inner for size, inner in zip(members, [1, *members[:-1]], strict=True)
            ]
            rates = [level.bytes_per_second for level in found]
            order = devices
            for level in reversed(found[:-1]):  # stable: inner groups stay together
                label = np.empty(cluster.num_devices, dtype=np.int64)
                for number, group in enumerate(level.groups):
                    label[list(group)] = number
                order = order[np.argsort(label[order], kind="stable")]
            pairs = zip(widths, rates, strict=True)
            return tuple(Tier(width=w, bytes_per_second=rate) for w, rate in pairs), order
    slowest = float(cluster.bandwidth[np.ix_(devices, devices)].min())
    return (Tier(width=len(devices), bytes_per_second=slowest),), devices


def max_blocks(tiers: Sequence[Tier]) -> int:
    """How many blocks keep the dynamic programme within `_MAX_WORK`."""
    blocks = MAX_BLOCKS
    while blocks > 8 and _work(tiers, blocks) > _MAX_WORK:
        blocks //= 2
    return blocks


def _work(tiers: Sequence[Tier], blocks: int) -> float:
    inner = sum(blocks**3 / 6 * tier.width**2 / 2 for tier in tiers[:-1])
    return inner + blocks**2 / 2 * tiers[-1].width ** 2 / 2


def partition_chain(
    chain: Chain, tiers: Sequence[Tier], *, as_published: bool = False
) -> Partition:
    """The best pipeline of a chain on nested levels, each used in full."""
    blocks = chain.num_blocks
    sums = np.concatenate(([0.0], np.cumsum(chain.seconds)))
    inner = sums[None, 1:] - sums[:-1, None]  # inner[i, j]: blocks i to j on one device
    weights = np.concatenate(([0.0], np.cumsum(chain.parameter_bytes)))
    tables = []
    within = 1
    for number, tier in enumerate(tiers):
        is_final = number == len(tiers) - 1
        shape = (1 if is_final else blocks, blocks, tier.width)
        best = np.full(shape, np.inf)
        split, replicas = np.full(shape, -1, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        _solve_level(
            np.ascontiguousarray(inner), weights, chain.cut_bytes, tier.bytes_per_second, within,
            as_published, best, split, replicas,
        )  # fmt: skip
        tables.append((split, replicas))
        inner, within = best[:, :, -1], within * tier.width
    stages = _expand(tables, len(tiers), 0, blocks - 1, np.arange(within)[None, :])
    return Partition(
        seconds=float(inner[0, -1]),
        ends=tuple(end + 1 for end, _ in stages),
        devices=tuple(devices for _, devices in stages),
    )


def _expand(
    tables: Sequence[tuple[Ints, Ints]],
    level: int,
    first: int,
    last: int,
    replicas: npt.NDArray[np.int64],
) -> list[tuple[int, Ints]]:
    """Last block and devices of every stage; `replicas` are equal groups of this level, as rows."""
    if level == 0:
        return [(last, replicas.ravel().astype(np.int32))]
    split, counts = tables[level - 1]
    left = split.shape[2]
    groups = replicas.reshape(len(replicas), left, -1)
    stages: list[tuple[int, Ints]] = []
    while True:
        row = first if len(split) > 1 else 0
        before, used = int(split[row, last, left - 1]), int(counts[row, last, left - 1])
        members = groups[:, left - used : left].reshape(len(replicas) * used, -1)
        begin = first if before < 0 else before + 1
        stages = _expand(tables, level - 1, begin, last, members) + stages
        if before < 0:
            return stages
        last, left = before, left - used


@compiled
def _solve_level(
    inner: Any, weights: Any, cut_bytes: Any, rate: float, within: int, as_published: bool,
    best: Any, split: Any, replicas: Any,
) -> None:  # fmt: skip
    rows, blocks, width = best.shape
    for i in range(rows):
        for m in range(1, width + 1):
            for j in range(i, blocks):
                size = weights[j + 1] - weights[i]
                found = _stage_seconds(inner[i, j], size, m, rate, within, as_published)
                at, count = -1, m
                for s in range(i, j):
                    passing = 0.0 if as_published else 2.0 * cut_bytes[s] / rate
                    if passing >= found:
                        continue
                    size = weights[j + 1] - weights[s + 1]
                    for k in range(1, m):
                        before = max(best[i, s, m - k - 1], passing)
                        if before < found:
                            own = _stage_seconds(inner[s + 1, j], size, k, rate, 1, as_published)
                            if max(before, own) < found:
                                found, at, count = max(before, own), s, k
                best[i, j, m - 1] = found
                split[i, j, m - 1] = at
                replicas[i, j, m - 1] = count


@inlined
def _stage_seconds(
    compute: float, size: float, m: int, rate: float, within: int, as_published: bool
) -> float:
    """Time a minibatch of one stage on m replicas."""
    if as_published:
        return (compute + 4.0 * (m - 1) * size / (rate * m) / within) / m
    return max(compute, 2.0 * (m - 1) * size / rate) / m


def usual_candidates(instance: Instance, wanted: Sequence[int]) -> Iterator[Candidate]:
    """What the two methods try; `wanted`: numbers of microbatches, none: those that suit."""
    devices = pipeline_devices(instance)
    if not len(devices):
        return
    for chain, ends, homes in equal_pipelines(instance, devices):
        yield from _stages(instance, chain, ends, homes, wanted, "consecutive")
    chain, found, homes = best_pipeline(instance, devices)
    yield from _stages(instance, chain, found.ends, homes, wanted, "pipedream")


def _stages(
    instance: Instance,
    chain: Chain,
    ends: Sequence[int],
    homes: Sequence[npt.NDArray[np.integer]],
    wanted: Sequence[int],
    origin: str,
) -> Iterator[Candidate]:
    graph = instance.graph
    if counts_samples(graph):
        homes = [each[: int(graph.batch)] for each in homes]
    replicas = max(map(len, homes))
    first = chain_candidate(graph, chain, ends, homes, 1, origin)
    for count in wanted or microbatch_choices(graph, len(ends), replicas):
        if not counts_samples(graph) or count * replicas <= graph.batch:
            yield replace(first, microbatches=count)
