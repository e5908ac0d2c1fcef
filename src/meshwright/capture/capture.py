"""`capture`: any PyTorch training step as a Graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.capture.convert import are_alike, convert_traces, read_trace
from meshwright.capture.inputs import find_batch, resize_inputs
from meshwright.capture.measured import with_measured
from meshwright.capture.optimiser import Optimiser
from meshwright.capture.trace import Loss, Trace, trace_step
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, quoted
from meshwright.graph.fuse import fuse_elementwise
from meshwright.graph.graph import Graph
from meshwright.profile.profile import Measured

AUTOCASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
GROWTH = 2
"""The step is traced once more on this many times the batch, to see what grows."""


def capture(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    optimizer: str = "adamw",
    *,
    batch: int | None = None,
    autocast: torch.dtype | None = None,
    measured: Measured | None = None,
    compile: bool = False,  # noqa: A002
    untie: bool = False,
) -> Graph:
    """One training step of a model as a Graph; nothing is allocated or computed.

    `model`, `args` and `kwargs` may be real or on the meta device. `loss`: from the model's output
    to a scalar; None takes the output itself, or its `loss`. `optimizer`: sgd, momentum, adam or
    adamw. `batch`: the samples in the inputs; None takes the first dimension of the first tensor.
    Inputs whose first dimension is the batch grow with it. `autocast`: e.g. torch.bfloat16.
    `measured`: seconds of kernel calls by device type (see `read_profile`). `compile`: as
    torch.compile runs it, with element-wise ops merged (see `fuse_elementwise`); a merged op has no
    measured time. `untie`: a parameter that several modules share (an embedding and the output
    head) is a copy in each, so that they may run on different devices; the update adds up the
    copies' gradients and keeps them equal.
    """
    kwargs = dict(kwargs or {})
    chosen = _find_optimiser(optimizer)
    size = find_batch(model, args, kwargs, batch)

    def trace(times: int) -> Trace:
        given, named = resize_inputs(args, kwargs, size, times * size)
        return trace_step(
            model, given, named, loss=loss, optimizer=chosen, autocast=autocast, untie=untie
        )

    name = type(model).__name__
    small, large = trace(1), trace(GROWTH)
    if size > 1 or are_alike(read_trace(small), read_trace(large)):
        graph = convert_traces(name, small, large, size, GROWTH)
        graph = with_measured(graph, small, small, measured)
    else:  # one sample needs no broadcasting and has other copies, so we start from more
        graph = convert_traces(name, large, trace(GROWTH * GROWTH), GROWTH * size, GROWTH)
        graph = with_measured(graph.at_batch(size), large, small, measured)
    return fuse_elementwise(graph) if compile else graph


def capture_workload(
    workload: Workload,
    optimizer: str,
    autocast: str | None = None,
    measured: Measured | None = None,
    *,
    compile: bool = False,  # noqa: A002
    untie: bool = False,
) -> Graph:
    """Capture a step of a workload; `autocast` by its short name."""
    return capture(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        optimizer=optimizer,
        batch=workload.batch,
        autocast=_find_autocast(autocast),
        measured=measured,
        compile=compile,
        untie=untie,
    )


def trace_workload(
    workload: Workload, optimizer: str, autocast: str | None = None, *, untie: bool = False
) -> Trace:
    """The step whose calls are looked up among the measured ones when it is captured."""
    return trace_step(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        optimizer=_find_optimiser(optimizer),
        autocast=_find_autocast(autocast),
        untie=untie,
    )


def _find_optimiser(name: str) -> Optimiser:
    try:
        return Optimiser(name)
    except ValueError:
        known = ", ".join(Optimiser)
        raise InputError(f"optimizer: must be one of {known}, got {name!r}") from None


def _find_autocast(name: str | None) -> torch.dtype | None:
    if name is not None and name not in AUTOCASTS:
        known = ", ".join(AUTOCASTS)
        raise InputError(f"autocast: must be one of {known}, got {quoted(name)}")
    return AUTOCASTS[name] if name else None
