"""`meshwright sweep`: a scaling curve, as a table, a plot in the terminal, or a file."""

import csv
import io
import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from meshwright.api import sweep
from meshwright.cli.console import Words, make_console, print_json, print_line
from meshwright.cli.curve import draw_curves
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.machine import load_cluster_here
from meshwright.cli.parser.whatif import CHANGES
from meshwright.cli.progress import shown_progress
from meshwright.cli.sheet import print_table
from meshwright.cli.whatif import NONE, format_cost, format_step
from meshwright.errors import InputError
from meshwright.files import write_bytes, write_document
from meshwright.message import remark, say
from meshwright.source import load_graph
from meshwright.units import format_number, format_percent, format_seconds
from meshwright.whatif.plot import PLOTS, need_plots, plot_sweep
from meshwright.whatif.sweep import Axis, Point, Sweep

TABLES = (".csv", ".json")


def run_sweep(arguments: Namespace) -> int:
    """Plan all points, write them when asked to, and show them."""
    _check_output(arguments.output)
    found = _sweep(arguments)
    if arguments.output is not None:
        _write(found, arguments.output)
    if arguments.json:
        print_json(found.to_dict())
    else:
        _show(found)
    if arguments.output is not None:
        remark(f"wrote {arguments.output}")
    if found.was_interrupted:
        say("interrupted; the points that were done are shown")
        return ExitCode.INTERRUPTED
    if found.best is None:
        say(f"no point will do: {_why_none(found)}")
        return ExitCode.NO_PLAN
    return ExitCode.DONE


def _sweep(arguments: Namespace) -> Sweep:
    axes = {name: texts for name in CHANGES if (texts := getattr(arguments, name))}
    own = {name: getattr(arguments, name) for name in ("method", "seed", "precision")}
    given = {name: value for name, value in own.items() if value is not None}
    source: object = arguments.graph
    cluster = None if arguments.cluster is None else load_cluster_here(arguments.cluster)
    if cluster is None and given:
        raise InputError(
            f"--{next(iter(given))}: needs a model and --cluster; a folder has its own"
        )
    if cluster is not None:
        source = load_graph(arguments.graph, precision=given.pop("precision", None), say=remark)
    with shown_progress(f"sweeping {arguments.graph}", arguments) as progress:
        return sweep(
            source,  # type: ignore[arg-type]
            cluster,
            objective=arguments.objective,
            deadline_seconds=math.inf if arguments.deadline is None else arguments.deadline,
            weak=arguments.weak,
            prices=arguments.price,
            budget_seconds=arguments.budget,
            workers=arguments.workers,
            progress=progress,
            **given,
            **axes,
        )


def _check_output(path: Path | None) -> None:
    """Refuse a file that cannot be written, before long work and not after it."""
    if path is None:
        return
    if path.suffix not in (*PLOTS, *TABLES):
        raise InputError(f"{path}: must end in {', '.join((*PLOTS, *TABLES))}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: must be in a folder that exists")
    if path.suffix in PLOTS:
        need_plots()


def _write(found: Sweep, path: Path) -> None:
    if path.suffix in PLOTS:
        plot_sweep(found, path)
    elif path.suffix == ".json":
        write_document(path, found.to_dict())
    else:
        text = io.StringIO()
        rows = csv.writer(text)
        columns = found.columns()
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
        write_bytes(path, text.getvalue().encode())


def _show(found: Sweep) -> None:
    make_console().print(Words(f"{found.model}, by {found.method}", style="bold"))
    has_prices = any(not math.isnan(point.outcome.price_per_hour) for point in found.points)
    heads = [axis.name for axis in found.axes]
    heads += ["devices"] if "devices" not in heads else []
    heads += ["step", "bound", "samples/s", "efficiency", "memory left"]
    heads += ["cost/step", "cost/sample"] if has_prices else []
    rows = [tuple(_cells(found, point, has_prices=has_prices)) for point in found.points]
    print_table(heads, rows)
    for line in draw_curves(found):
        print_line(line)
    for point in found.points:
        if not point.outcome.planned.fits:
            remark(f"no plan with {point.outcome.name}: {point.outcome.planned.obstacle}")
    for note in found.notes:
        remark(f"not planned: {note}")
    remark(f"each search had {format_seconds(found.budget_seconds)}")
    if found.best is not None:
        best = found.points[found.best].outcome
        print_line(f"best by {_goal(found)}: {best.name}; {best.best.description}")


def _cells(found: Sweep, point: Point, *, has_prices: bool) -> Iterator[str]:
    outcome = point.outcome
    yield from (point.values[axis.name] for axis in found.axes)
    if not any(_is_devices(axis) for axis in found.axes):
        yield f"{outcome.num_devices:,}"
    yield format_step(outcome.best)
    yield format_seconds(outcome.bound_seconds) if outcome.bound_seconds else NONE
    yield format_number(outcome.samples_per_second) if outcome.best.fits else NONE
    yield NONE if math.isnan(point.efficiency) else format_percent(point.efficiency)
    yield NONE if math.isinf(outcome.best.headroom) else format_percent(outcome.best.headroom)
    if has_prices:
        yield format_cost(outcome.cost_per_step)
        yield format_cost(outcome.cost_per_sample)


def _is_devices(axis: Axis) -> bool:
    return axis.name == "devices"


def _goal(found: Sweep) -> str:
    """What is best, for people."""
    limit = found.deadline_seconds
    return f"{found.objective}" + (f" within {format_seconds(limit)}" if limit < math.inf else "")


def _why_none(found: Sweep) -> str:
    fitting = [each.outcome.best for each in found.points if each.outcome.best.fits]
    if not fitting:
        return "no plan fits at any"
    if not any(each.seconds <= found.deadline_seconds for each in fitting):
        least = min(each.seconds for each in fitting)
        limit = format_seconds(found.deadline_seconds)
        return f"the shortest step is {format_seconds(least)}, the deadline {limit}"
    return "no point has a price for all of its devices"
