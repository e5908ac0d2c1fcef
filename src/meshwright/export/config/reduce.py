"""Steps by which a setup becomes one that a program has words for, each with a sentence that says
what was given up."""

from dataclasses import replace

from meshwright.export.config.setup import Setup
from meshwright.plan.part import ScheduleKind


def without_spread(setup: Setup, left_out: list[str]) -> Setup:
    """Replicas of a stage next to each other."""
    if not setup.spread:
        return setup
    left_out.append(
        "stages next to each other: replicas of a stage are, and stages are far from each other"
    )
    return replace(setup, spread=False)


def one_stage_a_device(setup: Setup, left_out: list[str]) -> Setup:
    """A pipeline of 1F1B with one stage a device, which has the layers of all it had."""
    if setup.pipeline == 1 and setup.microbatches == 1:
        return replace(setup, schedule=ScheduleKind.ONE_F_ONE_B)
    if setup.schedule is not ScheduleKind.ONE_F_ONE_B:
        left_out.append(f"schedule {setup.schedule}: stages run {ScheduleKind.ONE_F_ONE_B}")
    if setup.chunks > 1:
        left_out.append(f"{setup.chunks:,} stages a device: one, which has the layers of all")
    return replace(
        setup,
        schedule=ScheduleKind.ONE_F_ONE_B,
        chunks=1,
        blocks=merged(setup.blocks, setup.chunks),
    )


def merged(blocks: tuple[int, ...], chunks: int) -> tuple[int, ...]:
    """Stages of so many neighbours in one."""
    return tuple(sum(blocks[first : first + chunks]) for first in range(0, len(blocks), chunks))
