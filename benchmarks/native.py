"""A plan for one device beside plain PyTorch: eager and compiled, in turns in one process.

Models train with fused AdamW, every way its own copy on the same batch; a turn of each is timed one
after the other, and the median of all turns counts. One JSON object a model and precision. Needs a
GPU for times that mean anything.
"""

import argparse
import gc
import json
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from language_model import Language
from meshwright import source
from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.cluster.build import fully_connected
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.region.inductor import Inductor
from meshwright.execute.trainer import Trainer
from meshwright.plan.plan import Part, Plan

Step = Callable[[], torch.Tensor]
"""Takes a step and returns its loss."""
STEPS = 5
"""In a turn."""
LEARNING_RATE = 1e-4
WAYS = ("eager", "compiled", "planned", "planned compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a language model and its batch."""

    width: int
    layers: int
    samples: int
    tokens: int
    words: int = 50304


LANGUAGE = {
    "small": Size(width=128, layers=2, samples=4, tokens=64, words=512),
    "gpt-124m": Size(width=768, layers=12, samples=8, tokens=1024),
    "gpt-355m": Size(width=1024, layers=24, samples=4, tokens=1024),
    "gpt-1b": Size(width=2048, layers=20, samples=4, tokens=2048),
}
ZOO = {"resnet50": 64, "inception-v3": 32, "swin-l": 32, "transformer": 128}
"""Models of the zoo that need no other package, and their batches."""


def make_workload(name: str, precision: str) -> Workload:
    """The model with the same values each time, on the CPU."""
    torch.manual_seed(0)
    if name in ZOO:
        short = {"float32": "fp32", "bfloat16": "bf16"}[precision]
        return source.make_workload(name, ZOO[name], precision=short)()
    size = LANGUAGE[name]
    model = Language(width=size.width, layers=size.layers, words=size.words)
    ids = torch.randint(0, size.words, (size.samples, size.tokens))
    return Workload(name=name, model=model.to(getattr(torch, precision)), args=(ids,))


def plain(workload: Workload, device: str, compiles: bool) -> Step:
    """A step of PyTorch's own."""
    model = workload.model.to(device).train()
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda each: each.to(device), (workload.args, dict(workload.kwargs))
    )
    update = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    run = torch.compile(model) if compiles else model

    def step() -> torch.Tensor:
        made = run(*args, **kwargs)
        loss: torch.Tensor = made if workload.loss is None else workload.loss(made)
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()
        update.zero_grad()
        return loss.detach()

    return step


def planned(workload: Workload, device: str, compiles: bool) -> Step:
    """A step by a plan for one device."""
    graph = capture_workload(workload, "adamw")
    cluster = fully_connected(num_devices=1, device_type="h100", bytes_per_second=1e9)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(cluster.devices[0].name,)),))
    compiler = Inductor(torch.device(device), _show) if compiles else None
    trainer = Trainer(
        lower_frozen(graph, cluster, plan), workload, rank=0, device=torch.device(device),
        optimizer="adamw", learning_rate=LEARNING_RATE,
        compiler=compiler,
    )  # fmt: skip
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda each: each.to(device), (workload.args, dict(workload.kwargs))
    )

    def step() -> torch.Tensor:
        trainer.step(args, kwargs)
        return trainer.pulses.pop().own

    return step


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(ways: Mapping[str, Callable[[], Step]], turns: int, device: str) -> dict[str, Any]:
    """Milliseconds a step, bytes at most, and losses of the first steps, by way."""
    steps, found = {}, {}
    for name, make in ways.items():
        gc.collect()
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        start = perf_counter()
        steps[name] = make()
        losses = [float(steps[name]())]
        ready = perf_counter() - start
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        losses += [float(steps[name]()) for _ in range(STEPS - 1)]  # one of them may be recorded
        peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else 0
        found[name] = {"ready_seconds": round(ready, 2), "peak_bytes": peak, "losses": losses}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, step in steps.items():
            _synchronize(device)
            start = perf_counter()
            for _ in range(STEPS):
                step()
            _synchronize(device)
            times[name].append((perf_counter() - start) / STEPS)
    for name, seconds in times.items():
        found[name]["step_ms"] = round(median(seconds) * 1e3, 3)
    return found


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Print one line a model and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*LANGUAGE, *ZOO]
    parser.add_argument("--models", nargs="+", default=["gpt-124m"], choices=names)
    parser.add_argument(
        "--precisions", nargs="+", default=["bfloat16"], choices=["float32", "bfloat16"]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    for name, precision in product(given.models, given.precisions):
        made = partial(make_workload, name, precision)
        ways = {
            "eager": lambda made=made: plain(made(), given.device, compiles=False),
            "compiled": lambda made=made: plain(made(), given.device, compiles=True),
            "planned": lambda made=made: planned(made(), given.device, compiles=False),
            "planned compiled": lambda made=made: planned(made(), given.device, compiles=True),
        }
        ways = {way: ways[way] for way in given.ways}
        found = measure(ways, given.turns, given.device)
        print(json.dumps({"model": name, "precision": precision, **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
