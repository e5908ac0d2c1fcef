"""What ops cost as part of a pipeline: seconds and bytes of a microbatch on some replicas.

An op that divides the batch works on a replica's rows of a microbatch, others on all rows; updates
run once a step, on the whole batch's gradients. The times are the simulator's; how they overlap is
not known here.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cost.compute import op_seconds
from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Phase, Split
from meshwright.search.instance import Instance, held_bytes
from meshwright.search.method.pipeline.block import Blocks
from meshwright.search.method.pipeline.stage.problem import DeviceKind, SplitProblem, make_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTeam:
    """So many devices of a grade that one stage takes as its replicas."""

    grade: int
    """Number of the devices' grade."""
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """What stages a split may have."""

    teams: tuple[StageTeam, ...]
    counts: tuple[int, ...]
    """Devices of each team's grade that may be used; teams of one grade share them."""
    microbatches: int
    chunks: int = 1
    """Stages a team takes, in turn, where they are interleaved."""
    keeps_all: bool = False
    """Whether a stage runs all microbatches forward before the first runs backward."""

    @property
    def most_stages(self) -> int:
        """No split has more."""
        by_grade: dict[int, int] = {}
        for team, count in zip(self.teams, self.counts, strict=True):
            stages = count // team.replicas
            by_grade[team.grade] = max(by_grade.get(team.grade, 0), stages)
        return self.chunks * sum(by_grade.values())

    def in_flight(self) -> tuple[int, ...]:
        """Microbatches that each stage holds at most, first stage first."""
        stages = self.most_stages
        if self.keeps_all:
            return (self.microbatches,) * stages
        if self.chunks > 1:
            # The first device's warm-up (`program/schedule.py`), and one, spread over its stages.
            width = stages // self.chunks
            most = (self.chunks - 1) * width + 2 * (width - 1) + 1
            return (min(-(-most // self.chunks), self.microbatches),) * stages
        return tuple(min(stages - stage, self.microbatches) for stage in range(stages))


class Prices:
    """Times of the ops of one graph on one cluster.

    Devices of one *grade* are of one type and hold as much; what is said of one holds for all.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        graph = instance.graph
        usable = usable_bytes(graph, instance.cluster)
        grades = sorted(set(zip(instance.type_of.tolist(), usable.tolist(), strict=True)))
        numbers = {grade: number for number, grade in enumerate(grades)}
        pairs = zip(instance.type_of.tolist(), usable.tolist(), strict=True)
        self.grade_of: Ints = np.array([numbers[pair] for pair in pairs], dtype=np.int32)
        """Of each device."""
        self.type_of_grade = [kind for kind, _ in grades]
        self.memory_bytes: Floats = np.array([size for _, size in grades])
        """By grade, what a device may hold."""
        self.forward = graph.phase == Phase.FORWARD
        self.backward = graph.phase == Phase.BACKWARD
        self.update = graph.phase == Phase.UPDATE
        self.saved_bytes: Floats = held_bytes(graph) - graph.state_bytes

    def _at(self, kind: int, samples: float) -> Floats:
        cluster = self.instance.cluster
        return op_seconds(self.instance.graph, cluster.types[cluster.type_names[kind]], samples)

    def op_seconds(self, team: StageTeam, microbatches: int) -> Floats:
        """Of each op on one replica: for one microbatch, or once where it is an update."""
        graph = self.instance.graph
        samples = graph.batch / microbatches
        kind = self.type_of_grade[team.grade]
        shared = self._at(kind, samples / team.replicas)
        seconds = np.where(graph.split == Split.NONE, self._at(kind, samples), shared)
        return np.where(self.update, self._at(kind, graph.batch), seconds)

    def load_seconds(self, team: StageTeam, microbatches: int, seconds_per_byte: float) -> Floats:
        """Of each op what it adds to its stage's time a microbatch.

        Updates and the all-reduce of gradients over R replicas, 2 (R - 1) / R of their bytes, come
        once a step and count a microbatch's part.
        """
        graph = self.instance.graph
        seconds = self.op_seconds(team, microbatches)
        sync = 2 * (team.replicas - 1) / team.replicas * graph.parameter_bytes * seconds_per_byte
        once = np.where(self.update, seconds, 0.0) + np.where(self.forward, sync, 0.0)
        return np.where(self.update, 0.0, seconds) + once / microbatches

    def split_problem(
        self,
        blocks: Blocks,
        shape: PipelineShape,
        *,
        seconds_per_byte: float,
        memory_share: float = 1.0,
    ) -> SplitProblem:
        """The problem of cutting blocks into stages of this shape.

        `memory_share`: of their memory what devices may fill by this count, which leaves out what
        is received, gradients and workspace.
        """
        graph = self.instance.graph
        fewest = min(team.replicas for team in shape.teams)
        kinds = [
            DeviceKind(
                name=f"{team.grade}x{team.replicas}",
                count=count * shape.chunks,
                seconds=blocks.add_up(
                    self.load_seconds(team, shape.microbatches, seconds_per_byte)
                ),
                memory_bytes=memory_share * float(self.memory_bytes[team.grade]) / shape.chunks,
                wire_share=1 / team.replicas,
                width=team.replicas,
                pool=f"grade {team.grade}",
            )
            for team, count in zip(shape.teams, shape.counts, strict=True)
        ]
        flights = shape.in_flight()
        # One a device is asked for, which is more than there can be stages of several replicas.
        more = sum({kind.pool: kind.count for kind in kinds}.values()) - len(flights)
        return make_problem(
            kinds=kinds,
            num_bytes=blocks.add_up(graph.state_bytes),
            saved_bytes=blocks.add_up(self.saved_bytes / (shape.microbatches * fewest)),
            in_flight=(*flights, *flights[-1:] * more),
            edges=blocks.edges,
            wires=[
                (pins, bytes_ * seconds_per_byte / shape.microbatches)
                for pins, bytes_ in blocks.wires
            ],
        )
