"""Which pipelines are looked at: stages, replicas, microbatches and the devices of each.

Devices come in the two usual orders, and by the best mapping that is found. A slot is what one team
of devices runs: a stage, or every stage that wraps around to it. Knows how slots become a mapping
problem; mapping itself is `search/method/pipeline/map`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from meshwright.array import Floats, Ints, sum_by
from meshwright.graph.graph import Graph
from meshwright.search.method.pipeline.candidate import Homes, StageCut
from meshwright.search.method.pipeline.consecutive import counts_samples, microbatch_choices
from meshwright.search.method.pipeline.map.parmesan import parmesan_mapping
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem, find_reason
from meshwright.search.method.pipeline.map.solve import solve_mapping
from meshwright.search.method.pipeline.map.start import consecutive_mapping, p2p_first_mapping
from meshwright.search.method.pipeline.microbatch_price import PipelineShape, Prices, StageTeam
from meshwright.search.method.pipeline.scope import PipelineScope, StageMapping

ANY_PIPELINE = PipelineScope()

MAX_STAGE_COUNTS = 12
"""Numbers of stages that are looked at where there are many devices."""
CHUNKS = (2, 3, 4)
"""Stages a device where they are interleaved."""

_PLAIN: Mapping[StageMapping, Callable[[MappingProblem], Assignment | None]] = MappingProxyType(
    {
        StageMapping.CONSECUTIVE: consecutive_mapping,
        StageMapping.P2P_FIRST: p2p_first_mapping,
    }
)
_PUBLISHED = (StageMapping.P2P_ONLY, StageMapping.ALL_REDUCE_ONLY, StageMapping.ENSEMBLE)
"""In the order in which `parmesan_mapping` returns them."""


def slots_of(num_stages: int, num_slots: int) -> Ints:
    """The slot of each stage: in turn, so that a stage after the last slot is the first's again."""
    return (np.arange(num_stages) % num_slots).astype(np.int32)


def mapping_problem(
    prices: Prices, cut: StageCut, teams: Sequence[StageTeam], flights: Sequence[float]
) -> MappingProblem:
    """Slots of teams onto the cluster's devices; a team's are of its grade.

    `flights`: of each stage what it holds of the batch at once.
    """
    instance = prices.instance
    graph, cluster = instance.graph, instance.cluster
    slot_of_stage = slots_of(cut.num_stages, len(teams))
    slot_of_op = slot_of_stage[cut.stage_of_op]
    replicas = np.array([team.replicas for team in teams], dtype=np.int32)
    share = np.asarray(flights)[cut.stage_of_op] / replicas[slot_of_op]
    held = sum_by(slot_of_op, graph.state_bytes + prices.saved_bytes * share, len(teams))
    seconds = np.full((len(teams), len(prices.memory_bytes)), np.inf)
    for slot, team in enumerate(teams):
        seconds[slot, team.grade] = prices.op_seconds(team, 1)[slot_of_op == slot].sum()
    return MappingProblem(
        seconds=seconds,
        replicas_of_slot=replicas,
        wire_bytes=_wire_bytes(cut, slot_of_stage, len(teams)),
        sync_bytes=sum_by(slot_of_op, graph.parameter_bytes, len(teams)),
        # The count of memory is a guide: what is too much for all devices is left to the trial.
        memory_bytes=np.minimum(held, cluster.memory_bytes.max()),
        type_of_device=prices.grade_of,
        device_memory_bytes=cluster.memory_bytes,
        bandwidth=cluster.bandwidth,
    )


def _wire_bytes(cut: StageCut, slot_of_stage: Ints, num_slots: int) -> Floats:
    """Slot x slot: what two exchange, both ways."""
    total = np.zeros((num_slots, num_slots))
    for table in cut.wires:
        np.add.at(total, (slot_of_stage[:, None], slot_of_stage[None, :]), table)
    np.fill_diagonal(total, 0.0)
    return total + total.T


def chosen_homes(
    problem: MappingProblem, num_stages: int, mapping: StageMapping, budget_seconds: float
) -> list[Homes]:
    """The homes by a mapping; the two plain ones where it is searched for, later."""
    if mapping is StageMapping.SEARCHED:
        return plain_homes(problem, num_stages)
    if mapping in _PLAIN:
        found = _PLAIN[mapping](problem)
        return [] if found is None else [_homes(problem, found, num_stages)]
    if find_reason(problem):
        return []
    published = parmesan_mapping(problem, budget_seconds=budget_seconds)
    chosen = published[_PUBLISHED.index(mapping)].assignment
    return [_homes(problem, chosen, num_stages)]


def plain_homes(problem: MappingProblem, num_stages: int) -> list[Homes]:
    """Replicas side by side, and stages side by side."""
    found = (consecutive_mapping(problem), p2p_first_mapping(problem))
    homes = [_homes(problem, each, num_stages) for each in found if each is not None]
    return list(dict.fromkeys(homes))


def mapped_homes(
    problem: MappingProblem, num_stages: int, *, seed: int, budget_seconds: float
) -> list[Homes]:
    """The best mapping that is found in that time; none where nothing fits."""
    answer = solve_mapping(problem, seed=seed, budget_seconds=budget_seconds)
    if answer.assignment is None:
        return []
    return [_homes(problem, answer.assignment, num_stages)]


def _homes(problem: MappingProblem, assignment: Assignment, num_stages: int) -> Homes:
    by_slot = assignment.devices(problem)
    return tuple(by_slot[slot] for slot in slots_of(num_stages, len(by_slot)).tolist())


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
