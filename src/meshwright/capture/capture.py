"""`capture`: any PyTorch training step as a Graph."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from meshwright.argument import need_type
from meshwright.capture.convert import are_alike, convert_trace
from meshwright.capture.growth import ALL_SIZES, FEW_SIZES, steep_kernels
from meshwright.capture.inputs import as_inputs
from meshwright.capture.measured import with_measured, with_rung
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
    batches: Sequence[int] = (),
    foreach: bool = False,
    inference: bool = False,
    **how: bool,
) -> Graph:
    """One training step of a model as a Graph; the arguments are those of `meshwright.capture`."""
    if inference and loss is not None:
        raise InputError("loss: must be None for inference, whose step has none")
    workload = make_workload(model, args, kwargs, loss, batch)
    how |= {"inference": inference}
    graph = capture_workload(workload, optimizer, autocast, measured, batches=batches, **how)
    return update_by_foreach(graph) if foreach else graph


def make_workload(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    loss: Loss | None,
    batch: int | None,
) -> Workload:
    """The step of a module, from the arguments of `meshwright.capture`."""
    model, (args, named) = uncompiled(model), as_inputs(args)
    return Workload(
        name=type(model).__name__,
        model=model,
        args=args,
        kwargs={**named, **(kwargs or {})},
        loss=loss,
        batch=batch,
    )


def capture_workload(
    workload: Workload,
    optimizer: str | torch.optim.Optimizer,
    autocast: str | torch.dtype | None = None,
    measured: Measured | None = None,
    *,
    compile: bool = False,  # noqa: A002
    **how: Any,
) -> Graph:
    """Capture a step of a workload; `autocast` also by its short name, `how` as in
    `trace_workload`."""
    graph, _ = capture_traced(workload, optimizer, autocast, measured, **how)
    return fuse_elementwise(graph) if compile else graph


def capture_traced(
    workload: Workload,
    optimizer: str | torch.optim.Optimizer,
    autocast: str | torch.dtype | None = None,
    measured: Measured | None = None,
    *,
    batches: Sequence[int] = (),
    **how: Any,
) -> tuple[Graph, Trace]:
    """The graph of a workload's step, and the trace of it on the workload's own samples: who runs
    the step need not trace it again.

    `batches`: the numbers of samples at which `measured` may have times of its ops, too.
    """
    size = workload.num_samples

    def trace(times: int) -> Trace:
        given = workload.at_batch(times * size)
        try:
            return trace_workload(given, optimizer, autocast, **how)
        except InputError as error:
            if times == 1:
                raise
            raise InputError(
                f"{error}; that is at batch {times * size}, at {size} it can: the model must not "
                f"fix the size of a batch"
            ) from error

    times, traces = 1, [trace(each) for each in FEW_SIZES]
    first = traces[0]
    if size == 1 and not are_alike(*(each.ledger for each in traces)):
        # one sample needs no broadcasting and has other copies, so we start from more
        times = FEW_SIZES[1]
        traces = [traces[1], trace(FEW_SIZES[1] * times)]
    ledgers = [each.ledger for each in traces]
    if are_alike(*ledgers) and any(steep_kernels(*ledgers)):
        ledgers += [trace(each * times).ledger for each in ALL_SIZES[len(ledgers) :]]
    graph = convert_trace(type(workload.model).__name__, traces[0], ledgers, times * size)
    graph = with_measured(graph.at_batch(size), traces[0], first, measured)
    if graph.seconds and measured:
        for samples in (each for each in batches if each != size):
            with suppress(InputError):  # batch norm has no step of one sample
                own = trace_workload(workload.at_batch(samples), optimizer, autocast, **how)
                graph = with_rung(graph, traces[0], own, measured, samples)
    return graph, first


def trace_workload(
    workload: Workload,
    optimizer: str | torch.optim.Optimizer,
    autocast: str | torch.dtype | None = None,
    *,
    untie: bool = False,
    channels_last: Collection[str] = (),
    inference: bool = False,
) -> Trace:
    """The step whose calls are looked up among the measured ones when it is captured."""
    return trace_step(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=None if inference else workload.loss,
        optimizer=find_optimiser(optimizer),
        autocast=_find_autocast(autocast),
        untie=untie,
        channels_last=channels_last,
        inference=inference,
    )


def _find_autocast(given: str | torch.dtype | None) -> torch.dtype | None:
    if not isinstance(given, str):
        need_type(given, (torch.dtype, type(None)), "autocast", f"{' or '.join(AUTOCASTS)} or None")
        return given
    if given not in AUTOCASTS:
        known = ", ".join(AUTOCASTS)
        raise InputError(f"autocast: must be one of {known}, got {quoted(given)}")
    return AUTOCASTS[given]
