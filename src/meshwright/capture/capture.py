"""`capture`: any PyTorch training step as a Graph."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from meshwright.capture.convert import are_alike, convert_trace, read_trace
from meshwright.capture.growth import ALL_SIZES, FEW_SIZES, steep_kernels
from meshwright.capture.inputs import as_inputs, find_batch, resize_inputs
from meshwright.capture.measured import with_measured
from meshwright.capture.optimiser import find_optimiser
from meshwright.capture.torch_private import uncompiled
from meshwright.capture.trace import Loss, Trace, trace_step
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, quoted
from meshwright.graph.foreach import update_by_foreach
from meshwright.graph.fuse import fuse_elementwise
from meshwright.graph.graph import Graph
from meshwright.profile.profile import Measured

AUTOCASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def capture(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    optimizer: str | torch.optim.Optimizer = "adamw",
    *,
    batch: int | None = None,
    autocast: torch.dtype | None = None,
    measured: Measured | None = None,
    compile: bool = False,  # noqa: A002
    foreach: bool = False,
    untie: bool = False,
    inference: bool = False,
) -> Graph:
    """One training step of a model as a Graph; nothing is allocated or computed.

    `model`, `args` (a sequence, a mapping of named inputs or one tensor) and `kwargs` may be real
    or on the meta device. `loss`: from the model's output to a scalar; None takes the output
    itself, or its `loss`. `optimizer`: sgd, momentum, adam or adamw, or one of torch.optim's that
    was made. `batch`: the samples in the inputs; None takes the first dimension of the first
    tensor. Inputs whose first dimension is the batch grow with it. `autocast`: e.g. torch.bfloat16.
    `measured`: seconds of kernel calls by device type (see `read_profile`). `compile`: as
    torch.compile runs it, with element-wise ops merged (see `fuse_elementwise`); a merged op has no
    measured time. `foreach`: parameters are updated as torch.optim does by default on CUDA, in
    place of one fused kernel (see `update_by_foreach`). `untie`: a parameter that several modules
    share (an embedding and the output head) is a copy in each, so that they may run on different
    devices; the update adds up the copies' gradients and keeps them equal. `inference`: the model's
    outputs alone, in `eval` mode and without gradients; there is no loss and no optimiser then.
    """
    model, (args, named) = uncompiled(model), as_inputs(args)
    kwargs = {**named, **(kwargs or {})}
    if inference and loss is not None:
        raise InputError("loss: must be None for inference, whose step has none")
    chosen = find_optimiser(optimizer)
    size = find_batch(model, args, kwargs, batch)

    def trace(times: int) -> Trace:
        given, named = resize_inputs(args, kwargs, size, times * size)
        try:
            return trace_step(
                model,
                given,
                named,
                loss=loss,
                optimizer=chosen,
                autocast=autocast,
                untie=untie,
                inference=inference,
            )
        except InputError as error:
            if times == 1:
                raise
            raise InputError(
                f"{error}; that is at batch {times * size}, at {size} it can: the model must not "
                f"fix the size of a batch"
            ) from error

    first = start = trace(1)
    times, ledgers = 1, [read_trace(start), read_trace(trace(FEW_SIZES[1]))]
    if size == 1 and not are_alike(*ledgers):
        # one sample needs no broadcasting and has other copies, so we start from more
        times, start = FEW_SIZES[1], trace(FEW_SIZES[1])
        ledgers = [read_trace(start), read_trace(trace(FEW_SIZES[1] * times))]
    if are_alike(*ledgers) and any(steep_kernels(*ledgers)):
        ledgers += [read_trace(trace(each * times)) for each in ALL_SIZES[len(ledgers) :]]
    graph = convert_trace(type(model).__name__, start, ledgers, times * size)
    graph = with_measured(graph.at_batch(size), start, first, measured)
    graph = fuse_elementwise(graph) if compile else graph
    return update_by_foreach(graph) if foreach else graph


def capture_workload(
    workload: Workload,
    optimizer: str | torch.optim.Optimizer,
    autocast: str | None = None,
    measured: Measured | None = None,
    *,
    compile: bool = False,  # noqa: A002
    untie: bool = False,
    inference: bool = False,
) -> Graph:
    """Capture a step of a workload; `autocast` by its short name."""
    return capture(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=None if inference else workload.loss,
        optimizer=optimizer,
        batch=workload.batch,
        autocast=_find_autocast(autocast),
        measured=measured,
        compile=compile,
        untie=untie,
        inference=inference,
    )


def trace_workload(
    workload: Workload,
    optimizer: str | torch.optim.Optimizer,
    autocast: str | None = None,
    *,
    untie: bool = False,
    channels_last: Collection[str] = (),
) -> Trace:
    """The step whose calls are looked up among the measured ones when it is captured."""
    return trace_step(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        optimizer=find_optimiser(optimizer),
        autocast=_find_autocast(autocast),
        untie=untie,
        channels_last=channels_last,
    )


def _find_autocast(name: str | None) -> torch.dtype | None:
    if name is not None and name not in AUTOCASTS:
        known = ", ".join(AUTOCASTS)
        raise InputError(f"autocast: must be one of {known}, got {quoted(name)}")
    return AUTOCASTS[name] if name else None
