"""Predicted against measured step time and peak memory of whole models on a CUDA device.

    python benchmarks/fidelity.py measure -o FILE [ROWS]      on the CUDA machine: torch is enough
    python benchmarks/fidelity.py predict FILE [-o TABLE]     anywhere

`measure` trains each row's model for a few steps, eagerly, as users do (fused AdamW, no
compilation, torch's own settings of TF32), and times every distinct kernel of its captured step by
itself. A row is NAME/BATCH/SEQUENCE/PRECISION, with "-" for models without a sequence; precision
fp32, bf16, or amp: fp32 weights under autocast to bf16. One JSON object a line; the first names
device and software.

`predict` captures each row's step and simulates it on one such device: with the fitted costs alone,
and with the row's own kernels as a profile. Time errors are over rows whose measurement repeats
within 3%; rows that the host's launches bound are said to be.
"""

import argparse
import gc
import gzip
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from meshwright.capture.optimiser import Optimiser
from meshwright.capture.profile import distinct_calls, time_calls
from meshwright.capture.trace import find_loss, trace_step
from meshwright.capture.workload import Workload
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
REPEATABLE = 0.03
"""Rows whose timings spread further say nothing about a prediction's error."""
DEVICE_TYPE = "h200"


def build_row(row: str, device: str = "meta") -> tuple[Workload, torch.dtype | None]:
    """A row's workload, and what it autocasts to."""
    name, batch, sequence, precision = row.split("/")
    length = None if sequence == "-" else int(sequence)
    is_mixed = precision == "amp"
    workload = build(name, int(batch), length, "fp32" if is_mixed else precision, device=device)
    return workload, torch.bfloat16 if is_mixed else None


def measure_row(row: str, device: torch.device, *, is_compiled: bool) -> dict[str, Any]:
    """Step time, peak memory and, of an eager row, kernel times."""
    if is_compiled:
        return {"row": row, **measure_steps(row, device, is_compiled=True), "calls": []}
    workload, autocast = build_row(row)
    trace = trace_step(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        optimizer=Optimiser.ADAMW,
        autocast=autocast,
    )
    calls = distinct_calls(trace)
    del trace
    found: dict[str, Any] = {"row": row, **measure_steps(row, device, is_compiled=False)}
    gc.collect()
    torch.cuda.empty_cache()
    found["calls"] = [
        {
            "call": text,
            "count": calls[text],
            "seconds": timed if isinstance(timed, str) else timed.seconds,
        }
        for text, timed in time_calls(calls, device)
    ]
    return found


def measure_steps(row: str, device: torch.device, *, is_compiled: bool) -> dict[str, Any]:
    """Train for a few steps; the median of several timings, and how far they spread."""
    workload, autocast = build_row(row, device.type)
    model = workload.model.train()
    if is_compiled:
        model.compile()
    inputs = [fill(each) for each in workload.args]
    named = {key: fill(each) for key, each in workload.kwargs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            loss = find_loss(model(*inputs, **named), workload.loss)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times, hosts = [], []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        hosts.append((time.perf_counter() - begin) / STEPS)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / STEPS)
    return {
        "host_seconds": statistics.median(hosts),
        "step_seconds": statistics.median(times),
        "spread": max(times) / min(times) - 1,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def fill(tensor: Any) -> Any:
    """Values that every model accepts: small random indices, or normal numbers.

    Not all the same: products of equal rows draw less power and run up to a sixth faster.
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor.normal_()
    return tensor.random_(0, 1000 if tensor.dim() == 2 else 2)


def measure(path: Path, rows: Sequence[str], *, is_compiled: bool) -> None:
    """Measure every row, writing as they come, so that what was measured is kept."""
    device = torch.device("cuda")
    header = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "compiled": is_compiled,
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "cudnn": torch.backends.cudnn.allow_tf32,
        },
    }
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(header) + "\n")
        for row in rows:
            began = time.perf_counter()
            try:
                found = measure_row(row, device, is_compiled=is_compiled)
            except Exception as error:  # a row that does not fit must not end the others
                found = {"row": row, "error": f"{type(error).__name__}: {str(error)[:300]}"}
            file.write(json.dumps(found) + "\n")
            file.flush()
            short = {key: value for key, value in found.items() if key != "calls"}
            print(json.dumps(short), f"{time.perf_counter() - began:.1f} s", flush=True)
            gc.collect()
            torch.cuda.empty_cache()


def capture_row(row: str, found: dict[str, Any], *, is_compiled: bool = False) -> Any:
    """The graph of a row, with the times of its own kernels as those of the device type."""
    from meshwright.capture.capture import capture  # not needed to measure

    workload, autocast = build_row(row)
    known = {
        each["call"]: each["seconds"]
        for each in found["calls"]
        if isinstance(each["seconds"], float)
    }
    return capture(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        batch=workload.batch,
        autocast=autocast,
        measured={DEVICE_TYPE: known},
        compile=is_compiled,
    )


def predict_row(found: dict[str, Any], *, is_compiled: bool) -> dict[str, Any]:
    """A row's step time and peak memory as predicted, beside what was measured."""
    from dataclasses import replace

    from meshwright.cluster.builder.draft import Draft
    from meshwright.plan.plan import place_ops
    from meshwright.simulate.simulate import simulate

    graph = capture_row(found["row"], found, is_compiled=is_compiled)
    draft = Draft("one")
    draft.add_host("host", DEVICE_TYPE, 1)
    cluster = draft.finish()
    plan = place_ops(graph.op_names, [0] * graph.num_ops, [cluster.devices[0].name])
    fitted = simulate(replace(graph, seconds={}), cluster, plan)
    profiled = simulate(graph, cluster, plan)
    return {
        "row": found["row"],
        "step_seconds": found["step_seconds"],
        "spread": found["spread"],
        "fitted_seconds": fitted.step_seconds,
        "profiled_seconds": profiled.step_seconds,
        "launch_bound": fitted.is_launch_bound,
        "peak_bytes": found["peak_bytes"],
        "predicted_bytes": max(fitted.peak_bytes),
    }


def predict(path: Path, output: Path | None) -> None:
    """Predict every row and say how far off that is."""
    with gzip.open(path, "rt") as file:
        header, *rows = (json.loads(line) for line in file)
    torch.backends.cuda.matmul.allow_tf32 = header["tf32"]["matmul"]
    torch.backends.cudnn.allow_tf32 = header["tf32"]["cudnn"]
    lines = [{"command": " ".join(["python", *sys.argv]), "measured": header}]
    print(f"{'row':28} {'step':>9} {'spread':>7} {'fitted':>7} {'profile':>7} {'memory':>7}")
    for found in rows:
        if "error" in found:
            print(f"{found['row']:28} {found['error'][:80]}")
            continue
        line = predict_row(found, is_compiled=header.get("compiled", False))
        lines.append(line)
        print(
            f"{line['row']:28} {line['step_seconds'] * 1e3:6.1f} ms {line['spread']:7.1%} "
            f"{line['fitted_seconds'] / line['step_seconds']:7.3f} "
            f"{line['profiled_seconds'] / line['step_seconds']:7.3f} "
            f"{line['predicted_bytes'] / line['peak_bytes']:7.3f}"
            f"{' launch-bound' if line['launch_bound'] else ''}",
            flush=True,
        )
    lines.append(summarise(lines[1:]))
    print(json.dumps(lines[-1], indent=1))
    if output is not None:
        output.write_text("".join(json.dumps(line) + "\n" for line in lines))


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean absolute errors and rank correlation."""
    steady = [line for line in lines if line["spread"] <= REPEATABLE]
    times = [line["step_seconds"] for line in steady]

    def error(name: str, over: list[dict[str, Any]], truth: str) -> float:
        return statistics.fmean(abs(line[name] / line[truth] - 1) for line in over)

    return {
        "rows": len(lines),
        "repeatable_rows": len(steady),
        "fitted_error": error("fitted_seconds", steady, "step_seconds"),
        "fitted_worst": max(abs(x["fitted_seconds"] / x["step_seconds"] - 1) for x in steady),
        "fitted_spearman": spearman([line["fitted_seconds"] for line in steady], times),
        "profiled_error": error("profiled_seconds", steady, "step_seconds"),
        "memory_error": error("predicted_bytes", lines, "peak_bytes"),
        "memory_lowest": min(line["predicted_bytes"] / line["peak_bytes"] for line in lines),
    }


def spearman(first: list[float], second: list[float]) -> float:
    """Rank correlation; there are no ties among times."""
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    return statistics.correlation(*ranks) if len(first) > 1 else 1.0


def main() -> None:
    """Measure or predict."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="train and time, on a CUDA device")
    measuring.add_argument("rows", nargs="*", default=list(ROWS), metavar="ROW")
    measuring.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    measuring.add_argument("--compile", action="store_true", help="torch.compile; no kernel times")
    predicting = commands.add_parser("predict", help="hold predictions against a file of them")
    predicting.add_argument("file", type=Path)
    predicting.add_argument("-o", dest="output", type=Path, metavar="TABLE")
    arguments = parser.parse_args()
    if arguments.command == "predict":
        predict(arguments.file, arguments.output)
    else:
        measure(arguments.output, arguments.rows, is_compiled=arguments.compile)


if __name__ == "__main__":
    main()
