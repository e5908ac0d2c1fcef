"""A candidate of the hybrid search, in numbers."""

from dataclasses import dataclass, replace

from meshwright.plan.part import Keys, Schedule, ScheduleKind
from meshwright.plan.stage import DraftStage, Frame


@dataclass(frozen=True, kw_only=True)
class HybridDraft:
    """What a plan of the hybrid search is made of."""

    frame: Frame
    kind: ScheduleKind
    stages: tuple[DraftStage, ...]
    estimate_seconds: float

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for drafts of the same plan."""
        return (self.frame, self.kind, self.stages)

    @property
    def family(self) -> tuple[object, ...]:
        """Equal for drafts that differ only in where devices are."""
        stages = tuple((stage.first, stage.after, stage.option) for stage in self.stages)
        return (self.frame.microbatches, self.kind, stages)

    def with_keys(self, keys: Keys) -> "HybridDraft":
        """The draft in which all context teams get at keys in this way."""
        stages = tuple(
            replace(
                stage,
                option=replace(stage.option, team=replace(stage.option.team, keys=keys)),
            )
            if stage.option.team.context > 1
            else stage
            for stage in self.stages
        )
        return replace(self, stages=stages)

    @property
    def schedule(self) -> Schedule:
        """How its stages take their microbatches."""
        return Schedule(kind=self.kind, microbatches=self.frame.microbatches)

    @property
    def is_plain(self) -> bool:
        """Whether its plan has neither teams nor ZeRO nor recomputation."""
        return all(stage.option.is_plain for stage in self.stages)
