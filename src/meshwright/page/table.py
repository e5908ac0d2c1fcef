"""Tables of a report, in words: what is said of a plan, for those who read and do not look."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from meshwright.errors import printable
from meshwright.explain.explanation import (
    Explanation,
    word_change,
    word_memory,
    word_remedy,
    word_rival,
)
from meshwright.plan.answer import Answer
from meshwright.report.compare import Comparison
from meshwright.units import (
    format_number,
    format_percent,
    format_seconds,
)

MAX_CELL = 400
"""Characters of a cell."""
MAX_ROWS = 1024
"""Rows of a table; its note says how many more there are."""
NONE = "-"
"""What stands where there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """Rows of texts under heads."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()
    """The heads of columns of figures."""
    note: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The table as plain objects; all texts are printable."""
        rows = [[printable(cell, MAX_CELL) for cell in row] for row in self.rows[:MAX_ROWS]]
        more = len(self.rows) - MAX_ROWS
        left = f"{more:,} more rows are left out" if more > 0 else ""
        return {
            "title": printable(self.title, MAX_CELL),
            "heads": list(self.heads),
            "rows": rows,
            "right": [head in self.right for head in self.heads],
            "note": printable("; ".join(filter(None, (self.note, left))), 4 * MAX_CELL),
        }


def explanation_tables(found: Explanation) -> Iterator[PageTable]:
    """What limits the step, its critical path, its neighbours, rivals and memory."""
    step = found.step_seconds or 1.0
    if found.shares:
        of = f"the busiest device, {found.anchor}" if found.anchor else "the critical path"
        yield PageTable(
            title=f"What the step is spent on, by {of}",
            heads=("share", "time", "what", "where"),
            right=("share", "time"),
            rows=tuple(
                (
                    format_percent(each.seconds / step),
                    format_seconds(each.seconds),
                    str(each.cause),
                    each.where,
                )
                for each in found.shares
            ),
        )
    if found.path:
        yield PageTable(
            title="The critical path in words",
            heads=("time", "what"),
            right=("time",),
            rows=tuple((format_seconds(each.seconds), each.what) for each in found.path),
        )
    if found.neighbours:
        left = f"{found.not_tried:,} more were not simulated" if found.not_tried else ""
        yield PageTable(
            title="What each decision is worth, by simulating the other one",
            heads=("decision", "instead", "step"),
            rows=tuple(
                (each.decision, each.change, word_change(each) if each.plan else each.obstacle)
                for each in found.neighbours
            ),
            note=left,
        )
    if found.rivals:
        yield PageTable(
            title="Plans of other kinds, and what they lose their time to",
            heads=("kind", "plan", "step"),
            rows=tuple((each.kind, each.description, word_rival(each)) for each in found.rivals),
        )
    if found.memory:
        yield PageTable(
            title="Memory at its fullest",
            heads=("device", "when", "during", "what"),
            rows=tuple(
                (
                    each.device,
                    format_seconds(each.at_seconds),
                    each.during or NONE,
                    word_memory(each),
                )
                for each in found.memory
            ),
        )
    if found.remedies:
        yield PageTable(
            title="The smallest changes with which a plan fits, each planned",
            heads=("change of", "what does"),
            rows=tuple((each.kind, word_remedy(each)) for each in found.remedies),
        )


def whatif_table(record: Mapping[str, Any]) -> PageTable:
    """What changes bring, as `meshwright whatif --json` has it."""
    rows = []
    for place, each in enumerate((record["now"], *record["outcomes"])):
        steps = [each["kept"], each["planned"], each["shared"]]
        fitting = [step for step in steps if step and step["fits"]]
        best = min(fitting, key=lambda step: step["step_seconds"] or inf, default=steps[1])
        gain = each["gain"]
        rows.append(
            (
                each["question"],
                _word_step(each["kept"]),
                _word_step(best),
                "" if place == 0 else NONE if gain is None else _signed_share(gain),
                format_number(each["samples_per_second"] or 0.0),
                format_seconds(each["bound_seconds"]) if each["bound_seconds"] else NONE,
                NONE if each["cost_per_sample"] is None else f"{each['cost_per_sample']:.3g}",
            )
        )
    heads: tuple[str, ...] = (
        "change",
        "same plan",
        "re-planned",
        "gain",
        "samples/s",
        "bound",
        "cost of a sample",
    )
    return PageTable(
        title="What changes would bring",
        heads=heads,
        right=heads[1:],
        rows=tuple(rows),
        note="; ".join(record["notes"]),
    )


def _word_step(step: Mapping[str, Any] | None) -> str:
    if step is None or step["step_seconds"] is None:
        return NONE
    return format_seconds(step["step_seconds"]) + ("" if step["fits"] else " (no room)")


def _signed_share(share: float) -> str:
    return f"{'+' if share >= 0 else ''}{format_percent(share)}"


def signed_seconds(seconds: float) -> str:
    """A difference of times."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def history_table(answer: Answer) -> PageTable:
    """How the search went."""
    return PageTable(
        title="When the search found a faster plan or a better bound",
        heads=("after", "method", "best step", "bound", "holds for"),
        right=("after", "best step", "bound"),
        rows=tuple(
            (
                format_seconds(each.seconds),
                each.method,
                format_seconds(each.step_seconds) if isfinite(each.step_seconds) else NONE,
                format_seconds(each.bound_seconds) if each.bound_seconds > 0 else NONE,
                each.claim,
            )
            for each in answer.history
        ),
    )


def comparison_tables(comparison: Comparison) -> Iterator[PageTable]:
    """Where a prediction and a measured run part."""
    yield PageTable(
        title="What stands out in the measured run",
        heads=("finding",),
        rows=tuple((each,) for each in comparison.findings),
    )
    heads: tuple[str, ...] = ("what", "which", "count", "predicted", "measured", "difference")
    yield PageTable(
        title="Predicted and measured, the largest difference first",
        heads=heads,
        right=heads[2:],
        rows=tuple(
            (
                each.sort,
                each.name,
                f"{each.count:,}",
                format_seconds(each.predicted_seconds),
                format_seconds(each.measured_seconds),
                signed_seconds(each.difference_seconds),
            )
            for each in comparison.groups[:200]
        ),
    )
    heads = ("device", "", "step", "compute", "communication", "waiting", "overhead")
    rows = []
    for device in comparison.devices:
        for name, spent in (("predicted", device.predicted), ("measured", device.measured)):
            times = (
                spent.total_seconds,
                spent.compute_seconds,
                spent.communication_seconds,
                spent.waiting_seconds,
                spent.overhead_seconds,
            )
            rows.append((device.name, name, *map(format_seconds, times)))
    yield PageTable(
        title="Where each device's step went", heads=heads, right=heads[2:], rows=tuple(rows)
    )
