"""What a recorded model still lacks: initial values of tensors on the meta device, and real tensors
where tracing does not swap its own in.

Tracing replaces parameters, registered buffers and inputs; plain attributes and what a loss holds
are used as they are, so they must be real.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn

from meshwright.capture.deferred.recording import Recording
from meshwright.capture.torch_private import pytree
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, some

PLAIN_BYTES = 64 * 2**20
"""The most that tensors which are neither parameters nor buffers may take on every rank."""

Real = Callable[[torch.Tensor], torch.Tensor]


def set_inputs(workload: Workload, recording: Recording) -> tuple[Workload, list[str]]:
    """The workload with values for inputs that nothing set, and their names.

    Those on the meta device and those of `torch.empty`: real numbers are drawn from the normal
    distribution, others are zero, which is a token and a class.
    """
    unset: list[str] = []

    def set_input(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type == "meta" and not recording.holds(leaf):
            leaf = _recorded(leaf, recording)
        if recording.holds(leaf) and not recording.is_set(leaf):
            unset.append(("args", "kwargs")[path[0].idx] + pytree.keystr(path[1:]))
            if leaf.is_floating_point():
                with recording.running(), torch.no_grad():
                    leaf.normal_()
        return leaf

    args, kwargs = pytree.tree_map_with_path(
        set_input, (tuple(workload.args), dict(workload.kwargs))
    )
    return replace(workload, args=args, kwargs=kwargs), unset


def initialise_model(model: nn.Module, recording: Recording) -> None:
    """Let modules whose tensors on the meta device were never set initialise them.

    A recorded `reset_parameters()` counts, also where it ran on the meta device.
    """
    _adopt_members(model, recording)
    with recording.running(), torch.no_grad():
        for module in _outermost_transformers(model):
            # Set or not: they are as torch's own modules leave them.
            if any(each.device.type == "meta" for each in module.parameters()):
                module.initialize_weights()
        for module in model.modules():
            if _missing(module, recording):
                _reset(module)
    missing = [
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name in _missing(module, recording)
    ]
    if missing:
        raise InputError(
            f"model {type(model).__name__}: no values for {some(missing)}, made on the meta device "
            f"by a module without reset_parameters(); build on the CPU instead, which takes no "
            f"memory either, because building is only recorded"
        )


def _adopt_members(model: nn.Module, recording: Recording) -> None:
    """Replace meta tensors from before the recording."""

    def adopted(tensor: torch.Tensor) -> torch.Tensor:
        is_older = tensor.device.type == "meta" and not recording.holds(tensor)
        return _recorded(tensor, recording) if is_older else tensor

    replace_members(model, adopted)


def replace_members(model: nn.Module, replacement: Real) -> None:
    """Replace a model's parameters and buffers, tied ones by one tensor."""
    known: dict[int, torch.Tensor] = {}
    for module in model.modules():
        kinds: list[dict[str, Any]] = [module._parameters, module._buffers]
        for members in kinds:
            for name, tensor in members.items():
                if tensor is not None:
                    if id(tensor) not in known:
                        known[id(tensor)] = replacement(tensor)
                    members[name] = known[id(tensor)]


def _recorded(tensor: torch.Tensor, recording: Recording) -> torch.Tensor:
    """The same tensor, never set, as if it had been made while the recording ran."""
    with recording.running():
        made = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made


def _missing(module: nn.Module, recording: Recording) -> list[str]:
    """Direct parameters and buffers of a module on the meta device that were never set.

    On the CPU what was never set is meant to be: a buffer that forward fills.
    """
    members = {**module._parameters, **module._buffers}
    return [
        name
        for name, tensor in members.items()
        if tensor is not None
        and tensor.device.type == "meta"
        and tensor.numel()
        and not recording.is_set(tensor)
    ]


def _outermost_transformers(model: nn.Module) -> Iterator[Any]:
    """Models of transformers, which do not set their initial values on the meta device."""
    if callable(getattr(model, "_init_weights", None)) and callable(
        getattr(model, "initialize_weights", None)
    ):
        yield model
        return
    for child in model.children():
        yield from _outermost_transformers(child)


def _reset(module: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):  # the latter: torch's attention
        reset = getattr(module, name, None)
        if callable(reset):
            reset()
            return


def settle_plain_tensors(workload: Workload, recording: Recording, seed: int) -> None:
    """Make recorded tensors real where tracing leaves them as they are."""
    model = workload.model
    registered = {id(each) for each in (*model.parameters(), *model.buffers())}
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    num_bytes = 0

    def real(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal num_bytes
        if not recording.holds(tensor) or id(tensor) in registered:
            return tensor
        if id(tensor) not in made:
            num_bytes += tensor.numel() * tensor.itemsize
            if num_bytes > PLAIN_BYTES:
                raise InputError(
                    f"model {type(model).__name__}: tensors that are neither parameters nor buffers"
                    f" must take at most {PLAIN_BYTES:,} bytes; use register_buffer for larger ones"
                )
            found = recording.real(tensor, seed).requires_grad_(tensor.requires_grad)
            made[id(tensor)] = (tensor, found)  # held, so that no id is used twice
        return made[id(tensor)][1]

    for module in model.modules():
        _settle(vars(module), real)
    if workload.loss is not None:
        _settle_loss(workload.loss, set(model.modules()), real)


def _settle_loss(loss: Any, settled: set[nn.Module], real: Real) -> None:
    """What a loss holds: as a module or another object, or in the variables of a closure."""
    loss = getattr(loss, "__self__", loss)  # of a method
    if isinstance(loss, FunctionType):
        for cell in loss.__closure__ or ():
            _settle_cell(cell, settled, real)
    elif isinstance(loss, nn.Module):
        for module in loss.modules():
            if module not in settled:
                _settle_module(module, real)
    elif not isinstance(loss, type):
        _settle(getattr(loss, "__dict__", {}), real)


def _settle_cell(cell: CellType, settled: set[nn.Module], real: Real) -> None:
    try:
        held = {"held": cell.cell_contents}
    except ValueError:  # not set yet
        return
    if isinstance(held["held"], nn.Module | FunctionType):
        _settle_loss(held["held"], settled, real)
        return
    _settle(held, real)
    if held["held"] is not cell.cell_contents:
        cell.cell_contents = held["held"]


def _settle_module(module: nn.Module, real: Real) -> None:
    """A module that tracing does not know of: its parameters and buffers, too."""
    _settle(vars(module), real)
    _settle(module._buffers, real)
    for name, parameter in module._parameters.items():
        if parameter is not None and real(parameter) is not parameter:
            values = real(parameter).detach()
            module._parameters[name] = nn.Parameter(values, parameter.requires_grad)


def _settle(members: dict[str, Any], real: Real) -> None:
    """Replace tensors among the values, and in lists, tuples and mappings among them."""
    for name, value in list(members.items()):
        if name in ("_parameters", "_buffers", "_modules"):
            continue
        if isinstance(value, torch.Tensor):
            if real(value) is not value:
                members[name] = real(value)
        elif isinstance(value, dict):
            _settle_direct(value, value.items(), real)
        elif isinstance(value, list):
            _settle_direct(value, enumerate(value), real)
        elif type(value) is tuple and any(isinstance(each, torch.Tensor) for each in value):
            members[name] = tuple(
                real(each) if isinstance(each, torch.Tensor) else each for each in value
            )


def _settle_direct(holder: Any, items: Any, real: Real) -> None:
    for key, value in list(items):
        if isinstance(value, torch.Tensor) and real(value) is not value:
            holder[key] = real(value)
