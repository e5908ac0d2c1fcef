"""Predicted against measured step time and peak memory of whole models on a CUDA device.

    python benchmarks/fidelity.py measure -o FILE [ROWS]      on the CUDA machine: torch is enough
    python benchmarks/fidelity.py show FILE                   anywhere

`measure` trains each row's model for a few steps, eagerly, as users do (fused AdamW, no
compilation), and times every distinct kernel of its captured step by itself. A row is
NAME/BATCH/SEQUENCE/PRECISION, with "-" for models without a sequence. One JSON object a line; the
first names device and software.
"""

import argparse
import gc
import gzip
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from meshwright.capture.optimiser import Optimiser
from meshwright.capture.profile import distinct_calls, time_calls
from meshwright.capture.trace import find_loss, trace_step
from meshwright.capture.zoo import build

ROWS = (
    "alexnet-32/512/-/fp32", "vgg16-32/512/-/fp32", "vgg16/64/-/fp32", "resnet50/64/-/fp32",
    "resnet50/256/-/bf16", "resnet152/64/-/fp32", "inception-v3/64/-/fp32",
    "semantic-fpn/8/-/fp32", "vit-l/32/-/fp32", "vit-l/64/-/bf16", "swin-l/32/-/bf16",
    "transformer/32/128/fp32", "bert-base/64/128/fp32", "bert-base/64/128/bf16",
    "bert-large/32/128/fp32", "bert-large/64/512/bf16", "fnet-base/64/128/fp32",
    "gpt2/8/1024/fp32", "gpt2/16/1024/bf16", "gpt2-large/8/1024/bf16", "gpt2-xl/4/1024/bf16",
    "llama-3-8b/1/2048/bf16",
)  # fmt: skip
STEPS = 8
REPEATS = 3


def measure_row(row: str, device: torch.device) -> dict[str, Any]:
    """Step time, peak memory and kernel times of one row."""
    name, batch, sequence, precision = row.split("/")
    length = None if sequence == "-" else int(sequence)
    workload = build(name, int(batch), length, precision)  # type: ignore[arg-type]
    trace = trace_step(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        optimizer=Optimiser.ADAMW,
    )
    calls = distinct_calls(trace)
    del trace
    found: dict[str, Any] = {"row": row, **measure_steps(row, device)}
    gc.collect()
    torch.cuda.empty_cache()
    found["calls"] = [
        {"call": text, "count": calls[text], "seconds": seconds}
        for text, seconds in time_calls(calls, device)
    ]
    return found


def measure_steps(row: str, device: torch.device) -> dict[str, Any]:
    """Train for a few steps; the median of several timings, and how far they spread."""
    name, batch, sequence, precision = row.split("/")
    length = None if sequence == "-" else int(sequence)
    workload = build(name, int(batch), length, precision, device=device.type)  # type: ignore[arg-type]
    model = workload.model.train()
    inputs = [fill(each) for each in workload.args]
    named = {key: fill(each) for key, each in workload.kwargs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        find_loss(model(*inputs, **named), workload.loss).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / STEPS)
    return {
        "step_seconds": statistics.median(times),
        "spread": max(times) / min(times) - 1,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def fill(tensor: Any) -> Any:
    """Values that every model accepts: index 0, or normal numbers."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return tensor.normal_() if tensor.dtype.is_floating_point else tensor.zero_()


def measure(path: Path, rows: list[str]) -> None:
    """Measure every row, writing as they come, so that what was measured is kept."""
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    header = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tf32": False,
    }
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(header) + "\n")
        for row in rows:
            began = time.perf_counter()
            try:
                found = measure_row(row, device)
            except Exception as error:  # a row that does not fit must not end the others
                found = {"row": row, "error": f"{type(error).__name__}: {str(error)[:300]}"}
            file.write(json.dumps(found) + "\n")
            file.flush()
            short = {key: value for key, value in found.items() if key != "calls"}
            print(json.dumps(short), f"{time.perf_counter() - began:.1f} s", flush=True)
            gc.collect()
            torch.cuda.empty_cache()


def show(path: Path) -> None:
    """What was measured, and what the sum of the kernels by themselves says."""
    with gzip.open(path, "rt") as file:
        header, *rows = (json.loads(line) for line in file)
    print(json.dumps(header))
    for row in rows:
        calls = row.pop("calls", [])
        known = [each for each in calls if isinstance(each["seconds"], float)]
        row["kernels_seconds"] = sum(each["count"] * each["seconds"] for each in known)
        row["kernels"] = sum(each["count"] for each in calls)
        row["not_replayed"] = len(calls) - len(known)
        print(json.dumps(row))


def main() -> None:
    """Measure or show."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="train and time, on a CUDA device")
    measuring.add_argument("rows", nargs="*", default=list(ROWS), metavar="ROW")
    measuring.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    showing = commands.add_parser("show", help="print a file of measurements")
    showing.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "show":
        show(arguments.file)
    else:
        measure(arguments.output, arguments.rows)


if __name__ == "__main__":
    main()
