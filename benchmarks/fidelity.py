"""Predicted against measured step time and peak memory of whole models on a CUDA device.

    python benchmarks/fidelity.py measure -o FILE [ROWS]      on the CUDA machine: torch is enough
    python benchmarks/fidelity.py predict FILE [-o TABLE]     anywhere

`measure` trains each row's model for a few steps, eagerly, as users do (no compilation, AdamW as
`torch.optim.AdamW(parameters)` gives it), and times every distinct kernel of its captured step by
itself, with the memory that it takes. `fidelity_rows.py` says what a row is. Files of 2026-11-15
have fused AdamW, fp32 rows with torch's own settings of TF32, which their header names, and amp for
mixed. One JSON object a line; the first names device and software.

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
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fidelity_predict import predict
from fidelity_rows import FOREACH, HELD_OUT, LASTING, LAUNCHES, ROWS, build_row, tf32_of
from meshwright.capture.optimiser import Optimiser
from meshwright.capture.profile import list_calls, time_calls
from meshwright.capture.replay import replayed
from meshwright.capture.trace import find_loss, trace_step
from sustained import Meter

STEPS = 5
REPEATS = 3
PHASES = 5
"""Steps whose phases are timed one by one."""
TRACERS = 12
"""Processes that trace steps while the device is busy with others."""


def trace_calls(row: str) -> Counter[str]:
    """The distinct kernels of a row's step."""
    torch.set_num_threads(1)
    workload, autocast = build_row(row)
    with tf32_of(row):
        trace = trace_step(
            workload.model,
            workload.args,
            workload.kwargs,
            loss=workload.loss,
            optimizer=Optimiser.ADAMW,
            autocast=autocast,
        )
        return Counter(list_calls(trace))


Known = dict[str, dict[str, Any]]


def measure_calls(calls: Counter[str], device: torch.device, known: Known) -> list[dict[str, Any]]:
    """Seconds and bytes of each kernel; `known`: those of rows before."""
    fresh = Counter({text: number for text, number in calls.items() if text not in known})
    for text, timed in time_calls(fresh, device):
        if isinstance(timed, str):
            known[text] = {"seconds": timed}
        else:
            known[text] = {"seconds": timed.seconds, "bytes": call_bytes(text, device)}
    return [{"call": text, "count": number, **known[text]} for text, number in calls.items()]


def call_bytes(text: str, device: torch.device) -> int:
    """What a call takes at its peak, its results among it, besides what it is given."""
    with replayed(text, device) as replay:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        made = replay.run()
        torch.cuda.synchronize()
        del made
        return torch.cuda.max_memory_allocated() - before


def measure_steps(
    row: str, device: torch.device, *, is_compiled: bool, seconds: float = 0.0
) -> dict[str, Any]:
    """Train for a few steps; the median of several timings, and how far they spread.

    `seconds`: for how long it is trained after that, to see what the power limit leaves.
    """
    workload, autocast = build_row(row, device.type)
    model = workload.model.train()
    if is_compiled:
        model.compile()
    inputs = [fill(each) for each in workload.args]
    named = {key: fill(each) for key, each in workload.kwargs.items()}
    optimizer = torch.optim.AdamW(model.parameters())
    losses: list[Any] = []

    def forward() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            losses.append(find_loss(model(*inputs, **named), workload.loss))

    phases: dict[str, Callable[[], object]] = {
        "forward": forward,
        "backward": lambda: losses.pop().backward(),
        "update": optimizer.step,
    }

    def step() -> None:
        for run in phases.values():
            run()

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
        "phases": measure_phases(phases),
        "num_parameters": sum(1 for _ in model.parameters()),
        **(measure_lasting(step, seconds) if seconds else {}),
    }


def measure_lasting(step: Callable[[], object], seconds: float) -> dict[str, float]:
    """A step's time in the second half of a load that lasts, with the GPU's clock and power then.

    Before it the GPU rests as long, and its first steps are timed: those of a cool card.
    """
    torch.cuda.synchronize()
    time.sleep(seconds)
    meter = Meter()
    times = [time.perf_counter()]
    seen: list[tuple[float, float, float]] = []
    while not seen or times[-1] - times[0] < seconds:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        seen.append(meter.read)
    meter.close()
    half = len(seen) // 2
    return {
        "first_seconds": (times[1] - times[0]) / STEPS,
        "lasting_seconds": (times[-1] - times[half]) / STEPS / (len(seen) - half),
        "clock_mhz": statistics.mean(each[0] for each in seen[half:]),
        "watts": statistics.mean(each[1] for each in seen[half:]),
    }


def measure_phases(phases: dict[str, Any]) -> dict[str, Any]:
    """By phase: until the host is done, until the device is, and the peak of its memory."""
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in phases}
    for _ in range(PHASES):
        for name, run in phases.items():
            torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            run()
            host = time.perf_counter() - begin
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            found[name].append((host, seconds, torch.cuda.max_memory_allocated()))
    return {
        name: dict(
            zip(("host", "seconds", "bytes"), map(statistics.median, zip(*each, strict=True)),
                strict=True)
        )
        for name, each in found.items()
    }  # fmt: skip


def fill(tensor: Any) -> Any:
    """Values that every model accepts: small random indices, or normal numbers.

    Not all the same: products of equal rows draw less power and run up to a sixth faster.
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor.normal_()
    return tensor.random_(0, 1000 if tensor.dim() == 2 else 2)


def measure(
    path: Path, rows: Sequence[str], *, is_compiled: bool, has_calls: bool, seconds: float
) -> None:
    """Measure every row, writing as they come, so that what was measured is kept.

    Steps first, while nothing else runs; then kernels, which wait for no host.
    """
    device = torch.device("cuda")
    header = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "compiled": is_compiled,
        "optimizer": FOREACH,
    }
    has_calls &= not is_compiled
    found = {}
    for row in rows:
        found[row] = _measured(row, device, is_compiled, seconds)
        write_rows(path, header, list(found.values()))
    if not has_calls:
        return
    known: Known = {}
    with ProcessPoolExecutor(TRACERS, mp_context=get_context("spawn")) as pool:
        for row, calls in [(row, pool.submit(trace_calls, row)) for row in rows]:
            found[row] |= _called(row, calls, device, known)
            write_rows(path, header, list(found.values()))


def _measured(row: str, device: torch.device, is_compiled: bool, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        with tf32_of(row):
            steps = measure_steps(row, device, is_compiled=is_compiled, seconds=seconds)
            found = {"row": row, **steps, "calls": []}
    except Exception as error:  # a row that does not fit must not end the others
        found = {"row": row, "error": f"{type(error).__name__}: {str(error)[:300]}"}
    print(json.dumps(found), f"{time.perf_counter() - began:.1f} s", flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    return found


def _called(
    row: str, calls: Future[Counter[str]], device: torch.device, known: Known
) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        found = {"calls": measure_calls(calls.result(), device, known)}
    except Exception as error:  # likewise
        found = {"calls": []}
        print(f"{type(error).__name__}: {str(error)[:300]}")
    print(row, len(found["calls"]), f"calls {time.perf_counter() - began:.1f} s", flush=True)
    torch.cuda.empty_cache()
    return found


def write_rows(path: Path, header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """All rows so far."""
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, *rows))


def main() -> None:
    """Measure or predict."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="train and time, on a CUDA device")
    measuring.add_argument("rows", nargs="*", default=list(ROWS), metavar="ROW")
    measuring.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    measuring.add_argument("--compile", action="store_true", help="torch.compile; no kernel times")
    measuring.add_argument("--steps-only", action="store_true", help="no kernel times")
    measuring.add_argument("--launches", action="store_true", help="rows of few samples")
    measuring.add_argument("--held-out", action="store_true", help="rows that nothing is fitted to")
    measuring.add_argument("--lasting", action="store_true", help="rows that are trained longer")
    measuring.add_argument("--seconds", type=float, default=0.0, help="how long each is trained")
    predicting = commands.add_parser("predict", help="hold predictions against a file of them")
    predicting.add_argument("file", type=Path)
    predicting.add_argument("-o", dest="output", type=Path, metavar="TABLE")
    predicting.add_argument("--jobs", type=int, default=1, metavar="N", help="rows at once")
    arguments = parser.parse_args()
    if arguments.command == "predict":
        predict(arguments.file, arguments.output, arguments.jobs)
    else:
        rows = LAUNCHES if arguments.launches else arguments.rows
        rows = HELD_OUT if arguments.held_out else rows
        rows = LASTING if arguments.lasting else rows
        has_calls = not (arguments.steps_only or arguments.launches)
        measure(
            arguments.output,
            rows,
            is_compiled=arguments.compile,
            has_calls=has_calls,
            seconds=arguments.seconds,
        )


if __name__ == "__main__":
    main()
