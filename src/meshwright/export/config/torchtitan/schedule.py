"""The names that torchtitan, and torch.distributed.pipelining, have for schedules."""

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.plan.part import ScheduleKind

SCHEDULES: Mapping[tuple[ScheduleKind, bool], str] = MappingProxyType(
    {
        (ScheduleKind.ONE_F_ONE_B, False): "1F1B",
        (ScheduleKind.GPIPE, False): "GPipe",
        (ScheduleKind.GPIPE, True): "LoopedBFS",
        (ScheduleKind.INTERLEAVED, True): "Interleaved1F1B",
    }
)
"""By kind, and whether a device has several stages."""
