"""`meshwright zoo`: models that need no file."""

from argparse import Namespace
from typing import Any

from meshwright.cli.console import make_console, print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.sheet import print_table
from meshwright.message import remark
from meshwright.source import list_zoo, zoo_graph
from meshwright.units import format_number

_SOURCES = (
    "source: `shipped` and `formula` are there at once; `torch` is captured with PyTorch when "
    "first used, `cached` from then on; `missing` needs PyTorch: install meshwright[zoo]"
)


def run_zoo(arguments: Namespace) -> int:
    """Run `zoo` or `zoo save`."""
    if arguments.action == "save":
        graph = zoo_graph(
            arguments.name,
            arguments.batch,
            sequence=arguments.sequence,
            precision=arguments.precision,
            optimizer=arguments.optimizer,
            say=remark,
        )
        graph.save(arguments.file)
        remark(f"wrote {arguments.file}")
        return ExitCode.DONE
    models = zoo_documents()
    if arguments.json:
        print_json({"models": models})
        return ExitCode.DONE
    print_table(
        ("model", "batch", "sequence", "parameters", "source", "what it is"),
        [
            (
                each["name"],
                f"{each['batch']:,}",
                str(each["sequence"] or ""),
                _millions(each["parameters"]),
                each["source"],
                each["description"],
            )
            for each in models
        ],
        wraps=("what it is",),
    )
    make_console().print(_SOURCES)
    return ExitCode.DONE


def zoo_documents() -> list[dict[str, Any]]:
    """Every model with its usual step, and where its graph would come from."""
    return [
        {
            "name": model.name,
            "description": model.description,
            "batch": model.batch,
            "sequence": model.sequence,
            "parameters": model.parameters,
            "precisions": model.precisions,
            "source": origin,
        }
        for model, origin in list_zoo()
    ]


def _millions(count: int) -> str:
    return f"{format_number(count / 1e6)} M" if count < 1e9 else f"{format_number(count / 1e9)} G"
