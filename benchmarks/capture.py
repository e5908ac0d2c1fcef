"""Captures the models of the zoo, each in a process of its own: ops, seconds and peak memory.

Needs the extras torch and zoo. Models are captured at their usual batch, which changes shapes and
not the work of capturing. Seconds are of the capture alone; imports and building stand beside it.
"""

import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

from apart import run_models

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


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if "error" in record:
        return f"{record['model']:>13}: {record['error']}"
    return (
        f"{record['model']:>13}: {record['ops']:6} ops in {record['seconds']:6.2f} s "
        f"(build {record['build_seconds']:5.2f} s), peak {record['peak_bytes'] / 1e6:5.0f} MB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line a model."""
    for _ in run_models(__file__, __doc__, capture_model, as_text, LIMIT_SECONDS, arguments):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
