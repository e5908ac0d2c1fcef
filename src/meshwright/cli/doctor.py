"""`meshwright doctor`: what is installed, what is missing, and what this machine can do."""

import os
import platform
import re
import shutil
import subprocess
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version

from meshwright import __version__
from meshwright.cli.console import print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.sheet import print_table
from meshwright.errors import InputError
from meshwright.interpreter import num_cores
from meshwright.network.testbed.apply import check_machine
from meshwright.source import need_torch
from meshwright.units import format_bytes
from meshwright.zoo.cache import PACKAGE, cache_folder


class State(StrEnum):
    """What becomes of what somebody may want to do here."""

    OK = "ok"
    LIMITED = "limited"
    """It works, but not all of it, or not as fast as it could."""
    MISSING = "missing"
    """It does not work until something is installed or allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing to do with the program, and whether it can be done on this machine."""

    name: str
    state: State
    what: str
    """What was found, and how to get what is missing."""


def run_doctor(arguments: Namespace) -> int:
    """Run `doctor`: missing extras are no error, a broken core is."""
    found = list(examine())
    if arguments.json:
        print_json({"findings": [asdict(each) for each in found]})
    else:
        rows = [(each.name, each.state, each.what) for each in found]
        print_table(("to", "state", "what there is"), rows, wraps=("what there is",))
    works = all(each.state is not State.MISSING for each in found if each.name in _CORE)
    return ExitCode.DONE if works else ExitCode.REFUSED


def examine() -> Iterator[Ability]:
    """Everything that can be said about this machine, the core first."""
    for name, look in _CHECKS.items():
        try:
            state, what = look()
        except InputError as error:
            state, what = State.MISSING, str(error).partition(": ")[2] or str(error)
        yield Ability(name=name, state=state, what=what)


Look = Callable[[], tuple[State, str]]


def _look_at_core() -> tuple[State, str]:
    """The packages that every command needs, in versions that are new enough."""
    own = f"meshwright {__version__}, Python {platform.python_version()}"
    try:
        wanted = requires("meshwright") or ()
    except PackageNotFoundError:
        return State.LIMITED, f"{own}; not installed but run from its sources: nothing was checked"
    found, bad = [], []
    for line in wanted:
        name, extra, least = _read_requirement(line)
        if extra:
            continue
        try:
            there = version(name)
        except PackageNotFoundError:
            bad.append(f"{name} is not installed")
            continue
        found.append(f"{name} {there}")
        if _release(there) < _release(least):
            bad.append(f"{name} must be {least} or newer, is {there}")
    if bad:
        return State.MISSING, f"{own}; {'; '.join(bad)}: install meshwright again"
    return State.OK, f"{own}, {', '.join(found)}"


def _read_requirement(line: str) -> tuple[str, bool, str]:
    """A package of the metadata, whether only an extra needs it, and the least version."""
    named = re.match(r"[\w.-]+", line)
    least = re.search(r">=\s*([\d.]+)", line)
    return named[0] if named else line, "extra ==" in line, least[1] if least else "0"


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text.partition("+")[0])[:3])


def _look_at_kernels() -> tuple[State, str]:
    kept = sum(1 for _ in PACKAGE.rglob("*.nbi"))
    if kept:
        return State.OK, f"{kept:,} compiled kernels are kept beside the code"
    if not os.access(PACKAGE, os.W_OK):
        return State.LIMITED, (
            f"{PACKAGE} cannot be written: set NUMBA_CACHE_DIR to a folder of your own, or kernels "
            f"are compiled by every command, half a minute each time"
        )
    return State.OK, "kernels are compiled when they are first used: once, about half a minute"


def _look_at_machine() -> tuple[State, str]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return State.OK, f"{num_cores()} cores, {format_bytes(total)} of memory, {platform.platform()}"


def _look_at_cache() -> tuple[State, str]:
    folder = cache_folder(os.environ)
    if folder is None:
        return State.LIMITED, (
            "no folder for caches, so that models are captured again each time: set "
            "MESHWRIGHT_CACHE to one"
        )
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK):
        return State.LIMITED, f"{folder} cannot be written: set MESHWRIGHT_CACHE to another"
    files = [each for each in folder.rglob("*") if each.is_file()] if folder.exists() else []
    size = format_bytes(float(sum(each.stat().st_size for each in files)))
    return State.OK, f"{folder}: {len(files):,} files, {size}"


def _look_at_torch() -> tuple[State, str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        need_torch()
    what = f"PyTorch {version('torch')}"
    return (State.LIMITED, str(said[0].message)) if said else (State.OK, what)


def _look_at_gpu() -> tuple[State, str]:
    """What PyTorch computes on, and whether it leaves a GPU that is there alone."""
    need_torch("doctor")
    from meshwright.capture.device import describe_gpus

    if found := describe_gpus():
        return State.OK, found
    if shown := _nvidia_gpus():
        return State.LIMITED, (
            f"nvidia-smi shows {', '.join(shown)}, but this PyTorch has no CUDA that works here: "
            f"install a build for CUDA"
        )
    return State.LIMITED, "no GPU: plans for GPUs are made here and run elsewhere; CPUs train"


def _nvidia_gpus() -> list[str]:
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return []


def _look_at_compiler() -> tuple[State, str]:
    """What TorchInductor needs for `run --compile`: Triton on GPUs, a C++ compiler on CPUs."""
    need_torch("doctor")
    compiler = next((each for each in ("g++", "clang++", "c++") if shutil.which(each)), None)
    with suppress(PackageNotFoundError):
        return State.OK, f"Triton {version('triton')}" + (f", {compiler}" if compiler else "")
    if compiler:
        return State.OK, f"{compiler} for CPUs; no Triton, which GPUs would need"
    return State.MISSING, "neither Triton (for GPUs) nor a C++ compiler (for CPUs: install g++)"


def _look_for(package: str, extra: str) -> Look:
    """Whether a package of an extra is there."""

    def look() -> tuple[State, str]:
        try:
            return State.OK, f"{package} {version(package)}"
        except PackageNotFoundError:
            return State.MISSING, f"needs {package}; install meshwright[{extra}]"

    return look


def _look_at_testbed() -> tuple[State, str]:
    check_machine()
    with suppress(InputError):
        check_machine("ovs")
        return State.OK, "root, ip and tc, Open vSwitch"
    return State.OK, "root, ip and tc; without Open vSwitch, which `--network ovs` needs"


_CORE = ("plan", "compile kernels")
_CHECKS: dict[str, Look] = {
    "plan": _look_at_core,
    "compile kernels": _look_at_kernels,
    "search": _look_at_machine,
    "keep captures": _look_at_cache,
    "capture and run": _look_at_torch,
    "run on GPUs": _look_at_gpu,
    "run --compile": _look_at_compiler,
    "capture the zoo": _look_for("transformers", "zoo"),
    "plot": _look_for("matplotlib", "plot"),
    "search on a Ray cluster": _look_for("ray", "ray"),
    "run --tensorboard": _look_for("tensorboardX", "tensorboard"),
    "emulate a network": _look_at_testbed,
}
