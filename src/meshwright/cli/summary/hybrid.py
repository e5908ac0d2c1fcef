"""Plans of stages for people: degrees, stages, memory, and the plans that came next."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console

from meshwright.cli.console import Cell, Words
from meshwright.cli.sheet import Sheet
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
    rows = []
    for each in answer.runner_ups[:MAX_RUNNER_UPS]:
        slower = each.step_seconds / answer.step_seconds - 1 if answer.step_seconds else 0.0
        rows.append((each.description, format_seconds(each.step_seconds), f"{100 * slower:.2f} %"))
    console.print(Sheet(("next best", "step", "slower"), rows, wraps=("next best",)))
    console.print()


def _stage_table(cluster: Cluster, stages: Sequence[StageFacts]) -> Sheet:
    rows = [
        (
            str(number),
            name_layers(stage),
            f"{name_runs(cluster, stage.part.devices)} ({len(stage.part.devices):,})",
            name_degrees(stage.part),
            str(stage.part.zero),
            str(stage.part.recompute),
            _name_seconds(stage.forward_seconds, stage.forward_call_seconds),
            _name_seconds(stage.backward_seconds, stage.backward_call_seconds),
            f"{100 * stage.busy:.0f} %",
        )
        for number, stage in enumerate(stages[:MAX_STAGES])
    ]
    heads = ("#", "layers", "devices", "parallelism", "ZeRO", "recompute")
    times = ("forward", "backward", "busy")
    return Sheet((*heads, *times), [*rows, *_left_out(stages)], wraps=("devices",))


def name_layers(stage: StageFacts) -> str:
    """The first and the last layer of a stage: "1 - 12"."""
    first, last = (name.removeprefix("layer ") for name in stage.layers)
    return first if stage.num_layers == 1 else f"{first} - {last}"


def name_degrees(part: Part) -> str:
    """How many replicas, and over how many devices each is split: "dp32 tp4 cp2"."""
    context = "ring" if part.keys is Keys.RING else "cp"
    widths = {"tp": part.tensor, context: part.context, "ep": part.expert}
    shown = (f"{axis}{width}" for axis, width in widths.items() if width > 1)
    return " ".join((f"dp{part.num_replicas}", *shown))


def _name_seconds(seconds: float, calls: float) -> str:
    """A time and how much of it are collectives."""
    share = 100 * calls / seconds if seconds else 0.0
    return format_seconds(float(f"{seconds:.3g}")) + (f" ({share:.0f} %)" if share >= 0.5 else "")


def _memory_table(stages: Sequence[StageFacts]) -> Sheet:
    shown = [name for name in _ITEMS if any(stage.memory[name] > 0 for stage in stages)]
    rows: list[Sequence[Cell]] = [
        (name, *texts, Words(peak, style=style), usable)
        for name, (*texts, peak, style, usable) in _alike(
            [_memory_cells(stage, shown) for stage in stages[:MAX_STAGES]]
        )
    ]
    heads = ("#", *(_ITEMS[name] for name in shown), "peak", "of usable GiB")
    return Sheet(heads, [*rows, *_left_out(stages)])


def _beside_table(stages: Sequence[StageFacts]) -> Sheet:
    """What else is in the memory of the same devices."""
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
    heads = ("#", "peak", *_BESIDE.values(), "as nvidia-smi shows", "of GiB")
    lines = [(name, *cells) for name, cells in _alike(rows)]
    return Sheet(heads, [*lines, *_left_out(stages)])


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


def _left_out(stages: Sequence[StageFacts]) -> list[tuple[str, ...]]:
    """A row that says how many stages have none."""
    left = len(stages) - MAX_STAGES
    return [("", f"... {left:,} more")] if left > 0 else []
