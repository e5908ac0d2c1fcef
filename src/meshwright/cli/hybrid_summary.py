"""Plans of stages for people: degrees, stages, memory, and the plans that came next."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from meshwright.cli.console import Words
from meshwright.cluster.cluster import Cluster
from meshwright.plan.answer import Answer
from meshwright.plan.degrees import Degrees, word_degrees
from meshwright.plan.facts import HybridFacts, StageFacts
from meshwright.plan.part import Keys, Part
from meshwright.plan.plan import Plan
from meshwright.report.hybrid_facts import FULL, name_runs
from meshwright.units import GIB, format_count, format_number, format_percent, format_seconds

MAX_STAGES = 32
"""Stages of a longer pipeline that get lines of their own."""
MAX_RUNNER_UPS = 8

_ITEMS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimiser": "optimiser",
    "activations": "activations",
    "workspace": "workspace",
    "buffers": "buffers",
    "libraries": "libraries",
}
"""What a device holds, and the heads of the columns."""
_BESIDE = {"context": "CUDA context", "collectives": "NCCL", "reserve": "allocator's reserve"}
"""What is beside that, likewise."""


def hybrid_rows(plan: Plan, facts: HybridFacts) -> dict[str, str]:
    """The plan's degrees, how well it uses its devices and what binds it, for the panel."""
    samples = sorted({stage.samples for stage in facts.stages})
    sizes = " to ".join(format_number(each) for each in dict.fromkeys((samples[0], samples[-1])))
    return {
        "degrees": plan.description,
        **_word_row(facts.degrees),
        "batch": f"{format_count(facts.microbatches, 'microbatch')}, samples of each on a replica "
        f"{sizes}",
        "MFU": f"{format_percent(facts.mfu)} of the {facts.precision} peak of "
        f"{format_count(facts.num_devices, 'device')}",
        "binding": facts.binding,
    }


def _word_row(degrees: Degrees | None) -> dict[str, str]:
    """The options with which `simulate` predicts the plan."""
    if degrees is None:
        return {}
    words = {name.replace("_", "-"): value for name, value in word_degrees(degrees).items()}
    layers = ",".join(map(str, words.pop("layers", ())))
    texts = [f"--{name}" if value is True else f"--{name} {value}" for name, value in words.items()]
    return {"options": " ".join([*texts, *([f"--layers {layers}"] if layers else [])])}


def show_stages(console: Console, cluster: Cluster, facts: HybridFacts) -> None:
    """A table of stages and one of what their devices hold."""
    console.print(_stage_table(cluster, facts.stages))
    console.print()
    console.print(_memory_table(facts.stages))
    if any(sum(stage.beside.values()) > 0 for stage in facts.stages):
        console.print()
        console.print(_beside_table(facts.stages))
    console.print(Words(_legend(facts.stages), style="bright_black"))


def show_runner_ups(console: Console, answer: Answer) -> None:
    """The next best plans, if the search kept any."""
    if not answer.runner_ups:
        return
    table = _table("next best", "step", "slower")
    for each in answer.runner_ups[:MAX_RUNNER_UPS]:
        slower = each.step_seconds / answer.step_seconds - 1 if answer.step_seconds else 0.0
        table.add_row(each.description, format_seconds(each.step_seconds), f"{100 * slower:.2f} %")
    console.print(table)
    console.print()


def _table(*heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(head, no_wrap=head not in ("devices", "next best"))
    return table


def _stage_table(cluster: Cluster, stages: Sequence[StageFacts]) -> Table:
    heads = "#", "layers", "devices", "parallelism", "ZeRO", "recompute"
    table = _table(*heads, "forward", "backward", "busy")
    for number, stage in enumerate(stages[:MAX_STAGES]):
        table.add_row(
            str(number),
            _name_layers(stage),
            f"{name_runs(cluster, stage.part.devices)} ({len(stage.part.devices)})",
            _name_degrees(stage.part),
            str(stage.part.zero),
            str(stage.part.recompute),
            _name_seconds(stage.forward_seconds, stage.forward_call_seconds),
            _name_seconds(stage.backward_seconds, stage.backward_call_seconds),
            f"{100 * stage.busy:.0f} %",
        )
    return _shortened(table, stages)


def _name_layers(stage: StageFacts) -> str:
    first, last = (name.removeprefix("layer ") for name in stage.layers)
    return first if stage.num_layers == 1 else f"{first} - {last}"


def _name_degrees(part: Part) -> str:
    """How many replicas, and over how many devices each is split: "dp32 tp4 cp2"."""
    context = "ring" if part.keys is Keys.RING else "cp"
    widths = {"tp": part.tensor, context: part.context, "ep": part.expert}
    shown = (f"{axis}{width}" for axis, width in widths.items() if width > 1)
    return " ".join((f"dp{part.num_replicas}", *shown))


def _name_seconds(seconds: float, calls: float) -> str:
    """A time and how much of it are collectives."""
    share = 100 * calls / seconds if seconds else 0.0
    return format_seconds(float(f"{seconds:.3g}")) + (f" ({share:.0f} %)" if share >= 0.5 else "")


def _memory_table(stages: Sequence[StageFacts]) -> Table:
    shown = [name for name in _ITEMS if any(stage.memory[name] > 0 for stage in stages)]
    table = _table("#", *(_ITEMS[name] for name in shown), "peak", "of usable GiB")
    for name, (*texts, peak, style, usable) in _alike(
        [_memory_cells(stage, shown) for stage in stages[:MAX_STAGES]]
    ):
        table.add_row(name, *texts, Words(peak, style=style), usable)
    return _shortened(table, stages)


def _beside_table(stages: Sequence[StageFacts]) -> Table:
    """What else is in the memory of the same devices."""
    table = _table("#", "peak", *_BESIDE.values(), "as nvidia-smi shows", "of GiB")
    rows = [
        tuple(
            f"{size / GIB:.2f}"
            for size in (
                stage.peak_bytes,
                *(stage.beside[name] for name in _BESIDE),
                stage.shown_bytes,
                stage.memory_bytes,
            )
        )
        for stage in stages[:MAX_STAGES]
    ]
    for name, cells in _alike(rows):
        table.add_row(name, *cells)
    return _shortened(table, stages)


def _alike(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Stages in a row of which the same is said are one line: their numbers, and the cells."""
    for cells, run in groupby(range(len(rows)), key=rows.__getitem__):
        first, *rest = run
        yield f"{first}-{rest[-1]} ({1 + len(rest)})" if rest else str(first), cells


def _memory_cells(stage: StageFacts, shown: Sequence[str]) -> tuple[str, ...]:
    """What each item takes, the peak, its style, and how much of the usable memory that is."""
    share = stage.peak_bytes / max(stage.usable_bytes, 1.0)
    return (
        *(f"{stage.memory[name] / GIB:.2f}" for name in shown),
        f"{stage.peak_bytes / GIB:.2f}",
        "red" if share > 1 else "yellow" if share > FULL else "green",
        f"{stage.usable_bytes / GIB:.2f} ({100 * share:.0f} %)",
    )


def _legend(stages: Sequence[StageFacts]) -> str:
    """What the tables' short words mean, and the margin."""
    text = (
        "parallelism: dp data, tp tensor, cp context, ring context by ring attention, ep experts; "
        "(%) of a time: collectives"
    )
    margin = 1 - stages[0].usable_bytes / stages[0].memory_bytes
    if margin > 0:
        text += f"; {format_percent(margin)} of memory is kept free"
    return text


def _shortened(table: Table, stages: Sequence[StageFacts]) -> Table:
    if len(stages) > MAX_STAGES:
        table.add_row("", f"... {len(stages) - MAX_STAGES} more")
    return table
