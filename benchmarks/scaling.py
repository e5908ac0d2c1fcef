"""Whether a graph scaled to another batch is the graph captured at that batch, model by model.

Each model of the PyTorch zoo is captured at a batch B, at B/4 and at 2B, in a process of its own.
The graph of B scaled to the other two must have the same ops and tensors, and every size of each
must be equal to the last bit; where not, the largest relative difference and its op are named.
Needs the extras torch and zoo.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from apart import run_models
from meshwright.graph.graph import OP_LINES, Graph
from meshwright.zoo.table import find_model

LIMIT_SECONDS = 900.0
LARGEST_BATCH = 64
"""Above it the FLOPs of some ops of the largest models are no whole numbers in a float: 2^53."""
EXTRA_SIZES = ("saved_bytes", "parameter_bytes", "state_bytes", "calls")
"""Workspace is scaled in proportion, which is near, not exact: weights are in it, too."""
STRUCTURE = ("op_names", "kind", "precision", "phase", "split", "group", "partner")
TENSOR_STRUCTURE = ("tensor_source", "tensor_partial", "use_tensor", "use_op")


def check_model(name: str) -> dict[str, Any]:
    """Capture one model three times in this process, and compare."""
    start = time.perf_counter()
    usual = min(find_model(name).batch, LARGEST_BATCH)
    whole = capture_at(name, usual)
    record: dict[str, Any] = {"model": name, "batch": usual, "ops": whole.num_ops}
    differences = []
    for samples in (usual // 4, 2 * usual):
        differences += compare(whole.at_batch(samples), capture_at(name, samples), samples)
    record["is_exact"] = not differences
    record["differences"] = differences
    record["seconds"] = round(time.perf_counter() - start, 3)
    return record


def capture_at(name: str, batch: int) -> Graph:
    """One step, with AdamW."""
    from meshwright.source import capture_model

    return capture_model(name, batch=batch, use_cache=False)


def compare(scaled: Graph, captured: Graph, samples: int) -> list[dict[str, Any]]:
    """What differs between two graphs that should be one."""
    for column in (*STRUCTURE, *TENSOR_STRUCTURE):
        first, second = getattr(scaled, column), getattr(captured, column)
        if len(first) != len(second) or np.any(np.asarray(first) != np.asarray(second)):
            found = _first_difference(scaled, first, second)
            return [{"samples": samples, "quantity": column, **found}]
    differences = []
    for quantity in (*OP_LINES, *EXTRA_SIZES, "tensor_bytes"):
        owner = scaled.tensor_source if quantity == "tensor_bytes" else np.arange(scaled.num_ops)
        first, second = getattr(scaled, quantity), getattr(captured, quantity)
        distance = np.abs(first - second) / np.maximum(np.maximum(first, second), 1e-300)
        if np.any(distance > 0):
            worst = int(np.argmax(distance))
            op = int(owner[worst])
            differences.append(
                {
                    "samples": samples,
                    "quantity": quantity,
                    "relative": float(distance[worst]),
                    "count": int(np.count_nonzero(distance)),
                    "op": scaled.op_names[op],
                    "kind": scaled.kind[op],
                    "scaled": float(first[worst]),
                    "captured": float(second[worst]),
                }
            )
    return differences


def _first_difference(graph: Graph, scaled: Any, captured: Any) -> dict[str, Any]:
    """Where two columns part, which may be of unequal length."""
    pairs = zip(scaled, captured, strict=False)
    place = next(
        (number for number, (one, other) in enumerate(pairs) if one != other),
        min(len(scaled), len(captured)),
    )
    return {
        "entries": [len(scaled), len(captured)],
        "place": place,
        "op": graph.op_names[place] if len(scaled) == graph.num_ops > place else None,
        "scaled": str(scaled[place]) if place < len(scaled) else None,
        "captured": str(captured[place]) if place < len(captured) else None,
    }


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if "error" in record:
        return f"{record['model']:>13}: {record['error']}"
    head = f"{record['model']:>13}: {record['ops']:6} ops at {record['batch']:3}: "
    if record["is_exact"]:
        return f"{head}exact"
    texts = [
        f"{each['quantity']} at {each['samples']} of {each['op']}: "
        f"{each['scaled']} scaled, {each['captured']} captured"
        for each in record["differences"]
    ]
    return head + "; ".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line a model; exit code 1 where one is not exact."""
    records = run_models(__file__, __doc__, check_model, as_text, LIMIT_SECONDS, arguments)
    exact = [record.get("is_exact", False) for record in records]  # of all, not up to the first
    return 0 if all(exact) else 1


if __name__ == "__main__":
    sys.exit(main())
