"""The form of what a transition says, for programs: `meshwright replan --json`."""

from typing import Annotated, Any, Self

from meshwright.explain.record import RemedyRecord
from meshwright.form import about, constant, form_schema
from meshwright.plan.record import Record, seconds
from meshwright.replan.difference import Difference, PartChange
from meshwright.replan.move import STORAGE, Moves

FORMAT = "meshwright.replan"
VERSION = 1


class FlowRecord(Record):
    """What moves from one host to another."""

    source: Annotated[str | None, about("The host; null: the storage of checkpoints.")]
    target: Annotated[str, about("The host.")]
    bytes: Annotated[float, about("All that moves from the one to the other.", "bytes")]


class MovesRecord(Record):
    """What moves for a plan."""

    total_bytes: Annotated[float, about("All that moves.", "bytes")]
    stored_bytes: Annotated[
        float, about("What of it comes from the storage of checkpoints.", "bytes")
    ]
    state_bytes: Annotated[float, about("What all devices hold together under the plan.", "bytes")]
    seconds: Annotated[float | None, seconds("How long moving takes: network and storage.")]
    network_seconds: Annotated[float, seconds("The transfers between devices, all at once.")]
    storage_seconds: Annotated[float | None, seconds("Reading the rest.")]
    needed_bytes: Annotated[
        dict[str, float], about("By device: what it needs and does not hold.", "bytes")
    ]
    between_hosts: Annotated[tuple[FlowRecord, ...], about("From where to where.")]

    @classmethod
    def of_moves(cls, moves: Moves) -> Self:
        """What moves, as plain values that programs read."""
        return cls.of(
            moves,
            needed_bytes=dict(moves.needed_bytes),
            between_hosts=tuple(
                FlowRecord(source=None if source == STORAGE else source, target=target, bytes=size)
                for (source, target), size in sorted(moves.between_hosts.items())
            ),
        )


class PartChangeRecord(Record):
    """One part, or stage, before and after."""

    number: Annotated[int, about("Which part.")]
    before: Annotated[str, about("What it ran, and where; empty: there was none.")]
    after: Annotated[str, about("What it runs now; empty: there is none.")]


class DifferenceRecord(Record):
    """What changes from the old plan to the new one."""

    before: Annotated[str, about("The degrees and the schedule of the old plan.")]
    after: Annotated[str, about("Those of the new plan.")]
    num_ops: Annotated[int, about("All ops of the step.")]
    moved_ops: Annotated[int, about("Ops that a device runs which did not run them before.")]
    moved_layers: Annotated[tuple[str, ...], about("The layers with such ops.")]
    parts: Annotated[tuple[PartChangeRecord, ...], about("The parts that are not what they were.")]
    left: Annotated[tuple[str, ...], about("Devices that run nothing any more, or are gone.")]
    joined: Annotated[tuple[str, ...], about("Devices that ran nothing before.")]

    @classmethod
    def of_difference(cls, difference: Difference) -> Self:
        """A difference for programs."""
        return cls.of(difference, parts=tuple(map(_part_record, difference.parts)))


def _part_record(change: PartChange) -> PartChangeRecord:
    return PartChangeRecord.of(change)


class TransitionRecord(Record):
    """What a re-planning changes and what that takes, for programs."""

    format: Annotated[str, constant(FORMAT)]
    version: Annotated[int, constant(VERSION)]
    model: Annotated[str, about("The name of the graph.")]
    cluster: Annotated[str, about("The name of the changed cluster.")]
    num_devices: Annotated[int, about("How many devices it has.")]
    method: Annotated[str, about("The method that found the new plan.")]
    before_seconds: Annotated[float | None, seconds("The old plan's step on the old cluster.")]
    carried_seconds: Annotated[
        float | None, seconds("That of what is left of it on the new one; null: it cannot run.")
    ]
    carried: Annotated[str, about("What is left of the old plan in one line.")]
    obstacle: Annotated[str, about("Why it cannot run; empty: it can.")]
    step_seconds: Annotated[float | None, seconds("The new plan's step; null: none fits.")]
    bound_seconds: Annotated[float | None, seconds("No plan of the kind searched is faster.")]
    search_seconds: Annotated[float, seconds("How long the new plan was searched for.")]
    stop: Annotated[str, about("Why the search stopped.")]
    binding: Annotated[str, about("What is in the way where nothing fits.")]
    difference: Annotated[DifferenceRecord | None, about("What changes; null: no new plan.")]
    moves: Annotated[MovesRecord | None, about("What moves; null: no new plan.")]
    carried_moves: Annotated[
        MovesRecord | None, about("What moves for the old plan; null: it cannot run.")
    ]
    break_even_steps: Annotated[
        float | None, about("After so many steps moving has paid; null: never.")
    ]
    steps_to_checkpoint: Annotated[
        float | None, about("Steps that are left to the next checkpoint; null: not said.")
    ]
    pays: Annotated[bool | None, about("Whether moving pays by then; null: not known.")]
    is_forced: Annotated[bool, about("Whether the old plan cannot run any more.")]
    verdict: Annotated[str, about("Whether to move, in a sentence.")]
    remedies: Annotated[
        tuple[RemedyRecord, ...], about("Where nothing fits: the smallest changes that do.")
    ]
    plan: Annotated[str | None, about("The path of the new plan's file; null: not written.")]


def transition_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of `replan --json`."""
    return form_schema("Meshwright re-plan", TransitionRecord)
