"""From a file and a model's name to an audit. Decides which model is meant where the file states
one, and refuses a file and a model that contradict each other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.audit.audit import Audit, audit_setup
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted
from meshwright.export.config.model import find_numbers
from meshwright.export.config.recognise import read_setup
from meshwright.export.config.setup import Setup, find_ends
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers, find_tokens
from meshwright.source import load_graph

_PRECISIONS = ("fp32", "bf16", "mixed")
"""Those that both a configuration and a graph may have."""


def audit_file(
    path: Path,
    model: str | Path | Graph | None,
    cluster: Cluster,
    *,
    batch: int | None = None,
    microbatches: int | None = None,
    precision: str | None = None,
    budget_seconds: float = 30.0,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Read a configuration, and audit it for a model, or for the one that the file states."""
    setup = read_setup(path)
    setup = with_said(setup, batch, microbatches)
    graph = load_model(setup, path, model, precision)
    setup = replace(setup, remarks=(*setup.remarks, *check_model(setup, graph)))
    return audit_setup(setup, graph, cluster, budget_seconds=budget_seconds, progress=progress)


def with_said(setup: Setup, batch: int | None, microbatches: int | None) -> Setup:
    """The set-up with what is said beside its file; what the file says goes first."""
    for name, value in (("batch", batch), ("microbatches", microbatches)):
        own = getattr(setup, name)
        if value is None or own == value:
            continue
        if own and name in setup.origins:
            raise InputError(f"{setup.origins[name]}: is {own}, but --{name} says {value}")
        said: dict[str, Any] = {name: value}
        setup = replace(setup, **said)
    return setup


def load_model(
    setup: Setup, path: Path, model: str | Path | Graph | None, precision: str | None
) -> Graph:
    """The graph of a model, in the precision that the file says where a name leaves it open."""
    source = model if model is not None else setup.model
    if not source:
        raise InputError(f"{path}: does not say which model it is of; give --model")
    if isinstance(source, Graph):
        return load_graph(source, precision=precision)
    wanted = precision or (setup.precision if setup.precision in _PRECISIONS else None)
    try:
        return load_graph(source, precision=wanted)
    except InputError:
        if precision is not None or wanted is None:
            raise
    return load_graph(source)  # a graph file, which has its own, or a model without that one


def check_model(setup: Setup, graph: Graph) -> list[str]:
    """Refuse a model of other sizes than the file says; a sentence for what is only otherwise."""
    remarks = []
    try:
        stack = find_layers(graph)
    except InputError:
        stack = None
    if stack is not None:
        num_blocks = stack.num_layers - sum(find_ends(stack))
        for name, own in (("num_blocks", num_blocks), ("sequence", find_tokens(graph))):
            said = getattr(setup, name)
            if said and own and said != own:
                what = "layers" if name == "num_blocks" else "tokens a sample"
                raise InputError(
                    f"{setup.origins.get(name, name)}: must be the {own} {what} of model "
                    f"{quoted(graph.name)}, got {said}"
                )
    precision, _ = find_numbers(graph)
    if setup.precision and precision and setup.precision != precision:
        place = setup.origins.get("precision", "precision")
        remarks.append(
            f"{place}: {setup.precision}, predicted in {precision}, as the model's graph is"
        )
    return remarks
