"""Fits what a host takes to launch a step to steps on so few samples that the device waits for it.

    python benchmarks/launch.py benchmarks/results/2026-11-15-launch-h200.jsonl

Prints the constants of `meshwright.cost.compute.host_seconds` and each row's prediction. Rows are
as `fidelity.py measure` names them, each with the host seconds of several runs.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from fidelity import build_row
from meshwright.capture.optimiser import Optimiser
from meshwright.capture.trace import trace_step

USUAL_SECONDS = np.array([14e-6, 8e-6, 40e-6])
"""Where a weak pull keeps the three, which the models' counts hardly tell apart."""
PULL = 0.3


def count_launches(row: str) -> tuple[int, int, int]:
    """Calls of forward, ops of backward, and updates of a row's step."""
    workload, _ = build_row(row)
    trace = trace_step(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        optimizer=Optimiser.ADAMW,
    )
    place = {node: number for number, node in enumerate(trace.graph.nodes)}
    calls = backward = updates = 0
    for kernel in trace.ledger.kernels:
        if place[kernel.node] < trace.num_forward:
            calls += kernel.calls
        elif place[kernel.node] < trace.num_backward:
            backward += 1
        else:
            updates += 1
    return calls, backward, updates


def main() -> None:
    """Fit by least squares of relative errors, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    _, *rows = (json.loads(line) for line in parser.parse_args().file.read_text().splitlines())
    seconds = np.array([np.mean(row["host_seconds"]) for row in rows])
    counts = np.array([count_launches(row["row"]) for row in rows], dtype=np.float64)
    relative = counts * USUAL_SECONDS / seconds[:, None]
    pull = np.sqrt(PULL)
    matrix = np.vstack((relative, pull * np.eye(3)))
    wanted = np.concatenate((np.ones(len(rows)), np.full(3, pull)))
    fitted = np.linalg.lstsq(matrix, wanted, rcond=None)[0] * USUAL_SECONDS
    predicted = counts @ fitted
    for row, mine, truth in zip(rows, predicted, seconds, strict=True):
        print(f"{row['row']:26} {mine * 1e3:6.1f} ms of {truth * 1e3:6.1f}")
    error = np.abs(predicted / seconds - 1).mean()
    names = ("forward call", "backward op", "update")
    texts = [f"{name} {each * 1e6:.1f} us" for name, each in zip(names, fitted, strict=True)]
    print(f"{', '.join(texts)}; mean error {error:.1%}")


if __name__ == "__main__":
    main()
