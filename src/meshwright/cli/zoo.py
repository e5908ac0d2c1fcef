"""`meshwright zoo`: models that need no file."""

from argparse import Namespace
from typing import Any

from meshwright.cli.console import print_json, print_table
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.message import say
from meshwright.graph.zoo import build_model, zoo_models

_PARAMETER_BYTES = 4
"""The zoo's weights are fp32."""


def run_zoo(arguments: Namespace) -> int:
    """Run `zoo` or `zoo save`."""
    if arguments.action == "save":
        build_model(arguments.name, arguments.batch).save(arguments.file)
        say(f"wrote {arguments.file}")
        return ExitCode.DONE
    models = zoo_documents()
    if arguments.json:
        print_json({"models": models})
        return ExitCode.DONE
    print_table(
        ("model", "batch", "ops", "parameters", "what it is"),
        [
            (
                each["name"],
                str(each["batch"]),
                str(each["ops"]),
                f"{each['parameters'] / 1e6:.4g} M",
                each["description"],
            )
            for each in models
        ],
    )
    return ExitCode.DONE


def zoo_documents() -> list[dict[str, Any]]:
    """Every model with its size at its usual batch."""
    models = []
    for entry in zoo_models():
        graph = build_model(entry.name)
        models.append(
            {
                "name": entry.name,
                "description": entry.description,
                "batch": entry.batch,
                "sequence": entry.sequence,
                "ops": graph.num_ops,
                "tensors": graph.num_tensors,
                "parameters": round(float(graph.parameter_bytes.sum()) / _PARAMETER_BYTES),
            }
        )
    return models
