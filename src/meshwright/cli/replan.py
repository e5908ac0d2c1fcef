"""`meshwright replan`: a plan for a changed cluster, and what moving to it takes and brings."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from meshwright.change.read import read_changes
from meshwright.cli.console import Cell, Words, make_console, print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.folder import check_folder
from meshwright.cli.machine import load_cluster_here
from meshwright.cli.parser.replan import DEVICE_CHANGES
from meshwright.cli.plan_folder import write_answer
from meshwright.cli.plan_view import write_page_beside, write_trace_beside
from meshwright.cli.progress import shown_progress
from meshwright.cli.sheet import Sheet
from meshwright.explain.explanation import word_remedy
from meshwright.message import remark, say
from meshwright.plan.answer import Stop
from meshwright.planned import PLAN_FILE, Planned, read_planned
from meshwright.replan.change import change_devices
from meshwright.replan.move import STORAGE, Moves
from meshwright.replan.transition import Transition, plan_transition
from meshwright.report.expected import with_facts
from meshwright.simulate.simulate import simulate
from meshwright.units import format_bytes, format_count, format_seconds

_MAX_ROWS = 12
"""So many parts, and so many pairs of hosts, are shown."""


def run_replan(arguments: Namespace) -> int:
    """Plan anew, write the new plan when asked to, and show what it changes."""
    folder: Path | None = arguments.output
    if folder is not None:
        check_folder(folder)
    planned = read_planned(arguments.plan)
    cluster = change_devices(
        planned.request.cluster,
        None if arguments.cluster is None else load_cluster_here(arguments.cluster),
        read_changes({name: getattr(arguments, name) for name in DEVICE_CHANGES}),
        arguments.bandwidth,
    )
    title = f"planning {planned.request.graph.name} anew on {cluster.name}"
    with shown_progress(title, arguments) as progress:
        found = plan_transition(
            planned,
            cluster,
            budget_seconds=arguments.budget,
            steps_to_checkpoint=arguments.checkpoint_every,
            storage_bytes_per_second=arguments.storage,
            progress=progress,
        )
    if folder is not None and found.fits:
        _write(arguments, folder, planned, found)
    if arguments.json:
        is_written = folder is not None and found.fits
        print_json(found.to_dict(str(folder / PLAN_FILE) if folder and is_written else None))
    else:
        _show(found)
        if folder is not None and found.fits:
            remark(f"wrote {folder}")
    if found.answer.stop is Stop.INTERRUPTED:
        say("interrupted; the best plan so far is shown")
        return ExitCode.INTERRUPTED
    if not found.fits:
        say(f"no plan fits: {found.answer.binding}")
        return ExitCode.NO_PLAN
    return ExitCode.DONE


def _write(arguments: Namespace, folder: Path, planned: Planned, found: Transition) -> None:
    """Write all that `plan -o` writes."""
    request, cluster, plan = planned.request, found.cluster, found.answer.plan
    assert plan is not None
    sharing, graph = request.sharing, request.graph
    timeline = simulate(graph, cluster, plan, sharing=sharing, with_links=True)
    answer = with_facts(graph, cluster, found.answer, timeline)
    write_answer(folder, graph, cluster, answer)
    if answer.stop is not Stop.INTERRUPTED:
        write_trace_beside(arguments, folder, timeline, cluster)
        write_page_beside(arguments, folder, graph, cluster, answer, timeline)


def _show(found: Transition) -> None:
    console = make_console()
    count = format_count(found.cluster.num_devices, "device")
    head = f"{found.model} on {found.cluster.name}, now {count}"
    console.print(Words(head, style="bold"))
    console.print(Sheet(("", "step", "plan"), list(_steps(found)), wraps=("plan",)))
    console.print()
    if not found.fits:
        console.print(Words("The smallest changes that do, each planned", style="bold"))
        rows = [(each.kind, word_remedy(each)) for each in found.remedies]
        console.print(Sheet(("change of", "what does"), rows, wraps=("what does",)))
        return
    _show_difference(console, found)
    assert found.moves is not None
    _show_moves(console, found.moves)
    console.print(Words(found.verdict, style="bold"))


def _steps(found: Transition) -> Iterator[Sequence[Cell]]:
    """The old plan, what is left of it, and the new one."""
    carried, answer = found.carried, found.answer
    before = "" if found.difference is None else found.difference.before
    yield "before", format_seconds(found.before_seconds), before
    if carried.obstacle:
        yield "carried over", "-", f"cannot run: {carried.obstacle}"
    else:
        yield "carried over", format_seconds(carried.step_seconds), carried.description
    if answer.plan is None:
        yield "planned anew", "-", f"none fits: {answer.binding}"
        return
    yield "planned anew", format_seconds(answer.step_seconds), answer.plan.description
    if answer.bound_seconds:
        yield "bound", format_seconds(answer.bound_seconds), ""


def _show_difference(console: Console, found: Transition) -> None:
    """What runs elsewhere than before."""
    difference = found.difference
    assert difference is not None
    if difference.is_same:
        console.print(Words("Nothing changes: every part stays as it is"))
        console.print()
        return
    layers = format_count(len(difference.moved_layers), "layer")
    where = f", of {layers}" if difference.moved_layers else ""
    console.print(Words("What changes", style="bold"))
    console.print(
        Words(
            f"{difference.moved_ops:,} of {difference.num_ops:,} ops run on devices that did not "
            f"run them{where}"
        )
    )
    rows: list[Sequence[Cell]] = [
        (str(each.number), each.before or "-", each.after or "-")
        for each in difference.parts[:_MAX_ROWS]
    ]
    console.print(Sheet(("part", "before", "after"), rows, wraps=("before", "after")))
    if len(difference.parts) > _MAX_ROWS:
        more = format_count(len(difference.parts) - _MAX_ROWS, "part")
        console.print(Words(f"{more} more change (see --json)", style="bright_black"))
    console.print()


def _show_moves(console: Console, moves: Moves) -> None:
    """Which bytes move, and how long that takes."""
    if not moves.total_bytes:
        console.print(Words("No parameter and no optimiser state has to move"))
        console.print()
        return
    size, whole = format_bytes(moves.total_bytes), format_bytes(moves.state_bytes)
    head = f"What moves: {size} of the {whole} that devices hold"
    console.print(Words(f"{head}, in {format_seconds(moves.seconds)}", style="bold"))
    flows = sorted(moves.between_hosts.items(), key=lambda each: -each[1])
    rows: list[Sequence[Cell]] = [
        ("checkpoint" if source == STORAGE else source, target, format_bytes(size))
        for (source, target), size in flows[:_MAX_ROWS]
    ]
    console.print(Sheet(("from", "to", "bytes"), rows, right=("bytes",)))
    if len(flows) > _MAX_ROWS:
        more = format_count(len(flows) - _MAX_ROWS, "pair")
        console.print(Words(f"{more} of hosts more (see --json)", style="bright_black"))
    console.print()
