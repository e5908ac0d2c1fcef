"""The kernel calls of a model's training step at several numbers of samples, and their times.

Turns what a user may give into what `meshwright.capture` traces and times.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.argument import checked, need_one_of
from meshwright.cluster.machine import CPU
from meshwright.function import names_function
from meshwright.profile.device import find_device_type
from meshwright.profile.profile import Profile, check_device_type
from meshwright.source import find_optimizer, make_workload, need_torch
from meshwright.zoo.model import TF32, check_names

if TYPE_CHECKING:
    from meshwright.capture.sized import SizedCalls


def step_calls(
    name: str,
    optimizer: str = "adamw",
    autocast: str | None = None,
    batch: int | None = None,
    *,
    sequence: int | None = None,
    precision: str | None = None,
    loss: str | None = None,
    batches: Sequence[int] | None = (),
    on_gpu: bool = False,
) -> "SizedCalls":
    """Every kernel call of the step that `capture_model` captures, by the number of samples: the
    step's own first, then `batches` of them (see `sized_calls`)."""
    if names_function(name):
        check_names(optimizer, autocast)
    workload = make_workload(
        name, batch, sequence=sequence, precision=precision, loss=loss, device="meta"
    )()
    from meshwright.capture.call import in_tf32
    from meshwright.capture.sized import sized_calls

    own = find_optimizer(name, precision, optimizer)
    with in_tf32(precision == TF32 or None):
        if names_function(name) and batch is not None:
            workload = workload.at_batch(batch)
        return sized_calls(workload, own, autocast, batches, on_gpu=on_gpu)


@checked
def profile(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Any = "adamw",
    *,
    device: str,
    batches: Sequence[int] | None = None,
    batch: int | None = None,
    autocast: Any = None,
    device_type: str | None = None,
    threads: int | None = None,
) -> Profile:
    """Times every kernel of a module's training step on a device of this machine.

    The first arguments are those of `capture`; the model stays as it is, and kernels run on inputs
    of their own. `device` is cpu or cuda. Kernels are timed on the step's samples and on `batches`
    of them, so that `capture` with the profile's `measured()` and `batches` has what microbatches
    and unequal replicas take; None takes its halves down to 1. `device_type` is the device's type
    in clusters, None goes by the name that it gives itself. `threads`: of a CPU, None leaves them.
    Save the profile for the command line's `capture --profile`.
    """
    need_one_of(device, ("cpu", "cuda"), "device")
    need_torch("profile")
    from meshwright.capture.capture import make_workload as workload_of
    from meshwright.capture.device import device_name, make_table, open_device
    from meshwright.capture.launch import measure_launch_share
    from meshwright.capture.profile import time_calls
    from meshwright.capture.sized import sized_calls
    from meshwright.execute.draw import drawn_alone

    opened = open_device(device, threads)
    kind = device_type or (CPU if device == CPU else find_device_type(device_name(opened)))
    check_device_type(kind)
    workload = workload_of(model, args, kwargs, loss, batch)
    sized = sized_calls(workload, optimizer, autocast, batches, on_gpu=device != CPU)
    calls: Counter[str] = sum(sized.counts.values(), Counter())
    results = dict(time_calls(calls, opened, drawn_alone, sized.as_run))
    table = make_table(
        kind,
        opened,
        calls={call: each.seconds for call, each in results.items() if not isinstance(each, str)},
        failed={call: each for call, each in results.items() if isinstance(each, str)},
        batches=tuple(sized.counts),
        launch_share=None if device == CPU else measure_launch_share(opened),
    )
    return Profile(tables=(table,))
