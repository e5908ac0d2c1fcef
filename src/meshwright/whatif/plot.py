"""Plots of a sweep in a file, by matplotlib, which is optional."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwright.errors import InputError
from meshwright.whatif.curve import list_curves
from meshwright.whatif.sweep import Sweep

PLOTS = (".svg", ".png")
"""What names of files with plots end in."""
_INCHES = (7.0, 4.5)


def need_plots() -> None:
    """Refuse a plot where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise InputError("plot: needs matplotlib; install meshwright[plot], or write .csv or .json")


def plot_sweep(sweep: Sweep, path: Path) -> None:
    """Draw throughput over the first axis, with the bound beside it."""
    need_plots()
    # Not pyplot, which keeps figures and looks for a display.
    figure: Any = import_module("matplotlib.figure").Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    for curve in list_curves(sweep):
        (line,) = axes.plot(*_columns(curve.points), marker="o", label=curve.name)
        if curve.bounds:
            label = f"bound of {curve.name}"
            color = line.get_color()
            axes.plot(*_columns(curve.bounds), linestyle="--", color=color, label=label)
    axes.set_xlabel(sweep.axes[0].name)
    axes.set_ylabel("samples/s")
    axes.set_title(sweep.model)
    if all(x > 0 for curve in list_curves(sweep) for x, _ in curve.points):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for which in (axes.xaxis, axes.yaxis):
            which.set_major_formatter("{x:g}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def _columns(points: tuple[tuple[float, float], ...]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
