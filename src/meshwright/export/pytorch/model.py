"""How a script builds the model that it trains: by a factory of the user, or as the zoo builds one
of transformers' classes. Runs a factory; decides nothing about plans."""

import pprint
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.errors import InputError, quoted
from meshwright.export.pytorch.layout import TARGET
from meshwright.function import names_function
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_tokens

if TYPE_CHECKING:
    from meshwright.capture.outline import Outline
    from meshwright.capture.workload import Workload

LOSSES = {
    "output": "output",
    "attribute": "output.loss",
    "item": 'output["loss"]',
    "function": "LOSS(output)",
}
"""How a script reads the loss, by where the model has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model as a script builds it."""

    outline: "Outline"
    build: str
    """The body of the function that builds it."""


def build_model(graph: Graph, name: str) -> Built:
    """The model of a name, with inputs of the graph's batch."""
    from meshwright.capture.outline import outline_model

    own = names_function(name)
    workload = _run(graph, name) if own else _zoo(graph, name)
    if workload.num_samples != graph.batch:
        raise InputError(
            f"{quoted(name)}: must make inputs of the plan's batch of {graph.batch:g} samples, "
            f"made {workload.num_samples}; give the factory an argument batch"
        )
    outline = outline_model(workload)
    lines = _factory_lines(graph, name, outline) if own else _zoo_lines(name, workload)
    return Built(outline=outline, build="\n".join(f"    {line}".rstrip() for line in lines))


def _run(graph: Graph, name: str) -> "Workload":
    from meshwright.capture.factory import keywords, run_factory

    takes = "batch" in keywords(name)
    return run_factory(name, batch=round(graph.batch) if takes else None)


def _zoo(graph: Graph, name: str) -> "Workload":
    from meshwright.capture.zoo.catalogue import build, recipe_settings

    if recipe_settings(name) is None:
        raise InputError(
            f"{TARGET}: model must be a package.module:factory or one of the zoo that transformers "
            f"has, since a script has no code of {quoted(name)}; give --model"
        )
    return build(name, round(graph.batch), find_tokens(graph) or None, "fp32")


def _factory_lines(graph: Graph, name: str, outline: "Outline") -> list[str]:
    from meshwright.capture.factory import keywords

    module, _, attribute = name.rpartition(":")
    if module.endswith(".py"):
        raise InputError(
            f"{TARGET}: model must be package.module:factory, which the script can import, got "
            f"{quoted(name)}"
        )
    given = f"batch={round(graph.batch)}" if "batch" in keywords(name) else ""
    named = ", ".join(f'"{each}"' for each in outline.inputs[: outline.num_given])
    function = outline.loss == "function"
    return [
        f"from {module} import {attribute.partition('.')[0]}",
        "",
        *(["global LOSS"] if function else []),
        f"made = {attribute}({given})",
        "if isinstance(made, dict):",
        '    model, args, kwargs = made["model"], made.get("args", ()), made.get("kwargs") or {}',
        *(['    LOSS = made.get("loss")'] if function else []),
        "else:",
        "    model, args, kwargs = (*made, {}, {})[:3] if len(made) > 1 else (made[0], (), {})",
        "if isinstance(args, dict):",
        "    args, kwargs = (), args | kwargs",
        "elif isinstance(args, torch.Tensor):",
        "    args = (args,)",
        f"names = ({named}{',' if outline.num_given == 1 else ''})",
        "return model, dict(zip(names, args)) | kwargs",
    ]


def _zoo_lines(name: str, workload: "Workload") -> list[str]:
    from meshwright.capture.zoo.catalogue import recipe_settings

    found = recipe_settings(name)
    assert found is not None, "refused before"
    family, config = found
    lines = ["import transformers", "", f"config = transformers.{family.config}("]
    lines += [f"    {key}={pprint.pformat(value)}," for key, value in config.items()]
    lines += [")"]
    if family.experts is not None:
        lines.append(f'config._experts_implementation = "{family.experts}"')
    lines.append(f"model = transformers.{family.model}(config)")
    if family.loss is not None:
        lines.append(f'model.loss_type = "{family.loss}"')
    return [*lines, *_random_inputs(workload.kwargs, config)]


def _random_inputs(inputs: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Tokens at random, as the zoo feeds its models."""
    lines = ["inputs = {"]
    for name, tensor in inputs.items():
        most = 2 if tensor.dim() == 1 else config["vocab_size"]
        lines.append(f'    "{name}": torch.randint({most}, {tuple(tensor.shape)}),')
    return [*lines, "}", "return model, inputs"]
