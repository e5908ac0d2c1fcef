"""Answers and timelines for people, as text that also reads well without colour."""

import math
from collections.abc import Iterator, Mapping
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from meshwright.cli.allocation_summary import UNIFORM, allocation_row, show_allocations
from meshwright.cli.console import Words
from meshwright.cli.gantt import GLYPHS, Activity, draw_activities
from meshwright.cli.hybrid_facts import HybridFacts
from meshwright.cli.hybrid_summary import hybrid_rows, show_runner_ups, show_stages
from meshwright.cli.part_summary import has_replicated_parts, show_parts
from meshwright.cluster.cluster import Cluster
from meshwright.errors import printable
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.simulate.timeline import Timeline
from meshwright.units import GIB, format_bytes, format_seconds

MAX_DEVICES = 32
"""Devices of a larger cluster that get lines of their own."""
_BAR = 8

_STYLES = ("green", "dodger_blue2", "magenta", "yellow", "bright_black")
"""One an activity."""
_STOPS = {
    Stop.PROVED: "the plan is as fast as the bound",
    Stop.LIMIT: "the search ended, the plan is its best",
    Stop.INFEASIBLE: "no plan that fits was found",
}
_FACT_STYLES = {"step": "bold green"}
_COSTS = {"compute": "green", "transfer": "yellow", "collective": "orange3", "wait": "bright_black"}


def show_answer(
    console: Console,
    graph: Graph,
    cluster: Cluster,
    answer: Answer,
    timeline: Timeline,
    facts: HybridFacts | None = None,
) -> None:
    """The answer, then what its plan does; by stages where these are known."""
    assert answer.plan is not None
    step = answer.step_seconds
    is_general = answer.method.startswith("auto") and not _is_of_one_kind(answer)
    kind = "" if is_general else " of this kind"
    rows = {
        "step": f"{format_seconds(step)}   {_speed(graph, step, facts)}",
        **(hybrid_rows(answer.plan, facts) if facts is not None else {}),
        **_launch_row(timeline),
        **_gain_row(answer),
        **allocation_row(cluster, answer),
        "bound": f"{format_seconds(answer.bound_seconds)}   proven: no plan{kind} is faster",
        "gap": f"{_percent(answer.gap)}   at most so much slower than the best",
        "method": f"{answer.method}   searched for {format_seconds(answer.search_seconds)}",
        "stop": f"{answer.stop.value}   {_STOPS[answer.stop]}",
    }
    if answer.binding and facts is None:
        rows["binding"] = answer.binding
    if compared := _compare_methods(answer):
        rows["methods"] = compared
    if answer.notes:
        rows["note"] = "; ".join(answer.notes)
    console.print(_panel(_facts(rows), _title(graph, cluster)))
    show_allocations(console, cluster, answer.plan)
    if has_replicated_parts(answer.plan):
        show_parts(console, graph, cluster, answer.plan)
    _show_plan(console, cluster, answer.plan, timeline, facts, answer)


def _show_plan(
    console: Console,
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    facts: HybridFacts | None,
    answer: Answer | None = None,
) -> None:
    """What a plan does, by stages where these are known, else by devices."""
    if facts is None:
        show_timeline(console, cluster, plan, timeline)
        return
    show_stages(console, cluster, facts)
    console.print()
    if answer is not None:
        show_runner_ups(console, answer)
    _show_path(console, timeline, _first_devices(cluster, plan))


def _is_of_one_kind(answer: Answer) -> bool:
    """Whether `auto` has searched one kind of plans only, which its first note then says."""
    return any(note.startswith("only ") for note in answer.notes)


def _speed(graph: Graph, step_seconds: float, facts: HybridFacts | None) -> str:
    rate = graph.batch / step_seconds if step_seconds else math.inf
    tokens = f"{facts.tokens_per_second:,.0f} tokens/s   " if facts and facts.tokens else ""
    return f"{tokens}{rate:.4g} samples/s"


def show_simulation(
    console: Console,
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    facts: HybridFacts | None = None,
) -> None:
    """The prediction, then what the plan does; by stages where these are known."""
    step = timeline.step_seconds
    rows = {
        "step": f"{format_seconds(step)}   {_speed(graph, step, facts)}",
        **(hybrid_rows(plan, facts) if facts is not None else {}),
        **_launch_row(timeline),
        "peak": f"{format_bytes(max(timeline.peak_bytes))} on the fullest device",
        "sharing": timeline.sharing,
    }
    console.print(_panel(_facts(rows), _title(graph, cluster)))
    if has_replicated_parts(plan):
        show_parts(console, graph, cluster, plan)
    _show_plan(console, cluster, plan, timeline, facts)


def show_timeline(console: Console, cluster: Cluster, plan: Plan, timeline: Timeline) -> None:
    """Devices, what the critical path's time went to, and a chart of the step."""
    console.print(_device_table(cluster, plan, timeline))
    console.print()
    shown = cluster.devices[:MAX_DEVICES]
    _show_path(console, timeline, {device.name: place for place, device in enumerate(shown)})


def _show_path(console: Console, timeline: Timeline, devices: Mapping[str, int]) -> None:
    """What the critical path's time went to, and a chart of some devices, by what they are."""
    console.print(_attribution(timeline))
    console.print()
    console.print(Group(*_chart(devices, timeline, console.width)))


def _first_devices(cluster: Cluster, plan: Plan) -> dict[str, int]:
    """The first device of every stage, by the stage; of several stages by the first."""
    number = {device.name: place for place, device in enumerate(cluster.devices)}
    firsts: dict[int, str] = {}
    for stage, part in enumerate(plan.parts):
        firsts.setdefault(number[part.devices[0]], f"stage {stage}")
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
    times = f"{seconds / answer.step_seconds:.3g}"
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
    hosts = _count(len(cluster.hosts), "host")
    return (
        f"{graph.name} (batch {graph.batch:g}, {_count(graph.num_ops, 'op')}) on {cluster.name} "
        f"({_count(cluster.num_devices, 'device')}, {hosts})"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _panel(content: RenderableType, title: str) -> Panel:
    return Panel(content, title=Words(title, style="bold"), title_align="left", border_style="cyan")


def _facts(rows: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(Words(name, style="cyan"), Words(text, style=_FACT_STYLES.get(name, "")))
    return table


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "unknown"
    return f"{100 * share:.3g} %" if share >= 1e-6 else "0 %"


def _device_table(cluster: Cluster, plan: Plan, timeline: Timeline) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("device", "type", "work", "busy", "peak memory"):
        table.add_column(name, no_wrap=name != "work", overflow="ellipsis")
    work = _work_of_devices(plan)
    for number, device in enumerate(cluster.devices[:MAX_DEVICES]):
        busy = float(timeline.device_utilisation[number])
        peak = timeline.peak_bytes[number]
        full = peak / device.memory_bytes
        style = "red" if full > 1 else "yellow" if full > 0.9 else "green"
        sizes = f"{peak / GIB:5.2f} of {device.memory_bytes / GIB:.3g} GiB"
        table.add_row(
            device.name,
            device.type,
            work.get(device.name, "-"),
            Words.assemble((_bar(busy), "green"), f" {100 * busy:3.0f} %"),
            Words.assemble((_bar(full), style), f" {sizes}", *([" OVER"] if full > 1 else [])),
        )
    if cluster.num_devices > MAX_DEVICES:
        table.add_row(f"... {cluster.num_devices - MAX_DEVICES} more")
    return table


def _bar(share: float) -> str:
    filled = min(_BAR, round(share * _BAR))
    return "█" * filled + "░" * (_BAR - filled)


def _work_of_devices(plan: Plan) -> dict[str, str]:
    """By device how many ops it runs, in which stages, and for which share of the batch."""
    num_ops: dict[str, int] = {}
    stages: dict[str, list[str]] = {}
    shares: dict[str, set[float]] = {}
    for number, part in enumerate(plan.parts):
        for team, (low, high) in zip(part.teams(), part.rows(), strict=True):
            for device in team:
                num_ops[device] = num_ops.get(device, 0) + len(part.ops)
                stages.setdefault(device, []).append(str(number))
                shares.setdefault(device, set()).add(round(high - low, 9))
    return {
        device: " · ".join(_describe_work(plan, count, stages[device], shares[device]))
        for device, count in num_ops.items()
    }


def _describe_work(
    plan: Plan, num_ops: int, stages: list[str], shares: set[float]
) -> Iterator[str]:
    if plan.schedule is not None and len(plan.parts) > 1:
        yield f"stage {', '.join(stages)}"
    yield _count(num_ops, "op")
    if min(shares) < 1:
        low, high = (f"{100 * share:.3g}" for share in (min(shares), max(shares)))
        yield f"{low} % of batch" if low == high else f"{low} to {high} % of batch"


def _attribution(timeline: Timeline) -> Words:
    """What the step waits for, from its start to its end."""
    text = Words("critical path  ", style="bold")
    total = sum(timeline.attribution.values()) or 1.0
    shown = {name: value for name, value in timeline.attribution.items() if value > 0}
    for place, (name, value) in enumerate(shown.items()):
        text.append(", " if place else "", style="default")
        text.append(f"{name} {100 * value / total:.1f} %", style=f"not bold {_COSTS[name]}")
        text.append(f" ({format_seconds(value)})", style="not bold default")
    return text


def _chart(devices: Mapping[str, int], timeline: Timeline, console_width: int) -> Iterator[Words]:
    names = list(map(printable, devices))
    margin = min(max(map(len, names)), 24) + 2
    width = max(20, min(80, console_width - margin - 1))
    shown = list(devices.values())
    lines = draw_activities(timeline, shown, width) if timeline.step_seconds else []
    for name, line in zip(names, lines, strict=False):
        text = Words(f"{name[: margin - 2]:<{margin}}")
        for glyph, run in groupby(line):
            text.append("".join(run), style=_STYLES[GLYPHS.index(glyph)])
        yield text
    end = format_seconds(timeline.step_seconds)
    yield Words(" " * margin + "0" + end.rjust(width - 1), style="bright_black")
    legend = Words(" " * margin)
    for activity in Activity:
        legend.append(GLYPHS[activity], style=_STYLES[activity])
        legend.append(f" {activity.name.lower()}{'' if activity is Activity.IDLE else '   '}")
    yield legend
