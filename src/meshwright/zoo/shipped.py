"""Captured graphs that come with the package, so that a first try needs no torch.

`scripts/ship-graphs` makes them: a model of the zoo a file, at its usual batch. Those of
models that nobody wrote in PyTorch (mlp, unet) are from formulas, and only the files are left.
"""

from dataclasses import replace
from pathlib import Path

from meshwright.graph.graph import Graph, read_graph
from meshwright.zoo.model import FULL, SHIPPED_OPTIMIZERS, TF32, Choice, choose

FOLDER = Path(__file__).parent / "shipped"
SUFFIX = ".json.gz"


def shipped_names() -> tuple[str, ...]:
    """The models whose graphs come with the package."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}")))


def read_shipped(name: str, batch: float | None = None) -> Graph:
    """The graph of a model that comes with the package; None: at its usual batch."""
    graph = read_graph(FOLDER / f"{name}{SUFFIX}")
    return graph if batch is None else graph.at_batch(batch)


def is_shipped(choice: Choice) -> bool:
    """Whether a step comes with the package, or follows from one that does: at another batch, with
    Adam in place of AdamW, in TF32 in place of fp32."""
    usual = choose(choice.model, batch=choice.batch, optimizer=choice.optimizer)
    if {choice.precision, usual.precision} <= set(FULL):
        usual = replace(usual, precision=choice.precision)
    return (
        choice == usual
        and choice.optimizer in SHIPPED_OPTIMIZERS
        and choice.model.name in shipped_names()
    )


def make_shipped(choice: Choice) -> Graph | None:
    """The graph of a step, None where `is_shipped` is false."""
    if not is_shipped(choice):
        return None
    graph = read_shipped(choice.model.name, choice.batch)
    if choice.optimizer == "adam":  # weight decay adds no bytes, so only names differ
        names, kinds = (
            tuple(each.replace("adamw", "adam") for each in texts)
            for texts in (graph.op_names, graph.kind)
        )
        graph = replace(graph, op_names=names, kind=kinds)
    if choice.precision == TF32:
        multiplied = (TF32 if flops > 0 else "fp32" for flops in graph.flops.tolist())
        graph = replace(graph, precision=tuple(multiplied))
    return graph
