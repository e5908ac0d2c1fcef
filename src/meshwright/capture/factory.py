"""Runs a factory of the user to get a model and its inputs, or the data to train on."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from meshwright.capture.inputs import as_inputs
from meshwright.capture.torch_private import uncompiled
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, quoted
from meshwright.function import import_function

_KEYS = ("model", "args", "kwargs", "loss", "batch")


def run_factory(
    name: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    loss: str | None = None,
) -> Workload:
    """What a factory makes of a model.

    It returns `(model, args)`, `(model, args, kwargs)` or a mapping with `model` and any of `args`,
    `kwargs`, `loss` and `batch`; args may be a mapping of named inputs. Building under
    `torch.device("meta")` needs no memory. It is given those of `batch`, `sequence` and `precision`
    that are known here and that it has an argument for. Inputs of another batch are resized.
    `loss`: the name of a function that comes before the factory's own.
    """
    wanted = {"batch": batch, "sequence": sequence, "precision": precision}
    known = keywords(name)
    given = {key: value for key, value in wanted.items() if value is not None}
    for key, value in given.items():
        if key not in known and key != "batch":
            raise InputError(
                f"{quoted(name)}: a factory sets its own {key} unless it has an argument {key}, "
                f"got {value}"
            )
    lacking = [key for key in wanted if known.get(key) and key not in given]
    if lacking:
        options = " and ".join(f"--{key}" for key in lacking)
        raise InputError(f"{quoted(name)}: needs {', '.join(lacking)}, give {options}")
    taken = {key: value for key, value in given.items() if key in known}
    workload = _read(name, call_factory(name, **taken))
    if loss is not None:
        workload = replace(workload, loss=import_function(loss))
    if "batch" in taken and workload.batch is None:
        return replace(workload, batch=batch)
    return workload if batch is None else workload.at_batch(batch)


def call_factory(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user."""
    factory = import_function(name)
    try:
        return factory(*args, **kwargs)
    except Exception as error:
        raise InputError(f"{quoted(name)}: raised {type(error).__name__}: {error}") from error


def keywords(name: str) -> dict[str, bool]:
    """The arguments that can be given by name to a function of the user, and whether each must be;
    none where Python does not know."""
    function = import_function(name)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: each.default is each.empty for each in parameters if each.kind in by_name}


def _read(name: str, made: Any) -> Workload:
    got = type(made).__name__
    if isinstance(made, tuple | list) and 1 <= len(made) <= 3:
        got += f" of {', '.join(type(each).__name__ for each in made)}"
        made = dict(zip(_KEYS, made, strict=False))
    if not isinstance(made, Mapping) or not isinstance(made.get("model"), nn.Module):
        raise InputError(
            f"{quoted(name)}: must return (model, args), (model, args, kwargs) or a mapping with "
            f"{', '.join(_KEYS)}, got {got}"
        )
    unknown = sorted(str(key) for key in made if key not in _KEYS)
    if unknown:
        raise InputError(f"{quoted(name)}: unknown entries {', '.join(unknown)}")
    args, named = as_inputs(made.get("args", ()))
    return Workload(
        name=name,
        model=uncompiled(made["model"]),
        args=args,
        kwargs=named | dict(made.get("kwargs") or {}),
        loss=made.get("loss"),
        batch=made.get("batch"),
    )
