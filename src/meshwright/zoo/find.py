"""Finds the graph of a model of the zoo: shipped, from formulas, cached, or captured now.

Formulas come before a capture where they give the same graph op for op (`graph.architecture`, which
tests hold against captured steps), else after it. Knows how to capture only as a function that is
handed in, so that it needs no torch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from meshwright.errors import InputError, quoted
from meshwright.graph.architecture.rule import SHORTEST_SEQUENCE
from meshwright.graph.architecture.shape import Shape
from meshwright.graph.graph import Graph
from meshwright.graph.zoo import build_model, formula_models
from meshwright.zoo.cache import GraphCache
from meshwright.zoo.model import FORMULA_OPTIMIZERS, FULL, TF32, Choice, ZooModel
from meshwright.zoo.shape import find_shape
from meshwright.zoo.shipped import is_shipped, read_shipped

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
    shipped = read_shipped(choice)
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
    if choice.model.source != "formula" and capture is not None:
        return capture_once(choice, capture=capture, cache=cache, say=say)
    if _has_formula(choice.model):
        return _build(choice)
    raise InputError(f"{choice.model.name}: {needs(choice.model)}")


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
    if choice.model.source != "formula" and can_capture:
        return "cached" if cache is not None and cache.has(choice) else "torch"
    return "formula" if _has_formula(choice.model) else "missing"


def needs(model: ZooModel) -> str:
    """What to install for a model that has to be captured."""
    if model.source == "transformers":
        return "needs PyTorch and the package transformers; install meshwright[zoo]"
    return "needs PyTorch; install meshwright[torch]"


def _find_shape(choice: Choice) -> Shape | None:
    """Of a step that formulas give as capture does; what changes ops or times is left to it."""
    is_short = choice.sequence is not None and choice.sequence < SHORTEST_SEQUENCE
    if is_short and choice.model.source != "formula":
        return None
    if choice.autocast or choice.measured or choice.compile or choice.untie or choice.inference:
        return None
    return find_shape(choice.model.name, choice.sequence)


def _has_formula(model: ZooModel) -> bool:
    return model.name in {each.name for each in formula_models()}


def _build(choice: Choice) -> Graph:
    """Formulas have weights in fp32 and Adam; anything else has to be captured.

    In TF32 is what multiplies: all that has FLOPs.
    """
    name = choice.model.name
    rest = "" if choice.model.source == "formula" else f"; anything else {needs(choice.model)}"
    if choice.precision not in FULL:
        raise InputError(
            f"{name}: precision of a graph from formulas must be {' or '.join(FULL)}, got "
            f"{quoted(choice.precision)}{rest}"
        )
    if choice.optimizer not in FORMULA_OPTIMIZERS:
        known = " or ".join(FORMULA_OPTIMIZERS)
        raise InputError(
            f"{name}: optimizer of a graph from formulas must be {known}, got "
            f"{quoted(choice.optimizer)}{rest}"
        )
    graph = build_model(name, choice.batch)
    if choice.precision == TF32:
        multiplied = (TF32 if flops > 0 else "fp32" for flops in graph.flops.tolist())
        graph = replace(graph, precision=tuple(multiplied))
    return graph
