"""Which pipelines the method `pipeline` looks at: stages, replicas, and how they are mapped.

Imports no search, so that the command line's help answers at once.
"""

from dataclasses import dataclass
from enum import StrEnum

from meshwright.argument import need_number, need_type, read_choice


class StageMapping(StrEnum):
    """Which devices the replicas of the stages are on."""

    SEARCHED = "searched"
    """Our own search: compute, transfers and all-reduce together."""
    CONSECUTIVE = "consecutive"
    """All-reduce first: the replicas of a stage on neighbouring devices."""
    P2P_FIRST = "p2p-first"
    """Transfers first: the stages of a replica on neighbouring devices."""
    P2P_ONLY = "p2p-only"
    """Parmesan's search for the shortest transfers."""
    ALL_REDUCE_ONLY = "all-reduce-only"
    """Parmesan's search for the shortest all-reduces."""
    ENSEMBLE = "ensemble"
    """The better of Parmesan's two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineScope:
    """What is searched; an empty tuple: any number."""

    stages: tuple[int, ...] = ()
    """Numbers of stages, each on devices of its own: none are interleaved where these are given."""
    replicas: tuple[int, ...] = ()
    """Numbers of replicas that a stage may have."""
    mapping: StageMapping = StageMapping.SEARCHED

    def __post_init__(self) -> None:
        for name in ("stages", "replicas"):
            given = getattr(self, name)
            need_type(given, (tuple, list), f"scope: {name}", "a tuple of whole numbers")
            for each in given:
                need_number(each, f"scope: {name}", is_positive=True, is_whole=True)
            object.__setattr__(self, name, tuple(given))
        read = read_choice(self.mapping, StageMapping, "scope: mapping")
        object.__setattr__(self, "mapping", read)

    def allows(self, homes: tuple[tuple[int, ...], ...]) -> bool:
        """Whether stages on these devices, one tuple of them a stage, are within the scope."""
        # What wraps around from the last stage to the first one's devices is no stage of its own.
        own = homes[:-1] if len(homes) > 1 and homes[-1] == homes[0] else homes
        if self.stages and not (len(own) in self.stages and len(set(own)) == len(own)):
            return False
        return not self.replicas or all(len(home) in self.replicas for home in own)
