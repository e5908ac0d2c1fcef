"""`meshwright capture`: a PyTorch training step as a graph file."""

from argparse import Namespace

from meshwright.api import capture_model
from meshwright.cli.console import print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.message import say
from meshwright.graph.graph import Graph
from meshwright.units import format_bytes


def run_capture(arguments: Namespace) -> int:
    """Run `capture`."""
    if ":" in arguments.model:
        say(f"importing and calling {arguments.model}")
    graph = capture_model(arguments.model, arguments.optimizer, arguments.autocast, arguments.batch)
    graph.save(arguments.output)
    if arguments.json:
        print_json({**_document(graph), "graph": str(arguments.output)})
    else:
        say(
            f"wrote {arguments.output}: {graph.num_ops} ops, "
            f"{format_bytes(float(graph.parameter_bytes.sum()))} of parameters, "
            f"{float(graph.flops.sum()) / 1e12:.4g} TFLOP a step at batch {graph.batch:g}"
        )
    return ExitCode.DONE


def _document(graph: Graph) -> dict[str, float | str]:
    return {
        "name": graph.name,
        "batch": graph.batch,
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "flops": float(graph.flops.sum()),
        "parameter_bytes": float(graph.parameter_bytes.sum()),
    }
