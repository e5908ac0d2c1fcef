"""Answers and timelines for people, as text that also reads well without colour."""

import math

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table

from meshwright.cli.console import Words
from meshwright.cli.summary.allocation import UNIFORM, allocation_row, show_allocations
from meshwright.cli.summary.device import (
    MAX_DEVICES,
    Detail,
    device_table,
    find_rows,
    show_chart,
    show_devices,
)
from meshwright.cli.summary.hybrid import hybrid_rows, show_runner_ups, show_stages
from meshwright.cli.summary.part import has_replicated_parts, show_parts
from meshwright.cli.summary.screen import (
    fit_facts,
    peak_text,
    screen_rows,
    show_rows,
)
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import time_sources
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.graph.graph import Graph
from meshwright.plan.answer import PROVEN, STOP_MEANINGS, Answer
from meshwright.plan.facts import HybridFacts
from meshwright.plan.plan import Plan
from meshwright.report.expected import expected_error
from meshwright.simulate.footprint import footprint
from meshwright.simulate.timeline import Timeline
from meshwright.units import (
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_seconds,
)

_FRAME = 6
"""Columns of a panel's frame beside its title: two corners, and a line and a space on each side."""
_FACT_STYLES = {"step": "bold green"}
_SEARCH_ROWS = ("bound", "gap", "method", "stop", "times", "methods")
"""The facts of a search, which end the panel."""
_COSTS = {"compute": "green", "transfer": "yellow", "collective": "orange3", "wait": "bright_black"}


def show_answer(
    console: Console,
    graph: Graph,
    cluster: Cluster,
    answer: Answer,
    timeline: Timeline,
    detail: Detail = Detail.USUAL,
) -> None:
    """The answer, then what its plan does: on one screen, or whole."""
    assert answer.plan is not None
    if detail is Detail.USUAL:
        _show_screen(console, graph, cluster, answer, timeline)
        return
    facts = answer.hybrid
    rows = {
        "step": _step_text(graph, answer.step_seconds, facts),
        **(hybrid_rows(answer.plan, facts) if facts is not None else {}),
        **_found_rows(cluster, answer, timeline),
    }
    if answer.notes:
        rows["note"] = "; ".join(answer.notes)
    _print_panel(console, _facts(rows), _title(graph, cluster))
    if detail is Detail.SHORT:
        return
    show_allocations(console, cluster, answer.plan)
    if has_replicated_parts(answer.plan):
        show_parts(console, graph, cluster, answer.plan)
    _show_plan(console, graph, cluster, answer.plan, timeline, facts, detail, answer)


def _found_rows(cluster: Cluster, answer: Answer, timeline: Timeline) -> dict[str, str]:
    """What the plan was found by and how good that is, for the panel."""
    assert answer.plan is not None
    # What `auto` has searched one kind of plans only for, its first note says.
    is_narrow = any(note.startswith("only ") for note in answer.notes)
    kind = " of this kind" if is_narrow or not answer.method.startswith("auto") else ""
    optional = {
        "times": answer.provenance,
        "binding": answer.binding if answer.hybrid is None else "",
        "methods": _compare_methods(answer),
    }
    return {
        **_runtime_row(answer.plan),
        **_launch_row(timeline),
        **_gain_row(answer),
        **allocation_row(cluster, answer),
        "bound": f"{format_seconds(answer.bound_seconds)}   {PROVEN}: no plan{kind} is faster",
        "gap": f"{format_percent(answer.gap)}   at most so much slower than the best",
        "method": f"{answer.method}   searched for {format_seconds(answer.search_seconds)}",
        "stop": f"{answer.stop.value}   {STOP_MEANINGS[answer.stop]}",
        **{name: text for name, text in optional.items() if text},
    }


def _show_screen(
    console: Console, graph: Graph, cluster: Cluster, answer: Answer, timeline: Timeline
) -> None:
    """What matters most, on one screen."""
    assert answer.plan is not None
    facts, memory = answer.hybrid, footprint(graph, cluster, timeline)
    found = _found_rows(cluster, answer, timeline)
    used = f"   {format_percent(facts.mfu)} of the peak (MFU)" if facts is not None else ""
    shown: dict[str, str | Words] = {
        "step": _step_text(graph, answer.step_seconds, facts) + used,
        "plan": answer.plan.description,
        **{name: found.pop(name) for name in [*found] if name not in _SEARCH_ROWS},
        **({"binding": facts.binding} if facts is not None else {}),
        "path": _attribution(timeline),
        "peak": peak_text(cluster, timeline, memory),
        **found,
    }
    # What a search looked at, its last note, is long; --verbose prints it.
    if told := [note for note in answer.notes if not note.startswith("scope: ")]:
        shown["note"] = "; ".join(told)
    texts = {
        name: Words(text, style=_FACT_STYLES.get(name, "")) if isinstance(text, str) else text
        for name, text in shown.items()
    }
    table, num_facts = fit_facts(console, texts)
    title = Words(_title(graph, cluster))
    title.truncate(max(1, console.width - _FRAME), overflow="ellipsis")
    _print_panel(console, table, title.plain)
    rows = screen_rows(cluster, answer.plan, timeline, memory, facts)
    show_rows(console, rows, timeline, num_facts)


def _show_plan(
    console: Console,
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    facts: HybridFacts | None,
    detail: Detail,
    answer: Answer | None = None,
) -> None:
    """What a plan does, by stages where these are known, else by devices."""
    if facts is None:
        show_timeline(console, graph, cluster, plan, timeline, detail)
        return
    show_stages(console, cluster, facts)
    console.print()
    if answer is not None:
        show_runner_ups(console, answer)
    console.print(Words("critical path  ", style="bold"), _attribution(timeline), sep="")
    console.print()
    show_chart(console, timeline, _first_devices(cluster, plan))


def _step_text(graph: Graph, step_seconds: float, facts: HybridFacts | None) -> str:
    """A step's time, and the throughput."""
    rate = graph.batch / step_seconds if step_seconds else math.inf
    tokens = facts.tokens_per_second if facts is not None and facts.tokens else 0.0
    shown = f"{format_number(tokens)} tokens/s   " if tokens else ""
    return f"{format_seconds(step_seconds)}   {shown}{format_number(rate)} samples/s"


def show_simulation(
    console: Console,
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    facts: HybridFacts | None = None,
    detail: Detail = Detail.USUAL,
) -> None:
    """The prediction, then what the plan does; by stages where these are known."""
    rows = {
        "step": _step_text(graph, timeline.step_seconds, facts),
        **(hybrid_rows(plan, facts) if facts is not None else {}),
        **_runtime_row(plan),
        **_launch_row(timeline),
        "peak": f"{format_bytes(max(timeline.peak_bytes))} on the fullest device",
        "sharing": timeline.sharing,
        "times": f"{time_sources(graph, cluster)}; {expected_error(graph, cluster, timeline)}",
    }
    _print_panel(console, _facts(rows), _title(graph, cluster))
    if detail is Detail.SHORT:
        return
    if has_replicated_parts(plan):
        show_parts(console, graph, cluster, plan)
    _show_plan(console, graph, cluster, plan, timeline, facts, detail)


def _runtime_row(plan: Plan) -> dict[str, str]:
    """Whose execution is predicted, where it is not this program's."""
    return {} if plan.runtime == MESHWRIGHT.name else {"runtime": plan.runtime}


def show_timeline(
    console: Console,
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    detail: Detail = Detail.USUAL,
) -> None:
    """Devices, what the critical path's time went to, and a chart of the step."""
    rows = find_rows(cluster, plan, timeline, footprint(graph, cluster, timeline), detail)
    console.print(device_table(cluster, rows))
    console.print()
    console.print(Words("critical path  ", style="bold"), _attribution(timeline), sep="")
    console.print()
    show_devices(console, cluster, rows, timeline, detail)


def _first_devices(cluster: Cluster, plan: Plan) -> dict[str, int]:
    """The first device of every stage, by the stage; of several stages by the first."""
    firsts: dict[int, str] = {}
    for stage, part in enumerate(plan.parts):
        firsts.setdefault(cluster.index[part.devices[0]], f"stage {stage}")
    return {name: device for device, name in list(firsts.items())[:MAX_DEVICES]}


def _launch_row(timeline: Timeline) -> dict[str, str]:
    """Says so where devices wait for their hosts."""
    if not timeline.is_launch_bound:
        return {}
    busy = format_seconds(timeline.device_seconds)
    return {"launches": f"bound the step: its host launches longer than devices run ({busy})"}


def _gain_row(answer: Answer) -> dict[str, str]:
    """What a deployment gains, where it was compared."""
    seconds = answer.statistics.get("data_seconds", 0.0)
    if answer.method != "deploy" or not 0 < answer.step_seconds <= seconds < math.inf:
        return {}
    times = format_number(float(f"{seconds / answer.step_seconds:.3g}"))
    return {"gain": f"{times} times as fast as data parallelism with equal shares"}


def _compare_methods(answer: Answer) -> str:
    """The step time of each method that `auto` has tried, the best first; empty for one alone."""
    suffix = "_seconds"
    times = {
        name.removesuffix(suffix): seconds
        for name, seconds in answer.statistics.items()
        if name.endswith(suffix) and name != UNIFORM
    }
    if not answer.method.startswith("auto"):
        return ""
    return ", ".join(
        f"{name} {format_seconds(seconds) if math.isfinite(seconds) else 'does not fit'}"
        for name, seconds in sorted(times.items(), key=lambda each: each[1])
    )


def _title(graph: Graph, cluster: Cluster) -> str:
    hosts = format_count(len(cluster.hosts), "host")
    return (
        f"{graph.name} (batch {graph.batch:,.10g}, {format_count(graph.num_ops, 'op')}) on "
        f"{cluster.name} ({format_count(cluster.num_devices, 'device')}, {hosts})"
    )


def _print_panel(console: Console, content: RenderableType, title: str) -> None:
    """A panel with its title in its frame, or above it where the frame is too short for it."""
    words = Words(title, style="bold")
    has_room = words.cell_len <= console.width - _FRAME
    if not has_room:
        console.print(words)
    head = words if has_room else None
    console.print(Panel(content, title=head, title_align="left", border_style="cyan"))


def _facts(rows: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(Words(name, style="cyan"), Words(text, style=_FACT_STYLES.get(name, "")))
    return table


def _attribution(timeline: Timeline) -> Words:
    """What the step waits for, from its start to its end."""
    text = Words()
    total = sum(timeline.attribution.values()) or 1.0
    shown = {name: value for name, value in timeline.attribution.items() if value > 0}
    for place, (name, value) in enumerate(shown.items()):
        text.append(", " if place else "")
        text.append(f"{name} {100 * value / total:.1f} %", style=_COSTS[name])
        text.append(f" ({format_seconds(value)})")
    return text
