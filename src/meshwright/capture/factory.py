"""Runs a factory of the user to get a model and its inputs, or the data to train on."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from meshwright.capture.workload import Workload
from meshwright.errors import InputError, quoted
from meshwright.function import import_function

_KEYS = ("model", "args", "kwargs", "loss", "batch")


def run_factory(name: str) -> Workload:
    """What a factory makes of a model.

    It returns `(model, args)`, `(model, args, kwargs)` or a mapping with `model` and any of `args`,
    `kwargs`, `loss` and `batch`. Building under `torch.device("meta")` needs no memory.
    """
    return _read(name, call_factory(name))


def call_factory(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user."""
    factory = import_function(name)
    try:
        return factory(*args, **kwargs)
    except Exception as error:
        raise InputError(f"{quoted(name)}: raised {type(error).__name__}: {error}") from error


def _read(name: str, made: Any) -> Workload:
    if isinstance(made, tuple | list) and 1 <= len(made) <= 3:
        made = dict(zip(_KEYS, made, strict=False))
    if not isinstance(made, Mapping) or not isinstance(made.get("model"), nn.Module):
        raise InputError(
            f"{quoted(name)}: must return (model, args), (model, args, kwargs) or a mapping with "
            f"{', '.join(_KEYS)}, got {type(made).__name__}"
        )
    unknown = sorted(str(key) for key in made if key not in _KEYS)
    if unknown:
        raise InputError(f"{quoted(name)}: unknown entries {', '.join(unknown)}")
    args = made.get("args", ())
    return Workload(
        name=name,
        model=made["model"],
        args=tuple(args) if isinstance(args, tuple | list) else (args,),
        kwargs=dict(made.get("kwargs") or {}),
        loss=made.get("loss"),
        batch=made.get("batch"),
    )
