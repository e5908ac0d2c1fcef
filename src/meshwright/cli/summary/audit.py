"""An audit for people: the present set-up beside the best one, and what to change."""

import math

from rich.console import Console

from meshwright.audit.audit import Audit, Costed
from meshwright.cli.console import Words
from meshwright.cli.sheet import Sheet
from meshwright.units import (
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_seconds,
)

_ENOUGH = 1.005
"""From this factor on a plan is called faster."""
MAX_REMARKS = 12


def show_audit(console: Console, path: str, audit: Audit) -> None:
    """What it takes, what the best plan takes, what to change, and what is not predicted."""
    graph, cluster = audit.graph, audit.cluster
    where = f"{cluster.name} ({format_count(cluster.num_devices, 'device')})"
    console.print(Words(f"{path}: {graph.name}, batch {graph.batch:g}, on {where}", style="bold"))
    console.print(Words(_verdict(audit), style="bold green"))
    console.print()
    several = (
        [audit.present] if audit.best is None or audit.is_best else [audit.present, audit.best]
    )
    heads = ["", "now", "best"][: len(several) + 1]
    console.print(Sheet(heads, _rows(audit, several), wraps=("now", "best")))
    if audit.changes:
        rows = [(each.key, each.now or "-", each.then or "-") for each in audit.changes]
        console.print(Sheet(["change", "now", "best"], rows, wraps=("now", "best")))
    _show_remarks(console, audit)


def _verdict(audit: Audit) -> str:
    runtime, present = audit.setup.runtime, audit.present
    if audit.best is None:
        return f"no plan fits: {audit.answer.binding or 'the search names no constraint'}"
    if not present.fits:
        over = format_bytes(present.fullest_bytes - present.usable_bytes)
        return f"it does not fit: a device lacks {over}; the best plan of {runtime} does"
    bound = audit.answer.bound_seconds
    proof = ""
    if 0 < bound < math.inf:
        left = format_percent(max(0.0, audit.best.step_seconds / bound - 1))
        proof = f"; no plan searched can be more than {left} faster still"
    if audit.speedup < _ENOUGH:
        return f"nothing faster was found for {runtime}{proof}"
    return f"{audit.speedup:.2f} times as fast with other settings of {runtime}{proof}"


def _rows(audit: Audit, several: list[Costed]) -> list[tuple[str, ...]]:
    batch = audit.graph.batch
    rows = {
        "step": [format_seconds(each.step_seconds) for each in several],
        "throughput": [_throughput(each, batch) for each in several],
        "MFU": [_utilisation(each) for each in several],
        "memory": [_memory(each) for each in several],
        "limited by": ["" if each.facts is None else each.facts.binding for each in several],
        "plan": [each.plan.description for each in several],
    }
    return [(name, *cells) for name, cells in rows.items() if any(cells)]


def _throughput(costed: Costed, batch: float) -> str:
    if not costed.step_seconds:
        return ""
    samples = f"{format_number(batch / costed.step_seconds)} samples/s"
    tokens = 0.0 if costed.facts is None else costed.facts.tokens_per_second
    return f"{format_number(tokens)} tokens/s" if tokens else samples


def _utilisation(costed: Costed) -> str:
    if costed.facts is None:
        return ""
    return f"{format_percent(costed.facts.mfu)} of the {costed.facts.precision} peak"


def _memory(costed: Costed) -> str:
    has, may = format_bytes(costed.fullest_bytes), format_bytes(costed.usable_bytes)
    return f"{has} of {may}" + ("" if costed.fits else ": does not fit")


def _show_remarks(console: Console, audit: Audit) -> None:
    remarks = [*audit.setup.remarks, *(f"best plan: {each}" for each in audit.left_out)]
    if not remarks:
        return
    console.print(Words("not predicted as they are set, or not known", style="bold"))
    for each in remarks[:MAX_REMARKS]:
        console.print(Words(f"  {each}"))
    if len(remarks) > MAX_REMARKS:
        console.print(Words(f"  and {len(remarks) - MAX_REMARKS} more (--json has all)"))
