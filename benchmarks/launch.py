"""Fits what a host takes to launch a step to steps on so few samples that the device waits for it.

    python benchmarks/launch.py benchmarks/results/2026-11-18-launch*-h200.jsonl.gz

Prints the constants of `meshwright.cost.compute.host_seconds`, which are these rounded, and their
errors. Experts in fp32 and under autocast are left out: their grouped products wait for the device.
Hosts differ: fitted to the first file alone the constants are 5% below its own rows, 12% below the
second's and 26% below the third's, which are of other machines of the same kind. Rows are as
`fidelity.py measure --launches` measures them: forward, backward and update, each until the host is
done.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from fidelity_predict import capture_row
from meshwright.cost.compute import call_class
from meshwright.graph.graph import Graph, Phase
from streams import read_rows

CLASSES = ("view", "product", "convolution", "attention", "_grouped_mm", "other")
USUAL_SECONDS = {
    Phase.FORWARD: np.array([8, 25, 40, 40, 40, 18]) * 1e-6,
    Phase.BACKWARD: np.array([5, 16, 40, 60, 40, 13]) * 1e-6,
}
"""Where a weak pull keeps constants that the models' counts hardly tell apart."""
PULL = 0.15


def count_calls(graph: Graph, phase: Phase) -> list[float]:
    """Calls of each class in a phase, and the views between them."""
    counts = dict.fromkeys(CLASSES, 0.0)
    for op in np.flatnonzero(graph.phase == phase).tolist():
        counts[call_class(graph.kind[op])] += 1
        counts["view"] += graph.calls[op] - 1
    return list(counts.values())


def waits(row: str) -> bool:
    """Whether the host of a row waits for the device in the middle of a step."""
    return row.startswith("mixtral") and not row.endswith("/bf16")


def main() -> None:
    """Fit by least squares of relative errors, none negative, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="one a host")
    read = [read_rows(path) for path in parser.parse_args().files]
    rows = [row for _, found in read for row in found if not waits(row["row"])]
    captured: dict[str, Graph] = {}
    for header, found in read:
        for row in found:
            if row["row"] not in captured and not waits(row["row"]):
                captured[row["row"]] = capture_row(row["row"], row, header)
    graphs = [captured[row["row"]] for row in rows]
    for phase, usual in USUAL_SECONDS.items():
        seconds = np.array([row["phases"][phase.name.lower()]["host"] for row in rows])
        counts = np.array([count_calls(graph, phase) for graph in graphs])
        matrix = np.vstack((counts / seconds[:, None], PULL * np.diag(1 / usual)))
        wanted = np.concatenate((np.ones(len(rows)), np.full(len(usual), PULL)))
        fitted, _ = nnls(matrix, wanted)
        error = np.abs(counts @ fitted / seconds - 1)
        texts = [f"{name} {each * 1e6:.1f} us" for name, each in zip(CLASSES, fitted, strict=True)]
        print(f"{phase.name.lower()}: {', '.join(texts)}; mean error {error.mean():.1%}")
    seconds = np.array([row["phases"]["update"]["host"] for row in rows])
    numbers = np.array([row["num_parameters"] for row in rows])
    print(f"update: {np.median(seconds / numbers) * 1e6:.1f} us a parameter")


if __name__ == "__main__":
    main()
