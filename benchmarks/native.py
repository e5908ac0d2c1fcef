"""A plan for one device beside plain PyTorch: eager and compiled, in turns in one process.

Language models with tied sizes train with fused AdamW. Every way trains its own copy of the model
on the same batch; a turn of each is timed one after the other, and the median of all turns counts.
One JSON object a case. Needs a GPU for times that mean anything.
"""

import argparse
import gc
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from language_model import Language
from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.cluster.build import fully_connected
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.trainer import Trainer
from meshwright.plan.plan import Part, Plan

Step = Callable[[], torch.Tensor]
"""Takes a step and returns its loss."""
STEPS = 5
"""In a turn."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and its batch."""

    width: int
    layers: int
    samples: int
    tokens: int
    words: int = 50304


CASES = {
    "small": Case(width=128, layers=2, samples=4, tokens=64, words=512),
    "gpt2-124m": Case(width=768, layers=12, samples=8, tokens=1024),
    "gpt2-355m": Case(width=1024, layers=24, samples=4, tokens=1024),
    "gpt-1b": Case(width=2048, layers=20, samples=4, tokens=2048),
}


def make_workload(case: Case, dtype: torch.dtype, device: str) -> Workload:
    """The model with the same values each time."""
    torch.manual_seed(0)
    model = Language(width=case.width, layers=case.layers, words=case.words).to(dtype)
    ids = torch.randint(0, case.words, (case.samples, case.tokens))
    return Workload(name="language", model=model.to(device), args=(ids.to(device),))


def plain(case: Case, dtype: torch.dtype, device: str, compiles: bool) -> Step:
    """A step of PyTorch's own."""
    workload = make_workload(case, dtype, device)
    model = workload.model
    update = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    run = torch.compile(model) if compiles else model

    def step() -> torch.Tensor:
        loss: torch.Tensor = run(*workload.args)
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()
        update.zero_grad()
        return loss.detach()

    return step


def planned(case: Case, dtype: torch.dtype, device: str) -> Step:
    """A step by a plan for one device."""
    workload = make_workload(case, dtype, "cpu")
    graph = capture_workload(workload, "adamw")
    cluster = fully_connected(num_devices=1, device_type="h100", bytes_per_second=1e9)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(cluster.devices[0].name,)),))
    trainer = Trainer(
        lower_frozen(graph, cluster, plan), workload, rank=0, device=torch.device(device),
        optimizer="adamw", learning_rate=LEARNING_RATE,
    )  # fmt: skip
    args = tuple(each.to(device) for each in workload.args)

    def step() -> torch.Tensor:
        trainer.step(args)
        return trainer.losses.pop()

    return step


def measure(ways: Mapping[str, Callable[[], Step]], turns: int, device: str) -> dict[str, Any]:
    """Milliseconds a step, bytes at most, and losses of the first steps, by way."""
    steps, found = {}, {}
    for name, make in ways.items():
        gc.collect()
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        start = perf_counter()
        steps[name] = make()
        losses = [float(steps[name]()) for _ in range(STEPS)]
        ready = perf_counter() - start
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        steps[name]()
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
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["gpt2-124m"], choices=list(CASES))
    parser.add_argument("--precisions", nargs="+", default=["bfloat16"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    for name in given.cases:
        for precision in given.precisions:
            case = CASES[name], getattr(torch, precision), given.device
            ways: dict[str, Callable[[], Step]] = {
                "eager": lambda case=case: plain(*case, compiles=False),  # type: ignore[misc]
                "compiled": lambda case=case: plain(*case, compiles=True),  # type: ignore[misc]
                "planned": lambda case=case: planned(*case),  # type: ignore[misc]
            }
            found = measure(ways, given.turns, given.device)
            print(json.dumps({"case": name, "precision": precision, **found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
