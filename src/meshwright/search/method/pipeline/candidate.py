"""A pipeline that may be tried: its stages, their devices, the schedule. Knows nothing of times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.array import Bools, Floats, Ints, marked, sum_by
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind

Homes = tuple[tuple[int, ...], ...]
"""Of each stage its devices, one a replica."""
Key = tuple[bytes, Homes, str, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class StageCut:
    """The ops of a graph divided into stages, none of them empty."""

    graph: Graph
    stage_of_op: Ints
    num_stages: int

    @staticmethod
    def of(graph: Graph, stage_of_op: Ints) -> "StageCut":
        """Stages are numbered anew, without gaps."""
        numbers, stage = np.unique(stage_of_op, return_inverse=True)
        return StageCut(graph=graph, stage_of_op=stage.astype(np.int32), num_stages=len(numbers))

    @cached_property
    def key(self) -> bytes:
        """Equal for equal cuts."""
        return self.stage_of_op.tobytes()

    @cached_property
    def ops(self) -> tuple[tuple[str, ...], ...]:
        """The names of each stage's ops."""
        names = self.graph.op_names
        found: list[list[str]] = [[] for _ in range(self.num_stages)]
        for op, stage in enumerate(self.stage_of_op.tolist()):
            found[stage].append(names[op])
        return tuple(map(tuple, found))

    @cached_property
    def wires(self) -> tuple[Floats, Floats]:
        """Stage x stage, from row to column: bytes that forward and that backward actions await."""
        graph, stage = self.graph, self.stage_of_op
        source = stage[graph.tensor_source[graph.use_tensor]]
        target = stage[graph.use_op]
        moves = np.flatnonzero(source != target)
        is_forward = graph.phase[graph.use_op[moves]] == Phase.FORWARD
        # What forward has brought backward need not bring again.
        order = moves[np.argsort(~is_forward, kind="stable")]
        code = graph.use_tensor[order].astype(np.int64) * self.num_stages + target[order]
        first = order[np.unique(code, return_index=True)[1]]
        size = graph.tensor_bytes[graph.use_tensor[first]]
        awaits_forward = graph.phase[graph.use_op[first]] == Phase.FORWARD
        tables = []
        for chosen in (awaits_forward, ~awaits_forward):
            table = np.zeros((self.num_stages, self.num_stages))
            np.add.at(table, (source[first[chosen]], target[first[chosen]]), size[chosen])
            tables.append(table)
        return tables[0], tables[1]

    @cached_property
    def returns(self) -> Bools:
        """Stage x stage: whether backward of the column reads what backward of the row makes."""
        graph, stage = self.graph, self.stage_of_op
        source = graph.tensor_source[graph.use_tensor]
        is_back = (graph.phase[source] == Phase.BACKWARD) & (
            graph.phase[graph.use_op] == Phase.BACKWARD
        )
        code = stage[source[is_back]] * self.num_stages + stage[graph.use_op[is_back]]
        return marked(self.num_stages**2, code).reshape(self.num_stages, self.num_stages)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A pipeline as it is searched: its stages, their devices and its schedule."""

    cut: StageCut
    homes: Homes
    kind: ScheduleKind
    microbatches: int
    origin: str = ""
    """Where it comes from, for people."""

    @property
    def key(self) -> Key:
        """Equal for equal plans."""
        return self.cut.key, self.homes, str(self.kind), self.microbatches

    def plan(self, cluster: Cluster) -> Plan:
        """With names in place of numbers."""
        names = [device.name for device in cluster.devices]
        parts = tuple(
            Part(ops=ops, devices=tuple(names[each] for each in home))
            for ops, home in zip(self.cut.ops, self.homes, strict=True)
        )
        schedule = Schedule(kind=self.kind, microbatches=self.microbatches)
        return Plan(parts=parts, schedule=schedule)


def suited_kinds(
    num_stages: int, homes: Sequence[tuple[int, ...]], microbatches: int
) -> tuple[ScheduleKind, ...]:
    """The schedules that such stages can run and that differ."""
    if len({device for home in homes for device in home}) == sum(map(len, homes)):
        if num_stages == 1 or microbatches == 1:
            return (ScheduleKind.ONE_F_ONE_B,)
        return (ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE, ScheduleKind.GPIPE)
    slots = len(set(homes))
    if num_stages % slots == 0 and all(
        homes[stage] == homes[stage % slots] for stage in range(num_stages)
    ):
        return (ScheduleKind.INTERLEAVED, ScheduleKind.GPIPE)
    return (ScheduleKind.GPIPE,)


def scheduled(
    cut: StageCut, homes: Homes, choices: Sequence[int], origin: str
) -> Iterator[Candidate]:
    """With each number of microbatches all schedules that suit."""
    for count in choices:
        for kind in suited_kinds(cut.num_stages, homes, count):
            yield Candidate(cut=cut, homes=homes, kind=kind, microbatches=count, origin=origin)


def recomputed_peak_bytes(
    graph: Graph, cut: StageCut, microbatches: int, replicas: Sequence[int]
) -> Floats:
    """Parmesan's peak memory of each stage with recomputation, on a replica: what that would save,
    as plans of this search must fit without it.

    (1 / MB) (sum over ops of the larger of forward and backward memory + boundary tensors), where
    an op's memory is what it makes, saves and works with; state comes on top.
    """
    made = np.bincount(graph.tensor_source, weights=graph.tensor_bytes, minlength=graph.num_ops) + (
        graph.saved_bytes + graph.workspace_bytes
    )
    is_backward = graph.phase == Phase.BACKWARD
    owner = np.where(is_backward & (graph.partner >= 0), graph.partner, np.arange(graph.num_ops))
    forward = np.where(graph.phase == Phase.FORWARD, made, 0.0)
    backward = sum_by(owner[is_backward], made[is_backward], graph.num_ops)
    there, back = cut.wires
    boundary = there.sum(axis=0) + back.sum(axis=0)
    passing = sum_by(cut.stage_of_op, np.maximum(forward, backward), cut.num_stages) + boundary
    state = sum_by(cut.stage_of_op, graph.state_bytes, cut.num_stages)
    peak: Floats = state + passing / microbatches / np.asarray(replicas)
    return peak
