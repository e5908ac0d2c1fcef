"""The programs that a set-up can be of: what each can be told, and its own words for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from meshwright.export.config import accelerate, deepspeed
from meshwright.export.config.megatron import write as megatron
from meshwright.export.config.setup import Setup
from meshwright.export.config.torchtitan import write as torchtitan
from meshwright.plan.part import ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that trains by settings of its own."""

    runtime: str
    narrow: Callable[[Setup], tuple[Setup, list[str]]]
    """The set-up as far as the program has words for it, and a sentence for each that it has
    not."""
    words: Callable[[Setup], Mapping[str, str]]
    """Its settings for such a set-up, by its own names."""
    limits: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What a search for it need not look at, as `Scope` has it."""


_ONE_A_DEVICE = (ScheduleKind.ONE_F_ONE_B,)
PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        each.runtime: each
        for each in (
            Program(
                runtime="megatron",
                narrow=megatron.narrow,
                words=megatron.settings_of,
                limits={"schedules": (*_ONE_A_DEVICE, ScheduleKind.INTERLEAVED)},
            ),
            Program(
                runtime="torchtitan",
                narrow=torchtitan.narrow,
                words=torchtitan.settings_of,
                limits={
                    "schedules": (*_ONE_A_DEVICE, ScheduleKind.INTERLEAVED, ScheduleKind.GPIPE),
                    "zero": (0, 2, 3),
                    "pods": (1,),
                },
            ),
            Program(
                runtime="deepspeed",
                narrow=deepspeed.narrow,
                words=deepspeed.settings_of,
                limits={
                    "schedules": _ONE_A_DEVICE,
                    "chunks": (1,),
                    "pods": (1,),
                    "sequence_parallel": False,
                },
            ),
            Program(
                runtime="fsdp2",
                narrow=accelerate.narrow,
                words=accelerate.settings_of,
                limits={
                    "pipeline": (1,),
                    "chunks": (1,),
                    "expert": (1,),
                    "zero": (0, 2, 3),
                    "sequence_parallel": False,
                },
            ),
        )
    }
)
"""By the runtime that they are predicted as."""
