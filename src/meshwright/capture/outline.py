"""How a model calls its modules: one forward pass on fake tensors, which computes nothing.

Says in which order modules run, what each is given and makes, and which parameters are one. Knows
no plan and no graph.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from meshwright.capture.fake import StepMode
from meshwright.capture.torch_private import pytree
from meshwright.capture.trace import find_loss
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """One call of one module."""

    path: str
    """Where the module is in the model; "" for the model itself."""
    kind: str
    """What it is: "linear", "embedding", "norm" (parameters of one dimension alone), "plain"
    (other parameters of its own) or "other" (none of its own)."""
    class_name: str
    rows: int
    """Features that a linear module makes, or numbers that an embedding takes; else zero."""
    columns: int
    """Features that a linear module takes, or an embedding makes; else zero."""
    given: int
    """Number of the first tensor that it is given; -1: none."""
    made: int
    """Number of the first tensor that it returns; -1: none."""
    returns_tuple: bool
    first: int
    """Its turn among the starts and ends of all calls: where it starts, ..."""
    last: int
    """... and where it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a script has to know of a model."""

    calls: tuple[ModuleCall, ...]
    """In the order in which they start."""
    tied: tuple[tuple[str, ...], ...]
    """Names of parameters that are the same one."""
    inputs: tuple[str, ...]
    """The names of the arguments that are given by position, then of those given by name."""
    num_given: int
    """How many of these are given by position."""
    whole: tuple[str, ...]
    """Inputs that have no row a sample."""
    loss: str
    """Where the loss is: "output", "attribute", "item", or "function" of the workload."""


class _Calls:
    """Numbers tensors and turns while a model runs."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []  # held, so that no other gets its id
        self.number: dict[int, int] = {}
        self.calls: list[ModuleCall] = []
        self.open: list[int] = []
        self.turn = 0

    def enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the start of a call."""
        kind, rows, columns = _kind(module)
        self.open.append(len(self.calls))
        self.calls.append(
            ModuleCall(
                path=path, kind=kind, class_name=type(module).__name__, rows=rows, columns=columns,
                given=self._first((args, kwargs)), made=-1, returns_tuple=False,
                first=self._next(), last=-1,
            )
        )  # fmt: skip

    def leave(self, output: Any) -> None:
        """Note the end of the call that began last."""
        number, made = self.open.pop(), self._first(output)
        self.calls[number] = replace(
            self.calls[number],
            made=made,
            returns_tuple=isinstance(output, tuple),
            last=self._next(),
        )

    def _next(self) -> int:
        self.turn += 1
        return self.turn

    def _first(self, values: Any) -> int:
        """The number of the first tensor of numbers with a fraction, else of the first at all."""
        found = [each for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]
        floating = [each for each in found if each.is_floating_point()] or found
        if not floating:
            return -1
        tensor = floating[0]
        if id(tensor) not in self.number:
            self.number[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self.number[id(tensor)]


def outline_model(workload: Workload) -> Outline:
    """The outline of a workload's model, which may be real or on the meta device."""
    model, calls = workload.model, _Calls()
    args, kwargs = tuple(workload.args), dict(workload.kwargs)
    try:
        with StepMode(), _watched(model, calls):
            values, fakes = pytree.tree_map_only(
                torch.Tensor, _fake, (dict(_named(model)), (args, kwargs))
            )
            output = torch.func.functional_call(model, values, *fakes)
            find_loss(output, workload.loss)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{quoted(workload.name)}: its model must run without values to be exported as a "
            f"script, but raised {type(error).__name__}: {str(error)[:200]}"
        ) from error
    names = _input_names(workload.name, model, args, kwargs)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    samples = workload.num_samples
    return Outline(
        calls=tuple(calls.calls),
        tied=_tied(model),
        inputs=tuple(given),
        num_given=len(args),
        whole=tuple(name for name, each in given.items() if not _has_rows(each, samples)),
        loss=_loss_place(output, workload),
    )


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without numbers in place of one; of those that need gradients, one that does."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.requires_grad_(tensor.requires_grad)


@contextmanager
def _watched(model: nn.Module, calls: _Calls) -> Iterator[None]:
    handles = []
    for path, module in model.named_modules():

        def enter(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            calls.enter(path, module, args, kwargs)

        def leave(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
            calls.leave(output)

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _kind(module: nn.Module) -> tuple[str, int, int]:
    if isinstance(module, nn.Linear):
        return "linear", module.out_features, module.in_features
    if isinstance(module, nn.Embedding):
        return "embedding", module.num_embeddings, module.embedding_dim
    own = list(module.parameters(recurse=False))
    if own and all(each.dim() == 1 for each in own):
        return "norm", 0, 0
    return ("plain" if own else "other"), 0, 0


def _tied(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(each) for each in names.values() if len(each) > 1)


def _input_names(name: str, model: nn.Module, args: Sequence[Any], kwargs: Any) -> list[str]:
    """The names that forward has for the inputs that are given by position."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(model.forward).parameters.values()
    names = [each.name for each in found if each.kind in by_position][: len(args)]
    if len(names) < len(args) or any(each in kwargs for each in names):
        raise InputError(
            f"{quoted(name)}: forward must have a name for each of its {len(args)} inputs, has "
            f"{', '.join(names) or 'none'}"
        )
    return names


def _has_rows(value: Any, samples: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == samples


def _loss_place(output: Any, workload: Workload) -> str:
    if workload.loss is not None:
        return "function"
    if isinstance(output, torch.Tensor):
        return "output"
    return "attribute" if hasattr(output, "loss") else "item"
