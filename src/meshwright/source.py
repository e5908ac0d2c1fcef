"""Turns what a user may give (a name, a path, a factory) into a Graph.

The only module that knows the user's cache. torch is imported when something has to be captured,
Numba never.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.argument import checked
from meshwright.errors import InputError, quoted
from meshwright.function import check_function, names_function
from meshwright.graph.architecture.shape import build_shape, is_shape
from meshwright.graph.foreach import update_by_foreach
from meshwright.graph.fuse import call_as_fused, fuse_elementwise
from meshwright.graph.graph import Graph, read_graph
from meshwright.message import say_nothing, warn
from meshwright.profile.profile import (
    THREADS,
    Measured,
    Profile,
    combine_measured,
    digest_measured,
    find_batches,
    read_profile,
)
from meshwright.zoo.cache import GraphCache, cache_folder, open_cache
from meshwright.zoo.find import Origin, capture_once, find_graph, find_origin, needs
from meshwright.zoo.model import MIXED, TF32, Choice, ZooModel, check_names, choose, update_name
from meshwright.zoo.table import find_model, near_names, zoo_models

if TYPE_CHECKING:
    from meshwright.capture.workload import Workload

OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
"""The releases of PyTorch, by major and minor number, that are taken: all tests pass with 2.13,
those of capturing and running with the oldest and the newest, but where they hold us to torch's own
traces, lists and counts, which differ."""


@checked
def load_graph(
    source: str | Path | Graph,
    batch: int | None = None,
    *,
    precision: str | None = None,
    compile: bool = False,  # noqa: A002
    foreach: bool = False,
    say: Callable[[str], None] | None = None,
) -> Graph:
    """A graph itself, else the file at that path, else the zoo's model of that name.

    "gpt:hidden=768,heads=12,layers=12,sequence=1024" is a step of that shape, from formulas; so
    for llama, mixtral, bert and vit (see `graph.architecture.shape`).

    A "package.module:factory" or "path/to/file.py:factory" is imported and called, and what it
    returns is captured; no other code is ever run. `batch` is the number of samples a step; None
    leaves the graph's own. `precision` is that of a model of the zoo, a shape or a factory's model
    (see `capture_model`). `compile`: as torch.compile runs the step, element-wise ops merged.
    `foreach`: as torch.optim updates by default on CUDA (see `update_by_foreach`). `say` receives a
    line where a graph is captured or read from the cache.
    """
    graph = _find_graph(source, batch, precision, say)
    graph = fuse_elementwise(graph) if compile else graph
    return update_by_foreach(graph) if foreach else graph


def _find_graph(
    source: str | Path | Graph,
    batch: int | None,
    precision: str | None,
    say: Callable[[str], None] | None,
) -> Graph:
    if isinstance(source, Graph):
        _check_precision(source.name, precision)
        return source if batch is None else source.at_batch(batch)
    if not isinstance(source, str | Path):
        raise InputError(
            f"a graph must be a zoo name, a path or a Graph, got {type(source).__name__}"
        )
    name = str(source)
    names = [model.name for model in zoo_models()]
    if _exists(name) and (name not in names or not Path(name).is_dir()):
        _check_precision(name, precision)
        graph = read_graph(name)
        return graph if batch is None else graph.at_batch(batch)
    if name in names:
        return zoo_graph(name, batch, precision=precision, say=say)
    if is_shape(name):
        return build_shape(name, batch, precision)
    if names_function(name):
        return capture_model(name, batch=batch, precision=precision)
    raise InputError(
        f"no file {quoted(name)}, and no model of that name in the zoo; {near_names(name, names)}"
    )


def _check_precision(name: str, precision: str | None) -> None:
    if precision is not None:
        raise InputError(f"{quoted(name)}: a graph has its own precision, got {quoted(precision)}")


def zoo_graph(
    name: str,
    batch: float | None = None,
    *,
    sequence: int | None = None,
    precision: str | None = None,
    optimizer: str = "adamw",
    say: Callable[[str], None] | None = None,
) -> Graph:
    """The training step of a model of the zoo: shipped, from formulas, cached, or captured.

    One graph, at the model's usual batch, serves all: a graph knows how it grows. `capture_model`
    traces at a batch itself.
    """
    model = find_model(name)
    choice = choose(model, sequence=sequence, precision=precision, optimizer=optimizer)
    graph = find_graph(
        choice,
        capture=_capture_choice if _can_capture(model) else None,
        cache=_open_cache(),
        say=say or say_nothing,
    )
    return graph if batch is None else graph.at_batch(batch)


def list_zoo() -> list[tuple[ZooModel, Origin]]:
    """Every model of the zoo, and where `zoo_graph` would take it from now."""
    cache = _open_cache()
    return [
        (model, find_origin(choose(model), can_capture=_can_capture(model), cache=cache))
        for model in zoo_models()
    ]


@checked
def capture_model(
    name: str,
    optimizer: str = "adamw",
    autocast: str | None = None,
    batch: int | None = None,
    *,
    sequence: int | None = None,
    precision: str | None = None,
    profiles: Sequence[str | Path] = (),
    compile: bool = False,  # noqa: A002
    untie: bool = False,
    inference: bool = False,
    loss: str | None = None,
    threads: int | None = None,
    use_cache: bool = True,
    say: Callable[[str], None] | None = None,
) -> Graph:
    """Capture what "package.module:factory" or "path/to/file.py:factory" returns, or a PyTorch
    model of the zoo by its name.

    `autocast` is "bf16" or "fp16"; `batch` is the number of samples, None as the model has it.
    `sequence` (tokens a sample), `precision` ("fp32", "bf16", or "mixed": bf16 weights of which the
    optimiser updates fp32 copies) and `batch` are for models of the zoo, whose graphs are kept
    unless `use_cache` is False, and for factories that have such an argument. `loss` names a
    function from the output of a factory's model to a scalar. `profiles` are files of `meshwright
    profile`: ops whose calls they have get measured times, of several files' the last one's; on
    CPUs only times with so many `threads`, None takes any. `compile`: the step as torch.compile
    runs it, element-wise ops merged, or timed by the regions of a compiled run where profiles have
    these. `untie`: weights that modules share are copies, which a pipeline may hold on different
    stages. `inference`: the model's outputs alone, without gradients, loss and optimiser.
    """
    if inference and loss is not None:
        raise InputError(f"{name}: a step of inference has no loss, got {quoted(loss)}")
    measured, merges = _read_measured(profiles, threads, merges=compile)
    batches = find_batches(map(read_profile, profiles))
    how: dict[str, Any] = {"compile": merges, "untie": untie, "inference": inference}
    if names_function(name):
        check_names(optimizer, autocast)
        workload = _run_factory(name, batch, sequence, precision, loss)
        own = update_name(precision, optimizer)
        how["batches"] = batches
        graph = _capture_workload(workload, own, autocast, measured, precision, **how)
        graph = graph if batch is None else graph.at_batch(batch)
    else:
        chosen = _choose(name, optimizer, autocast, batch, sequence, precision, loss)
        choice = replace(chosen, **how)
        if measured:
            choice = replace(choice, measured=digest_measured(measured, batches))
        graph = capture_once(
            choice,
            capture=lambda choice: _capture_choice(choice, measured, batches),
            cache=_open_cache() if use_cache else None,
            say=say or say_nothing,
        )
    return call_as_fused(graph) if compile and not merges else graph


def _read_measured(
    profiles: Sequence[str | Path], threads: int | None, *, merges: bool
) -> tuple[Measured, bool]:
    """The times that profiles have, and whether ops are still to be merged: not where these are of
    a compiled run, whose regions' times are shared out to the ops."""
    read = [read_profile(path) for path in profiles]
    if threads is not None:
        _warn_of_threads(profiles, read, threads)
    if merges:
        compiled = combine_measured(read, is_compiled=True, threads=threads)
        if compiled:
            return compiled, False
    return combine_measured(read, threads=threads), merges


def find_optimizer(name: str, precision: str | None, optimizer: str) -> str:
    """The optimiser of a step of a model that is asked for by names."""
    if precision is None and not names_function(name):
        precision = find_model(name).precisions[0]
    return update_name(precision, optimizer)


def make_workload(
    name: str,
    batch: float | None,
    *,
    sequence: int | None = None,
    precision: str | None = None,
    loss: str | None = None,
    device: str = "cpu",
) -> Callable[[], "Workload"]:
    """What builds the model and inputs of a name, for real, on so many samples."""
    if names_function(name):
        need_torch("run")
        return lambda: _run_factory(name, batch, sequence, precision, loss)
    choice = _choose(name, "adamw", None, batch, sequence, precision, loss)
    need_torch("run")
    return lambda: _build(choice, device)


def find_function(option: str, name: str) -> Callable[..., Any]:
    """The function of the user that an option names; it is imported when it is called."""
    check_function(option, name)
    need_torch("run")
    from meshwright.capture.factory import call_factory

    return partial(call_factory, name)


def _choose(
    name: str,
    optimizer: str,
    autocast: str | None,
    batch: float | None,
    sequence: int | None,
    precision: str | None,
    loss: str | None,
) -> Choice:
    """A step of a model of the zoo that can be captured here."""
    model = find_model(name)
    if loss is not None:
        raise InputError(f"{name}: a model of the zoo has its own loss, got {quoted(loss)}")
    if model.source == "graph":
        raise InputError(
            f"{name}: has no PyTorch model, so there is nothing to capture; "
            f"`meshwright zoo save {name} FILE` writes its graph"
        )
    choice = choose(
        model,
        batch=None if batch is None else _whole_samples(name, batch),
        sequence=sequence,
        precision=precision,
        optimizer=optimizer,
        autocast=autocast,
    )
    if not _can_capture(model):
        raise InputError(f"{name}: {needs(model)}")
    return choice


def _capture_choice(
    choice: Choice, measured: Measured | None = None, batches: Sequence[int] = ()
) -> Graph:
    graph = _capture_workload(
        _build(choice),
        update_name(choice.precision, choice.optimizer),
        choice.autocast,
        measured,
        choice.precision,
        compile=choice.compile,
        untie=choice.untie,
        inference=choice.inference,
        batches=batches,
    )
    return replace(graph, name=choice.model.name)


def _capture_workload(
    workload: "Workload",
    optimizer: str,
    autocast: str | None,
    measured: Measured | None,
    precision: str | None,
    **how: Any,
) -> Graph:
    from meshwright.capture.call import in_tf32
    from meshwright.capture.capture import capture_workload

    with in_tf32(precision == TF32 or None):
        return capture_workload(workload, optimizer, autocast, measured, **how)


def _build(choice: Choice, device: str = "meta") -> "Workload":
    from meshwright.capture.zoo import build

    return build(choice.model.name, choice.batch, choice.sequence, choice.precision, device)


def _run_factory(
    name: str, batch: float | None, sequence: int | None, precision: str | None, loss: str | None
) -> "Workload":
    """What a factory returns, on that many samples where they are whole ones."""
    need_torch()
    from meshwright.capture.factory import run_factory

    samples = None if batch is None or batch % 1 != 0 else int(batch)
    of_weights = {MIXED: "bf16", TF32: "fp32"}.get(precision or "", precision)
    return run_factory(name, batch=samples, sequence=sequence, precision=of_weights, loss=loss)


def _whole_samples(name: str, batch: float) -> int:
    if batch % 1 != 0:  # also true of infinity and NaN
        raise InputError(f"{name}: batch to capture must be a whole number, got {batch}")
    return int(batch)


def _can_capture(model: ZooModel) -> bool:
    wanted = {"own": ("torch",), "transformers": ("torch", "transformers"), "graph": ()}
    return all(find_spec(package) is not None for package in wanted[model.source])


def need_torch(command: str = "capture") -> None:
    """Refuse what needs torch where it is not installed, or too old; doubt one that is too new.

    The release is read, not imported, which takes seconds.
    """
    if find_spec("torch") is None:
        raise InputError(f"{command}: needs PyTorch; install meshwright[torch]")
    found = version("torch")
    release = tuple(int(each) for each in found.split(".")[:2])
    between = f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} to {NEWEST_TORCH[0]}.{NEWEST_TORCH[1]}"
    if release < OLDEST_TORCH:
        raise InputError(f"{command}: PyTorch must be {between}, is {found}")
    if release > NEWEST_TORCH:
        remark = f"PyTorch {found} is newer than those that Meshwright was tested with, {between}"
        warnings.warn(remark, stacklevel=3)


def _warn_of_threads(
    paths: Sequence[str | Path], profiles: Sequence[Profile], threads: int
) -> None:
    """Say which tables are left out as their kernels had another number of threads."""
    for path, profile in zip(paths, profiles, strict=True):
        for table in profile.tables:
            if not table.has_threads(threads):
                warn(
                    f"{path}: times on {table.device_type} with {table.software[THREADS]} threads "
                    f"are left out, a rank of `meshwright run` has {threads}; measure again, or "
                    f"set OMP_NUM_THREADS for both"
                )


def _open_cache() -> GraphCache | None:
    folder = cache_folder(os.environ)
    return None if folder is None else open_cache(folder)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL byte
        return False
