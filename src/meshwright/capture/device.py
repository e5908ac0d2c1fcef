"""The real device that kernels are timed on: whether it is there, its name and its software."""

from datetime import UTC, datetime
from typing import Any

import torch
from torch.distributed import is_nccl_available

from meshwright.capture.machine import processor_name
from meshwright.errors import InputError
from meshwright.profile.profile import COMPILER, THREADS, Table
from meshwright.units import format_bytes


def open_device(kind: str, threads: int | None = None) -> torch.device:
    """The device "cpu" or "cuda", if it can be used.

    On a CPU torch has so many threads from now on; None leaves their number as it is.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        build = "with" if torch.version.cuda else "without"
        raise InputError(
            f"device cuda: torch {torch.__version__}, a build {build} CUDA, finds none that it can "
            f"use; run this on a machine that has one"
        )
    if kind == "cpu" and threads is not None:
        torch.set_num_threads(threads)
    return torch.device(kind)


def device_name(device: torch.device) -> str:
    """What the device calls itself: "NVIDIA H200"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def device_software(device: torch.device, *, is_compiled: bool = False) -> dict[str, str]:
    """What the times of kernels depend on besides the device: versions, a CPU's threads, and
    whether they are shares of the times of compiled regions."""
    found = {"torch": str(torch.__version__)}
    if is_compiled:
        found[COMPILER] = "inductor"
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    else:
        found[THREADS] = str(torch.get_num_threads())
    return found


def make_table(device_type: str, device: torch.device, **found: Any) -> Table:
    """A table of what was just measured, with the device's name, its software and the date."""
    return Table(
        device_type=device_type,
        device=device_name(device),
        software=device_software(device),
        date=datetime.now(UTC).replace(microsecond=0),
        **found,
    )


def describe_gpus() -> str:
    """The GPUs that this process can compute on, their memory, and CUDA's and NCCL's versions;
    empty: there is none."""
    if not torch.cuda.is_available():
        return ""
    gpus = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    names = ", ".join(f"{each.name} ({format_bytes(each.total_memory)})" for each in gpus)
    nccl = "missing"
    if is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return f"{names}; CUDA {torch.version.cuda}, NCCL {nccl}"
