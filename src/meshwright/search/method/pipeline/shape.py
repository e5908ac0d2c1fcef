"""Which pipelines are looked at: stages, replicas, microbatches and the devices of each."""

from collections.abc import Iterator, Sequence

import numpy as np

from meshwright.graph.graph import Graph
from meshwright.search.method.pipeline.consecutive import counts_samples, microbatch_choices
from meshwright.search.method.pipeline.microbatch_price import PipelineShape, Prices, StageTeam
from meshwright.search.method.pipeline.scope import PipelineScope

ANY_PIPELINE = PipelineScope()

MAX_STAGE_COUNTS = 12
"""Numbers of stages that are looked at where there are many devices."""
CHUNKS = (2, 3, 4)
"""Stages a device where they are interleaved."""


def shapes(
    prices: Prices,
    num_blocks: int,
    wanted: Sequence[int],
    *,
    keeps_all: bool,
    scope: PipelineScope = ANY_PIPELINE,
) -> Iterator[tuple[PipelineShape, tuple[int, ...]]]:
    """Equal replicas first, then replicas that differ by stage; each with microbatches to try.

    The shape itself has the middle one of them. `wanted`: numbers of microbatches, none: those that
    suit the stages. `keeps_all`: all microbatches are in flight, as where the pipeline ends on the
    devices it begins on.
    """
    graph = prices.instance.graph
    for teams, used in _team_sets(prices, np.bincount(prices.grade_of).tolist(), scope):
        stages = sum(count // team.replicas for team, count in zip(teams, used, strict=True))
        most = max(team.replicas for team in teams)
        if stages > num_blocks or not has_samples(graph, most):
            continue
        choices = [
            each
            for each in wanted or microbatch_choices(graph, stages, most)
            if has_samples(graph, most * each)
        ]
        if choices:
            middle = choices[len(choices) // 2]
            shape = PipelineShape(
                teams=teams, counts=used, microbatches=middle, keeps_all=keeps_all
            )
            yield shape, tuple(choices)


def has_samples(graph: Graph, pieces: int) -> bool:
    """Whether so many pieces of the batch have a sample each."""
    return not counts_samples(graph) or pieces <= graph.batch


def stage_counts(most: int) -> list[int]:
    """All up to twelve, then about as many, evenly on a scale of ratios, with the divisors."""
    if most <= MAX_STAGE_COUNTS:
        return list(range(1, most + 1))
    steps = np.geomspace(1, most, MAX_STAGE_COUNTS).round().astype(int).tolist()
    powers = [2**power for power in range(most.bit_length()) if most % 2**power == 0]
    return sorted({*steps, *powers, most})


def _team_sets(
    prices: Prices, counts: list[int], scope: PipelineScope
) -> Iterator[tuple[tuple[StageTeam, ...], tuple[int, ...]]]:
    """Teams that a split may use, and the devices of each."""
    if len(counts) == 1 and (scope.stages or scope.replicas):
        yield from _limited_sets(counts[0], scope)
        return
    if len(counts) == 1:
        count = counts[0]
        for stages in stage_counts(count):
            replicas = count // stages
            yield (StageTeam(grade=0, replicas=replicas),), (stages * replicas,)
        widths = stage_counts(count)
        for most in [each for each in widths if 1 < each < count]:
            teams = tuple(StageTeam(grade=0, replicas=each) for each in widths if each <= most)
            yield teams, (count,) * len(teams)
        return
    yield from _mixed_sets(prices, counts, scope)


def _limited_sets(
    count: int, scope: PipelineScope
) -> Iterator[tuple[tuple[StageTeam, ...], tuple[int, ...]]]:
    """Equal replicas: the numbers of the scope, and any where it leaves stages or replicas open."""
    for stages in scope.stages or stage_counts(count // min(scope.replicas)):
        for replicas in scope.replicas or stage_counts(count // stages):
            if stages * replicas <= count:
                yield (StageTeam(grade=0, replicas=replicas),), (stages * replicas,)


def _mixed_sets(
    prices: Prices, counts: list[int], scope: PipelineScope
) -> Iterator[tuple[tuple[StageTeam, ...], tuple[int, ...]]]:
    """The fastest grade, the two fastest, ...: equal replicas, and any number of them."""
    seconds = prices.instance.seconds
    total = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)[prices.type_of_grade]
    ranked = sorted(range(len(counts)), key=lambda grade: (float(total[grade]), -grade))
    for last in range(1, len(ranked) + 1):
        chosen = ranked[:last]
        largest = max(counts[grade] for grade in chosen)
        for replicas in scope.replicas or stage_counts(largest):
            able = [grade for grade in chosen if counts[grade] >= replicas]
            if able == chosen or last == len(ranked):
                yield (
                    tuple(StageTeam(grade=grade, replicas=replicas) for grade in able),
                    tuple(counts[grade] // replicas * replicas for grade in able),
                )
        for most in [each for each in stage_counts(largest) if each > 1]:
            pairs = [
                (StageTeam(grade=grade, replicas=each), counts[grade])
                for grade in chosen
                for each in stage_counts(counts[grade])
                if each <= most
            ]
            yield tuple(team for team, _ in pairs), tuple(count for _, count in pairs)
