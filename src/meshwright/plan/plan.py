"""A Plan says what runs where and how. What it means for one Graph and Cluster is checked by
`meshwright.plan.check`; what it does in time is decided by lowering and simulation.

One type covers every chapter: a placement is a part a device; data parallelism is one part on many
devices; a pipeline is its stages as parts, in order, with a schedule; tensor, context and expert
widths make a team of devices of each replica; combinations combine these.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from meshwright.argument import need_flag, need_one_of, need_type, read_choice
from meshwright.cluster.cluster import Cluster
from meshwright.cost.runtime import MESHWRIGHT, RUNTIMES
from meshwright.errors import InputError, errors_in, some
from meshwright.graph.graph import Graph
from meshwright.plan.degrees import Degrees, find_degrees, plan_degrees
from meshwright.plan.describe import describe_parts
from meshwright.plan.file import read_fields, write_fields
from meshwright.plan.layer import name_layers, name_ops
from meshwright.plan.part import (
    Allocation,
    Discipline,
    Keys,
    Part,
    Recompute,
    Schedule,
    ScheduleKind,
    Sync,
)
from meshwright.table import as_frame, as_html
from meshwright.units import format_count

__all__ = [
    "Allocation",
    "Degrees",
    "Discipline",
    "Keys",
    "Part",
    "Plan",
    "Recompute",
    "Schedule",
    "ScheduleKind",
    "Sync",
    "place_ops",
]

MAX_PARTS = 16
"""So many parts are lines of a plan's facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parts that together hold every op once, and how they run."""

    parts: tuple[Part, ...]
    schedule: Schedule | None = None
    """Given: the parts are the stages of a pipeline, in order."""
    discipline: Discipline = Discipline.PRIORITY
    """Without a schedule: how a device picks its next op."""
    allocations: tuple[Allocation, ...] = ()
    batch_statistics: bool = False
    """Whether batch norm takes statistics of the samples of all replicas of its part, which they
    then exchange; else each takes those of its own."""
    runtime: str = MESHWRIGHT.name
    """Whose execution it is planned and predicted for, as `RUNTIMES` has them. Whoever runs it by
    this program runs it as this program does."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "discipline", read_choice(self.discipline, Discipline, "plan: discipline")
        )
        need_flag(self.batch_statistics, "plan: batch_statistics")
        need_one_of(self.runtime, tuple(RUNTIMES), "plan: runtime")
        need_type(self.schedule, (Schedule, type(None)), "plan: schedule", "a Schedule or None")
        for name, kind in (("parts", Part), ("allocations", Allocation)):
            values = getattr(self, name)
            need_type(values, (tuple, list), f"plan: {name}", f"a tuple of {kind.__name__}s")
            for each in values:
                need_type(each, kind, f"plan: each of {name}", f"of type {kind.__name__}")
        if not self.parts:
            raise InputError("plan: must have at least one part")
        pairs = Counter((each.source, each.target) for each in self.allocations)
        for (source, target), count in pairs.most_common(1):
            if count > 1:
                raise InputError(
                    f"plan: allocations must name a pair of hosts once, {source} -> {target} "
                    f"stands {count} times"
                )

    def __repr__(self) -> str:
        named = [part.layers for part in self.parts if part.layers]
        ops = format_count(sum(len(part.ops) for part in self.parts), "op")
        what = f"layers {', '.join(named)}" if named else ops
        devices = {device for part in self.parts for device in part.devices}
        return f"Plan({self.description}; {what} on {format_count(len(devices), 'device')})"

    def _repr_html_(self) -> str:
        return as_html("plan", self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """What runs where, for people, a line for each part."""
        left = len(self.parts) - MAX_PARTS
        return {
            "plan": self.description,
            **{
                f"part {number}": f"{part.what} on {some(part.devices)}"
                for number, part in enumerate(self.parts[:MAX_PARTS], start=1)
            },
            **({"...": f"{format_count(left, 'part')} more"} if left > 0 else {}),
        }

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each part on each of its devices."""
        rows = [
            (number, part, device)
            for number, part in enumerate(self.parts, start=1)
            for device in part.devices
        ]
        degrees = ("tensor", "context", "expert", "num_replicas", "zero", "recompute")
        return as_frame(
            {
                "part": [number for number, _, _ in rows],
                "device": [device for _, _, device in rows],
                "what": [part.what for _, part, _ in rows],
                **{name: [getattr(part, name) for _, part, _ in rows] for name in degrees},
            }
        )

    @property
    def description(self) -> str:
        """The degrees and the schedule in one line for people."""
        return describe_parts(self.parts, self.schedule)

    @property
    def is_plain(self) -> bool:
        """Whether all parts are: no teams, no ZeRO, nothing computed again."""
        return all(part.is_plain for part in self.parts)

    @staticmethod
    def from_degrees(graph: Graph, cluster: Cluster, **degrees: Any) -> "Plan":
        """The plan that people mean by its degrees: `tensor`, `pipeline`, `microbatches`, ...; see
        `Degrees` for all of them. Whether it fits into memory is for `simulate` to say."""
        parts, schedule = plan_degrees(graph, cluster, Degrees(**degrees))
        return Plan(parts=parts, schedule=schedule)

    def degrees(self, graph: Graph, cluster: Cluster) -> Degrees | None:
        """The degrees that `from_degrees` gives this plan for; None: its stages are unlike."""
        plain = Plan(parts=self.parts, schedule=self.schedule, runtime=self.runtime)
        if self.schedule is None or self != plain:
            return None
        return find_degrees(graph, cluster, (name_ops(graph, self.parts), self.schedule))

    def in_ops(self, graph: Graph) -> "Plan":
        """The same plan with the ops of the graph where its parts say layers."""
        return replace(self, parts=name_ops(graph, self.parts))

    def in_layers(self, graph: Graph) -> "Plan":
        """The same plan with layers where its parts hold whole ones of the graph in order; `in_ops`
        gives back what it was."""
        return replace(self, parts=name_layers(graph, self.parts))

    def save(self, path: str | Path) -> None:
        """Write a plan file (JSON, or YAML by suffix; gzip when the name ends in .gz)."""
        own: Any = {each.name: getattr(self, each.name) for each in fields(self)}
        write_fields(path, own)

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Read a plan file."""
        read = read_fields(path)
        with errors_in(path):
            return Plan(**read)


def place_ops(
    ops: Sequence[str],
    device_of_op: Sequence[int],
    devices: Sequence[str],
    priorities: Sequence[float] = (),
    discipline: Discipline = Discipline.PRIORITY,
) -> Plan:
    """The plan that runs each op on one device, as numbers into `devices`."""
    members: dict[int, list[int]] = {}
    for op, device in enumerate(device_of_op):
        members.setdefault(int(device), []).append(op)
    parts = tuple(
        Part(
            ops=tuple(ops[op] for op in each),
            devices=(devices[device],),
            priorities=tuple(float(priorities[op]) for op in each) if len(priorities) else (),
        )
        for device, each in sorted(members.items())
    )
    return Plan(parts=parts, discipline=discipline)
