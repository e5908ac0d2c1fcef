"""A plan for one device beside plain PyTorch: eager and compiled, in turns in one process.

Models train with fused AdamW, every way its own copy on the same batch; a turn of each is timed one
after the other, and the median of all turns counts. One JSON object a model and precision, each in
a process of its own; `--at-once` of them get ready side by side, which takes most of the time, and
are then timed alone. Needs a GPU for times that mean anything.
"""

import argparse
import gc
import json
import multiprocessing
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from meshwright.capture.capture import capture_traced
from meshwright.capture.workload import Workload
from meshwright.cluster.build import fully_connected
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.region.inductor import Inductor
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer
from meshwright.plan.plan import Part, Plan
from native_models import NAMES, WEIGHTS, make_workload
from rank_seat import take_seat

Step = Callable[[], torch.Tensor]
"""Takes a step and returns its loss."""
STEPS = 5
"""In a turn."""
LEARNING_RATE = 1e-4
PLANNED = ("planned", "planned compiled")
WAYS = ("eager", "compiled", *PLANNED)


def plain(workload: Workload, device: str, precision: str, compiles: bool) -> Step:
    """A step of PyTorch's own."""
    model = workload.model.to(device).train()
    args, kwargs = _on_device(workload, device)
    update = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    run = torch.compile(model) if compiles else model

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "mixed"):
            made = run(*args, **kwargs)
            loss: torch.Tensor = _loss(made) if workload.loss is None else workload.loss(made)
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()
        update.zero_grad()
        return loss.detach()

    return step


def _loss(made: Any) -> torch.Tensor:
    found: torch.Tensor = made if isinstance(made, torch.Tensor) else made.loss
    return found


def planned(workload: Workload, device: str, precision: str, compiles: bool) -> Step:
    """A step by a plan for one device."""
    autocast = "bf16" if precision == "mixed" else None
    graph, trace = capture_traced(workload, "adamw", autocast)
    cluster = fully_connected(num_devices=1, device_type="h100", bytes_per_second=1e9)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(cluster.devices[0].name,)),))
    compiler = Inductor(torch.device(device), _show) if compiles else None
    seat = take_seat(lower_frozen(graph, cluster, plan), 0, device)
    settings = Settings(optimizer="adamw", autocast=autocast, learning_rate=LEARNING_RATE)
    trainer = Trainer(seat, workload, settings, trace=trace, compiler=compiler, show=_show)
    args, kwargs = _on_device(workload, device)

    def step() -> torch.Tensor:
        trainer.step(args, kwargs)
        return trainer.pulses.pop().own

    return step


def _on_device(workload: Workload, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda each: each.to(device), (tuple(workload.args), dict(workload.kwargs))
    )
    return args, kwargs


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def prepare(
    ways: Mapping[str, Callable[[Workload], Step]], make: Callable[[], Workload], device: str
) -> tuple[dict[str, Step], dict[str, Any]]:
    """The steps by way, and what is known of each: seconds from the model to its first step, bytes
    at most, losses of the first ones."""
    steps, found = {}, {}
    for name, open_way in ways.items():
        gc.collect()
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        workload = make()
        if name in PLANNED:
            workload.model.cpu()  # plans are given a model that is not on their devices
        start = perf_counter()
        steps[name] = open_way(workload)
        del workload
        losses = [float(steps[name]())]
        ready = perf_counter() - start
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        losses += [float(steps[name]()) for _ in range(STEPS - 1)]  # one of them may be recorded
        peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else 0
        found[name] = {"ready_seconds": round(ready, 2), "peak_bytes": peak, "losses": losses}
        _show(f"{name}: ready after {ready:.1f} s")
    return steps, found


def measure(steps: Mapping[str, Step], turns: int, device: str) -> dict[str, float]:
    """Milliseconds a step by way."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            _synchronize(device)
            start = perf_counter()
            for _ in range(STEPS):
                step()
            _synchronize(device)
            times[name].append((perf_counter() - start) / STEPS)
    return {name: round(median(seconds) * 1e3, 3) for name, seconds in times.items()}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def compare(name: str, precision: str, given: argparse.Namespace, parent: Connection) -> None:
    """Measure one model, in a process of its own, when the parent says that it may."""
    torch.set_float32_matmul_precision("highest")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    makers = {
        "eager": partial(plain, compiles=False),
        "compiled": partial(plain, compiles=True),
        "planned": partial(planned, compiles=False),
        "planned compiled": partial(planned, compiles=True),
    }
    ways = {
        way: partial(makers[way], device=given.device, precision=precision) for way in given.ways
    }
    make = partial(make_workload, name, precision, given.device)
    steps, found = prepare(ways, make, given.device)
    parent.send("ready")
    parent.recv()
    for way, milliseconds in measure(steps, given.turns, given.device).items():
        found[way]["step_ms"] = milliseconds
    parent.send({"model": name, "precision": precision, "at_once": given.at_once, **found})
    dist.destroy_process_group()


def compare_several(
    cases: Iterable[tuple[str, str]], given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """What is found of models that get ready side by side; those that fail are left out."""
    context = multiprocessing.get_context("spawn")
    pairs = []
    for name, precision in cases:
        parent, child = context.Pipe()
        process = context.Process(target=compare, args=(name, precision, given, child))
        process.start()
        child.close()
        pairs.append((process, parent))
    ready = [(process, parent) for process, parent in pairs if _receive(parent) is not None]
    for process, parent in ready:
        parent.send("go")
        found = _receive(parent)
        process.join()
        if found is not None:
            yield found


def _receive(child: Connection) -> Any:
    try:
        return child.recv()
    except EOFError:
        return None


def _cases(
    text: str, precisions: Sequence[str], parser: argparse.ArgumentParser
) -> list[tuple[str, str]]:
    """The models and precisions that one word means."""
    name, _, precision = text.partition(":")
    wanted = [precision] if precision else list(precisions)
    if name not in NAMES or not set(wanted) <= set(WEIGHTS):
        parser.error(f"{text}: must be one of {', '.join(NAMES)}, with one of {', '.join(WEIGHTS)}")
    return [(name, each) for each in wanted]


def main() -> None:
    """Print one line a model and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=["gpt-124m"], help="NAME, or NAME:PRECISION for that alone"
    )
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=[*WEIGHTS])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--at-once", type=int, default=1)
    given = parser.parse_args()
    cases = [case for each in given.models for case in _cases(each, given.precisions, parser)]
    for first in range(0, len(cases), given.at_once):
        for found in compare_several(cases[first : first + given.at_once], given):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
