"""`meshwright capture`: a PyTorch training step as a graph file."""

from argparse import Namespace
from typing import Any

import numpy as np

from meshwright.cli.console import print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.execute.environment import rank_threads
from meshwright.graph.foreach import update_by_foreach
from meshwright.graph.graph import Graph
from meshwright.message import remark
from meshwright.source import capture_model
from meshwright.units import format_bytes, format_count, format_flops


def run_capture(arguments: Namespace) -> int:
    """Capture a training step and write it as a graph file."""
    graph = capture_model(
        arguments.model,
        **step_words(arguments),
        profiles=arguments.profiles,
        compile=arguments.compile,
        untie=arguments.untie,
        inference=arguments.inference,
        threads=rank_threads(),
        use_cache=arguments.use_cache,
        say=remark,
    )
    if arguments.foreach:
        graph = update_by_foreach(graph)
    graph.save(arguments.output)
    if arguments.json:
        print_json({**_document(graph), "graph": str(arguments.output)})
    else:
        remark(
            f"wrote {arguments.output}: {format_count(graph.num_ops, 'op')}, "
            f"{format_bytes(float(graph.parameter_bytes.sum()))} of parameters, "
            f"{format_flops(float(graph.flops.sum()))} a step at batch {graph.batch:,.10g}"
        )
        if arguments.profiles:
            remark(_describe_measured(graph))
    return ExitCode.DONE


def step_words(arguments: Namespace) -> dict[str, Any]:
    """What the options say of the step of a model; that code of the user is run is said."""
    if ":" in arguments.model:
        remark(f"importing and calling {arguments.model}")
    words = ("optimizer", "autocast", "batch", "sequence", "precision")
    return {word: getattr(arguments, word) for word in words} | {"loss": arguments.loss_function}


def count_measured(graph: Graph) -> dict[str, int]:
    """How many ops have a measured time on each type of device."""
    return {kind: int(np.isfinite(each).sum()) for kind, each in graph.seconds.items()}


def _describe_measured(graph: Graph) -> str:
    counts = count_measured(graph)
    if not counts:
        return (
            "no op has a measured time: the profile must be of the same step (batch, sequence, "
            "precision, optimizer, autocast)"
        )
    each = ", ".join(f"{count} on {kind}" for kind, count in counts.items())
    rest = "" if min(counts.values()) == graph.num_ops else "; the others' are estimated"
    return f"measured times: of {graph.num_ops:,} ops {each}{rest}"


def _document(graph: Graph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "batch": graph.batch,
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "flops": float(graph.flops.sum()),
        "parameter_bytes": float(graph.parameter_bytes.sum()),
        "measured_ops": count_measured(graph),
    }
