"""Captures the models of the zoo, each in a process of its own: ops, seconds and peak memory.

Needs the extras torch and zoo. Models are captured at their usual batch, which changes shapes and
not the work of capturing. Seconds are of the capture alone; imports and building stand beside it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from meshwright.errors import InputError

LIMIT_SECONDS = 180.0
MICROSECONDS = 6
"""Digits that are kept of a time."""


def capture_model(name: str) -> dict[str, Any]:
    """Capture one model in this process."""
    start = time.perf_counter()
    # Here, so that the process that waits for this one stays small and its import is timed.
    from meshwright.capture.capture import capture
    from meshwright.capture.zoo import build

    workload = build(name)
    built = time.perf_counter()
    graph = capture(
        workload.model, workload.args, workload.kwargs, workload.loss, batch=workload.batch
    )
    done = time.perf_counter()
    return {
        "model": name,
        "batch": workload.batch,
        "parameters": sum(each.numel() for each in workload.model.parameters()),
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "flops": float(graph.flops.sum()),
        "seconds": round(done - built, MICROSECONDS),
        "build_seconds": round(built - start, MICROSECONDS),
        "peak_bytes": _peak_bytes(),
    }


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in KiB


def capture_apart(name: str, limit_seconds: float) -> dict[str, Any]:
    """Capture one model in a process of its own; a failure is a record too."""
    command = [sys.executable, __file__, "--here", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_seconds
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "error": f"took more than {limit_seconds:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"model": name, "error": lines[-1].removeprefix("error: ")}
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models of the zoo (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds a model")
    parser.add_argument("--here", metavar="NAME", help="capture one model in this process")
    options = parser.parse_args(arguments)
    try:
        if options.here:
            print(json.dumps(capture_model(options.here)))
            return 0
        for name in options.names or _zoo_names():
            record = capture_apart(name, options.limit)
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _zoo_names() -> list[str]:
    from meshwright.capture.zoo import zoo_models

    return [each.name for each in zoo_models()]


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if "error" in record:
        return f"{record['model']:>13}: {record['error']}"
    return (
        f"{record['model']:>13}: {record['ops']:6} ops in {record['seconds']:6.2f} s "
        f"(build {record['build_seconds']:5.2f} s), peak {record['peak_bytes'] / 1e6:5.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
