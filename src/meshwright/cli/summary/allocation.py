"""The allocations of a plan for people: which host may send how much to which, over which ways."""

from rich.console import Console

from meshwright.cli.sheet import Sheet
from meshwright.cluster.cluster import Cluster
from meshwright.plan.answer import Answer
from meshwright.plan.part import Allocation
from meshwright.plan.plan import Plan
from meshwright.search.answer import UNIFORM
from meshwright.search.method.bandwidth.rate.allocate import talks_within_ops
from meshwright.units import format_percent, format_rate, format_seconds

__all__ = ["UNIFORM", "allocation_row", "show_allocations"]

MAX_ROWS = 32
"""Allocations that get lines of their own."""
_LEAST_GAIN = 5e-5
"""A gain below this is called none."""


def allocation_row(cluster: Cluster, answer: Answer) -> dict[str, str]:
    """How much faster than without an allocation; nothing where none was looked for."""
    uniform = answer.statistics.get(UNIFORM)
    if uniform is None or answer.plan is None:
        return {}
    if talks_within_ops(cluster, answer.plan):
        text = "none for tensor, context or expert parallelism or ZeRO 2 and 3 across hosts"
        return {"allocation": text}
    gain = 1 - answer.step_seconds / uniform if uniform > 0 else 0.0
    if not answer.plan.allocations or gain < _LEAST_GAIN:
        return {"allocation": "none is faster than uniform bandwidth"}
    text = (
        f"{format_percent(gain)} faster than uniform bandwidth ({format_seconds(uniform)} a step)"
    )
    return {"allocation": text}


def show_allocations(console: Console, cluster: Cluster, plan: Plan) -> None:
    """One line a pair of hosts; nothing for a plan without allocations."""
    if not plan.allocations:
        return
    rows: list[tuple[str, ...]] = [
        (each.source, each.target, format_rate(each.bytes_per_second), _ways(cluster, each))
        for each in plan.allocations[:MAX_ROWS]
    ]
    if len(plan.allocations) > MAX_ROWS:
        rows.append((f"... {len(plan.allocations) - MAX_ROWS:,} more",))
    heads = ("from host", "to host", "rate", "ways")
    console.print(Sheet(heads, rows, wraps=("ways",), right=("rate",)))
    console.print()


def _ways(cluster: Cluster, allocation: Allocation) -> str:
    """By the switch that each way goes over its part of the rate, where it has any."""
    number = cluster.host_index
    ways = cluster.ways.links[number[allocation.source], number[allocation.target]]
    if not allocation.shares:
        return "its route"
    parts = [
        (cluster.links[way[0]].target, share)
        for way, share in zip(ways, allocation.shares, strict=True)
        if share > 0
    ]
    return ", ".join(f"{switch} {format_percent(share)}" for switch, share in parts)
