"""When instructions run, in the whole nanoseconds that Perfetto keeps, alone or several as one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.array import Bools, Floats, Longs
from meshwright.graph.graph import Phase
from meshwright.program.program import Kind, Program
from meshwright.simulate.timeline import Timeline


def nanoseconds(seconds: Floats) -> Longs:
    """The nearest whole numbers."""
    return np.rint(seconds * 1e9).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Instructions that are drawn as slices. Rounding both ends, not start and length, keeps slices
    that touch from overlapping."""

    row: Longs
    """The instruction, or the first of several in a row."""
    start: Longs
    finish: Longs
    count: Longs
    """How many instructions it is."""

    def microseconds(self) -> Iterator[tuple[int, int, float, float]]:
        """Instruction, how many, start and length, as the format has them."""
        lengths = (self.finish - self.start) / 1000
        lists = self.row, self.count, self.start / 1000, lengths
        return zip(*(each.tolist() for each in lists), strict=True)


def find_spans(timeline: Timeline, rows: Longs, *, merges: bool) -> Spans:
    """A span for each instruction, stream by stream in the order of starts; where `merges`, one for
    those in a row of one kind, phase, microbatch and partner."""
    instructions = timeline.program.instructions
    start, finish = nanoseconds(timeline.start[rows]), nanoseconds(timeline.finish[rows])
    order = np.lexsort((finish, start, instructions["stream"][rows]))
    rows, start, finish = rows[order], start[order], finish[order]
    if not merges or not len(rows):
        return Spans(row=rows, start=start, finish=finish, count=np.ones_like(rows))
    first = np.flatnonzero(_begins(timeline.program, rows))
    count = np.diff(np.append(first, len(rows)))
    latest = np.maximum.reduceat(finish, first)
    return Spans(row=rows[first], start=start[first], finish=latest, count=count)


def _begins(program: Program, rows: Longs) -> Bools:
    """Whether each of some ordered instructions does another thing than the one before it."""
    mine = program.instructions[rows]
    phase = np.append(program.graph.phase, -1)[mine["op"]]
    begins = np.zeros(len(rows), dtype=bool)
    begins[0] = True
    fields = ("stream", "device", "kind", "microbatch", "peer", "group")
    for values in (phase, *(mine[field] for field in fields)):
        begins[1:] |= values[1:] != values[:-1]
    return begins


def categories(program: Program) -> list[str]:
    """The phase of an instruction that computes, the kind of any other."""
    phases = [phase.name.lower() for phase in Phase]
    kinds = [kind.name.lower() for kind in Kind]
    rows = program.instructions
    phase_of_row = program.graph.phase[rows["op"]].tolist()
    return [
        phases[phase] if kind == Kind.COMPUTE else kinds[kind]
        for kind, phase in zip(rows["kind"].tolist(), phase_of_row, strict=True)
    ]


def title(program: Program, row: int, count: int, category: str) -> str:
    """What a slice is called: its instruction, or what several have in common."""
    if count == 1:
        return program.describe(row)
    microbatch = program.instructions["microbatch"][row]
    suffix = f" [mb {microbatch}]" if program.microbatches > 1 else ""
    return f"{count} x {category}{suffix}"
