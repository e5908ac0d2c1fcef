"""Stages in numbers, and the parts of a plan that they stand for.

A stage is a run of layers on a run of devices of every pod (see `Frame`), and how it runs there.
Whoever has stages in numbers, from a search or from the degrees that people name, gets the parts of
their plan here. Knows nothing of time and memory.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from meshwright.cluster.cluster import Cluster
from meshwright.cost.layer.team import Team
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Part, Recompute


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Frame:
    """What all stages of a plan share.

    The devices, in an order that keeps neighbours near, are cut into `pods` equal runs; each holds
    a whole pipeline, the same in every pod, whose stages are runs of devices one after the other; a
    stage's replicas are those of all pods. One pod is Megatron-LM's order (replicas next to each
    other, stages far apart), as many pods as replicas its opposite, and in between replicas are
    near each other in a pod and far apart between pods.
    """

    pods: int
    microbatches: int
    pipeline: int = 0
    """Runs of devices that hold stages, where that is given; 0: as many as there may be."""
    data: int = 0
    """Replicas of every stage in all pods, where that is given; 0: as many as there may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How one stage runs."""

    team: Team
    zero: int
    recompute: Recompute

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a team nor ZeRO nor recomputation."""
        is_alone = self.team.num_devices * self.team.expert == 1
        return is_alone and self.zero == 0 and self.recompute is Recompute.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStage:
    """Layers on a run of devices of every pod."""

    first: int
    """The number of the stage's first layer."""
    after: int
    """The layer after its last."""
    offset: int
    """Where its devices begin in a pod."""
    size: int
    """Devices in a pod."""
    option: Option


def can_interleave(microbatches: int, num_runs: int) -> bool:
    """Whether microbatches go through so many runs of devices in rounds of equal size."""
    return microbatches % max(1, microbatches // num_runs) == 0


def team_of(part: Part) -> Team:
    """The team that runs each replica of a part of a plan."""
    return Team(**{each.name: getattr(part, each.name) for each in fields(Team)})


class Planner:
    """Turns stages of one stack on one cluster into parts of a plan."""

    def __init__(self, stack: Stack, cluster: Cluster, order: Sequence[int]) -> None:
        """`order`: device numbers as `find_nest` orders them."""
        self.stack = stack
        self.names = tuple(cluster.devices[number].name for number in order)

    def parts(
        self,
        frame: Frame,
        stages: Sequence[DraftStage],
        samples: Sequence[tuple[int, ...]] = (),
    ) -> tuple[Part, ...]:
        """One a stage, with its devices by name. `samples`: what each replica gets of a
        microbatch, by stage; none: as many as the others."""
        return tuple(
            self._part(frame, stage, own)
            for stage, own in zip(stages, samples or [()] * len(stages), strict=True)
        )

    def _part(self, frame: Frame, stage: DraftStage, samples: tuple[int, ...]) -> Part:
        pod = len(self.names) // frame.pods
        begins = [each * pod + stage.offset for each in range(frame.pods)]
        layers = self.stack.ops_of_layer[stage.first : stage.after]
        return Part(
            ops=tuple(name for ops in layers for name in ops),
            devices=tuple(
                name for begin in begins for name in self.names[begin : begin + stage.size]
            ),
            shares=tuple(each / sum(samples) for each in samples),
            zero=stage.option.zero,
            recompute=stage.option.recompute,
            **asdict(stage.option.team),
        )
