"""Predicted against published steps of large models on several hosts, by degrees.

    python benchmarks/published.py [FILE] [--source TEXT] [--every N] [--json]

FILE (benchmarks/data/published_steps.csv) has a row a step: who published it, the runtime that it
ran under, the model as a shape, the cluster, the batch, the degrees and the seconds. `fused` is 1
where the authors' kernels merge element-wise ops, as compilers do. No constant is fitted to these
rows, but they were looked at: that an A100's sustained clock counts was found when all four sources
on A100s were predicted too fast by products at the full one.

Runtimes and shapes are as the authors' software has them. Hagemann et al. ran a framework of their
own (Aleph Alpha's) with ZeRO 1 and gradients in 16 bits: "deepspeed" stands for it, since with
Megatron-LM's fp32 gradients their largest steps would not fit into 80 GB. MosaicML's MPT has
neither dropout nor an activation of several ops, and its FSDP (`mixed_precision: DEFAULT`) reduces
in fp32 as torchtitan's does. Korthikanti et al. measured Megatron-LM before it had fused attention.
NVIDIA's recipes run NeMo, whose Transformer Engine merges norms, activations, rotations and losses.

Prints a line a row (`--json`: an object), then by source the mean of |predicted / published -
1|, the mean of the signed error and Spearman's rank correlation.
"""

import argparse
import csv
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import meshwright as mw
from meshwright.cluster.catalogue import find_cluster

ROOT = Path(__file__).resolve().parent
DATA = ROOT / "data" / "published_steps.csv"
PRECISION = "mixed"
Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of a file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def load_step(model: str, batch: int, is_fused: bool) -> Any:
    """A model's step; kept, since many rows have the same."""
    return mw.load_graph(f"{model},precision={PRECISION}", batch=batch, compile=is_fused)


def predict(row: Row) -> dict[str, Any]:
    """A row's step as predicted beside the published one."""
    graph = load_step(row["model"], int(row["batch"]), row["fused"] == "1")
    cluster = find_cluster(row["cluster"])
    degrees = {name: int(row[name]) for name in ("tensor", "context", "pipeline", "chunks", "zero")}
    plan = mw.Plan.from_degrees(
        graph,
        cluster,
        **degrees,
        microbatches=int(row["microbatches"]),
        recompute=row["recompute"],
        sequence_parallel=row["sequence_parallel"] == "1",
    )
    timeline = mw.simulate(graph, cluster, plan, runtime=row["runtime"])
    published = float(row["seconds"])
    return {
        **row,
        "seconds": published,
        "predicted_seconds": timeline.step_seconds,
        "error": timeline.step_seconds / published - 1,
        "peak_bytes": float(max(timeline.peak_bytes)),
    }


def predict_rows(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Every row that can be simulated; what cannot is said."""
    for row in rows:
        try:
            yield predict(row)
        except mw.InputError as error:
            yield {**row, "refused": str(error)}


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far predictions are off."""
    errors = np.array([each["error"] for each in found])
    pairs = [(each["predicted_seconds"], each["seconds"]) for each in found]
    rank = spearmanr(*zip(*pairs, strict=True)).statistic if len(pairs) > 2 else float("nan")
    return {
        "rows": len(found),
        "mean_error": float(np.abs(errors).mean()),
        "signed_error": float(errors.mean()),
        "worst_error": float(np.abs(errors).max()),
        "spearman": float(rank),
    }


def main() -> None:
    """Predict the rows and sum up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=DATA)
    parser.add_argument("--source", default="", help="only of sources with this text in the name")
    parser.add_argument("--every", type=int, default=1, help="only every N-th row")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [row for row in read_rows(arguments.file) if arguments.source in row["source"]]
    found: dict[str, list[dict[str, Any]]] = {}
    for each in predict_rows(rows[:: arguments.every]):
        if "refused" not in each:
            found.setdefault(each["source"], []).append(each)
        print(json.dumps(each) if arguments.json else describe(each), flush=True)
    for source, entries in found.items():
        print(json.dumps({"source": source, **summary(entries)}), flush=True)


def describe(each: dict[str, Any]) -> str:
    """A row in a line."""
    names = ("tensor", "context", "pipeline", "chunks", "microbatches", "zero", "recompute")
    degrees = " ".join(f"{name[:2]}{each[name]}" for name in names)
    model = each["model"].partition(",")[0] + " s" + each["model"].rpartition("=")[2]
    head = f"{model:32} {each['cluster']:14} {degrees:35} fused {each['fused']}"
    if "refused" in each:
        return f"{head} refused: {each['refused']}"
    peak = each["peak_bytes"] / 1e9
    return f"{head} {each['seconds']:9.3f} {each['error']:+7.1%} {peak:6.1f} GB"


if __name__ == "__main__":
    main()
