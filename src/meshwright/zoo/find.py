"""Finds the graph of a model of the zoo: shipped, from formulas, cached, or captured now.

Shipped graphs and formulas (`graph.architecture`) come before a capture because they are equal to
it op for op, which tests hold. Knows how to capture only as a function that is handed in, so that
it needs no torch.
"""

from collections.abc import Callable
from typing import Literal

from meshwright.errors import InputError, quoted
from meshwright.graph.architecture.rule import SHORTEST_SEQUENCE
from meshwright.graph.architecture.shape import Shape
from meshwright.graph.graph import Graph
from meshwright.zoo.cache import GraphCache
from meshwright.zoo.model import FULL, SHIPPED_OPTIMIZERS, Choice, ZooModel, choose
from meshwright.zoo.shape import find_shape
from meshwright.zoo.shipped import is_shipped, make_shipped, shipped_names

Capture = Callable[[Choice], Graph]
Say = Callable[[str], None]
Origin = Literal["shipped", "cached", "torch", "formula", "missing"]
"""Where a graph comes from; `missing`: from nowhere until a package is installed."""


def find_graph(
    choice: Choice, *, capture: Capture | None, cache: GraphCache | None, say: Say
) -> Graph:
    """The graph of a step, from the first of the places that has it.

    `capture` is None where the packages that it needs are not installed.
    """
    shipped = make_shipped(choice)
    if shipped is not None:
        return shipped
    shape = _find_shape(choice)
    if shape is not None:
        return shape.build(
            batch=choice.batch,
            precision=choice.precision,
            optimizer=choice.optimizer,
            name=choice.model.name,
        )
    if choice.model.source != "graph" and capture is not None:
        return capture_once(choice, capture=capture, cache=cache, say=say)
    raise InputError(f"{choice.model.name}: {_missing(choice)}")


def capture_once(choice: Choice, *, capture: Capture, cache: GraphCache | None, say: Say) -> Graph:
    """Capture a step, or take it from the cache where it was captured before."""
    kept = None if cache is None else _read_kept(choice, cache, say)
    if cache is not None and kept is not None:
        say(f"{choice.model.name}: captured before, read from {cache.path(choice)}")
        return kept
    say(f"{choice.model.name}: capturing with PyTorch")
    graph = capture(choice)
    if cache is None:
        return graph
    try:
        cache.write(choice, graph)
    except InputError as error:
        say(f"{choice.model.name}: cannot be kept for the next time: {error}")
    return graph


def _read_kept(choice: Choice, cache: GraphCache, say: Say) -> Graph | None:
    try:
        return cache.read(choice)
    except InputError as error:
        say(f"{choice.model.name}: what was captured before is damaged: {error}")
        return None


def find_origin(choice: Choice, *, can_capture: bool, cache: GraphCache | None) -> Origin:
    """Where `find_graph` would take a step from."""
    if is_shipped(choice):
        return "shipped"
    if _find_shape(choice) is not None:
        return "formula"
    if choice.model.source != "graph" and can_capture:
        return "cached" if cache is not None and cache.has(choice) else "torch"
    return "missing"


def needs(model: ZooModel) -> str:
    """What to install for a model that has to be captured."""
    if model.source == "transformers":
        return "needs PyTorch and the package transformers; install meshwright[zoo]"
    return "needs PyTorch; install meshwright[torch]"


def _find_shape(choice: Choice) -> Shape | None:
    """The shape of a step that formulas give as capture does; what changes ops or times is left to
    a capture."""
    is_short = choice.sequence is not None and choice.sequence < SHORTEST_SEQUENCE
    if is_short and choice.model.source != "graph":
        return None
    if choice.autocast or choice.measured or choice.compile or choice.untie or choice.inference:
        return None
    return find_shape(choice.model.name, choice.sequence)


def _missing(choice: Choice) -> str:
    """Why there is no graph of a step."""
    model = choice.model
    if choose(model).precision not in FULL or model.name not in shipped_names():
        return needs(model)
    rest = "" if model.source == "graph" else f"; anything else {needs(model)}"
    for what, given, known in (
        ("precision", choice.precision, FULL),
        ("optimizer", choice.optimizer, SHIPPED_OPTIMIZERS),
    ):
        if given not in known:
            rule = f"{what} of a shipped graph must be {' or '.join(known)}"
            return f"{rule}, got {quoted(given)}{rest}"
    return needs(model)
