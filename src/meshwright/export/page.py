"""The page beside exported files: how to start them, what they could not say, and what that costs.

The plan that the target will follow is simulated as the one that was planned; the difference is
what the export costs.
"""

import textwrap
from dataclasses import replace

from meshwright.export.exported import Exported
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.simulate.simulate import simulate
from meshwright.units import format_bytes, format_percent, format_seconds

PAGE_FILE = "EXPORT.md"
WIDTH = 96
"""Columns of its text."""


def write_page(target: str, request: Request, plan: Plan, exported: Exported) -> str:
    """The page as Markdown."""
    return "\n".join(
        [
            f"# A plan for {target}",
            "",
            f"Model `{request.graph.name}`,",
            f"on {request.cluster.name}, batch {request.graph.batch:g}.",
            "",
            *(f"- `{name}`" for name in exported.files),
            "",
            *_start(exported),
            *_left_out(exported),
            *_cost(request, plan, exported),
        ]
    )


def _start(exported: Exported) -> list[str]:
    if not exported.start:
        return []
    return ["## Start", "", "```sh", *exported.start, "```", ""]


def _left_out(exported: Exported) -> list[str]:
    if not exported.left_out:
        return ["Everything that the plan says is in these files.", ""]
    lines = [
        textwrap.fill(each, WIDTH, initial_indent="- ", subsequent_indent="  ")
        for each in exported.left_out
    ]
    return ["## Not expressible", "", *lines, ""]


def _cost(request: Request, plan: Plan, exported: Exported) -> list[str]:
    """What the plan takes as planned, and as these files will have it run."""
    if exported.plan is None:
        return []
    both = {
        f"as planned, run by {plan.runtime}": plan,
        f"as planned, run by {exported.plan.runtime}": replace(plan, runtime=exported.plan.runtime),
        f"as exported, run by {exported.plan.runtime}": exported.plan,
    }
    rows, first = ["| | step | to the plan | peak memory |", "|---|---|---|---|"], 0.0
    for name, each in both.items():
        timeline = simulate(request.graph, request.cluster, each, sharing=request.sharing)
        first = first or timeline.step_seconds
        change = timeline.step_seconds / first - 1 if first else 0.0
        peak = format_bytes(max(timeline.peak_bytes, default=0.0))
        sign = "+" if change >= 0 else "-"
        rows.append(
            f"| {name} | {format_seconds(timeline.step_seconds)} | "
            f"{sign}{format_percent(abs(change))} | {peak} |"
        )
    return ["## What that costs", "", *rows, ""]
