"""The form of an explanation for programs: `meshwright explain --json`, `Explanation.to_dict`."""

from typing import Annotated

from meshwright.form import about, constant
from meshwright.plan.record import Record, seconds, size

FORMAT = "meshwright.explanation"
VERSION = 1


class ShareRecord(Record):
    """What of the step is spent on one thing in one place."""

    cause: Annotated[str, about("What it is spent on.")]
    where: Annotated[str, about("A device, or a link as 'source -> target'; empty: no place.")]
    seconds: Annotated[float, seconds("How long.")]
    share: Annotated[float, about("The part of the step; all shares add up to one.")]


class RunRecord(Record):
    """Consecutive instructions of the critical path."""

    what: Annotated[str, about("What they do and where, for people.")]
    seconds: Annotated[float, seconds("What they take together.")]
    instructions: Annotated[int, about("How many there are.")]


class NeighbourRecord(Record):
    """A plan that differs in one decision."""

    decision: Annotated[str, about("What the plan does.")]
    change: Annotated[str, about("What is done instead.")]
    step_seconds: Annotated[float | None, seconds("The simulated step; null: no such plan.")]
    slower: Annotated[
        float | None, about("By what part the step is longer; negative: it is faster.")
    ]
    fits: Annotated[bool, about("Whether it is a plan that fits into memory.")]
    missing_bytes: Annotated[float, size("What its devices lack together.")]
    obstacle: Annotated[str, about("Why it cannot be run; empty: it can.")]


class RivalRecord(Record):
    """A plan of another kind."""

    kind: Annotated[str, about("A method, a kind of parallelism, or runner-up.")]
    description: Annotated[str, about("The plan in one line.")]
    step_seconds: Annotated[float | None, seconds("The simulated step; null: there is none.")]
    slower: Annotated[float | None, about("By what part the step is longer.")]
    because: Annotated[
        dict[str, float], seconds("By how much more it spends on each cause; negative: less.")
    ]
    obstacle: Annotated[str, about("Why it cannot be run; empty: it can.")]


class DeviceMemoryRecord(Record):
    """The memory of one device at its fullest."""

    device: Annotated[str, about("The device's name.")]
    peak_bytes: Annotated[float, size("The most that it holds.")]
    usable_bytes: Annotated[float, size("What the peak may be.")]
    at_seconds: Annotated[float, seconds("When the peak is first reached.")]
    during: Annotated[str, about("What the device does then.")]
    items: Annotated[dict[str, float], size("What the peak is made of.")]


class RemedyRecord(Record):
    """The smallest change of a kind with which a plan fits."""

    kind: Annotated[str, about("What is changed.")]
    change: Annotated[str, about("The change in words; empty: none was found.")]
    fits: Annotated[bool, about("Whether such a change was found, and planned.")]
    step_seconds: Annotated[float | None, seconds("The step of the plan that was found.")]
    description: Annotated[str, about("That plan in one line.")]
    lacks: Annotated[str, about("Why the next smaller change that was tried does not do.")]


class ExplanationRecord(Record):
    """Why a plan takes as long as it does; without a plan, what would do."""

    format: Annotated[str, constant(FORMAT)]
    version: Annotated[int, constant(VERSION)]
    model: Annotated[str, about("The name of the graph.")]
    cluster: Annotated[str, about("The name of the cluster.")]
    plan: Annotated[str, about("The plan in one line; empty: none fits.")]
    granularity: Annotated[str, about("How finely all plans here were simulated.")]
    sharing: Annotated[str, about("Whether transfers share links: fair or none.")]
    step_seconds: Annotated[float | None, seconds("The simulated step; null: no plan fits.")]
    bound_seconds: Annotated[float, seconds("The search's bound; 0: it is not known.")]
    launch_bound: Annotated[bool, about("Whether devices wait for hosts to launch kernels.")]
    anchor: Annotated[
        str, about("The device whose step the shares divide; empty: the critical path.")
    ]
    shares: Annotated[tuple[ShareRecord, ...], about("What the step is spent on.")]
    path: Annotated[tuple[RunRecord, ...], about("The critical path, in the order of its times.")]
    neighbours: Annotated[
        tuple[NeighbourRecord, ...], about("Plans that differ in one decision, simulated.")
    ]
    not_tried: Annotated[int, about("How many more neighbours were not simulated.")]
    rivals: Annotated[tuple[RivalRecord, ...], about("Plans of other kinds, simulated.")]
    memory: Annotated[
        tuple[DeviceMemoryRecord, ...], about("The fullest device of each part, the fullest first.")
    ]
    binding: Annotated[str, about("What the search said of the constraint that binds.")]
    remedies: Annotated[
        tuple[RemedyRecord, ...], about("Where no plan fits: the smallest changes that do.")
    ]
