"""PipeDream's profiles (Narayanan et al., SOSP 2019) under the authors' own objective.

For every graph.txt the slowest stage's seconds a minibatch, two ways: `chain`, the authors' dynamic
programme over one order of the layers; `ours`, the exact split over all downsets with replicas as
ways to use devices, with a proven bound. Both count as the authors' program does: a stage of m
replicas takes (compute + 4 (m - 1) w / (B m)) / m, activations cost nothing. One line a file.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from meshwright.cluster.build import fully_connected
from meshwright.compiled import announced_compilation
from meshwright.errors import InputError
from meshwright.graph.graph import Graph, read_graph
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.block import Blocks, find_blocks
from meshwright.search.method.pipeline.chain import make_chain
from meshwright.search.method.pipeline.pipedream import Tier, partition_chain
from meshwright.search.method.pipeline.stage.problem import DeviceKind, SplitProblem, make_problem
from meshwright.search.method.pipeline.stage.split import solve_split


def make_published(
    graph: Graph, blocks: Blocks, devices: int, bytes_per_second: float
) -> SplitProblem:
    """The authors' objective: one pool of devices, of which a stage takes any number."""
    cluster = fully_connected(num_devices=1, device_type="cpu", bytes_per_second=1.0)
    compute = blocks.add_up(make_instance(graph, cluster).seconds[:, 0])
    weights = blocks.add_up(graph.parameter_bytes)
    kinds = [
        DeviceKind(
            name=f"{width} replicas",
            count=devices,
            width=width,
            pool="devices",
            seconds=(compute + 4 * (width - 1) * weights / (bytes_per_second * width)) / width,
            wire_share=0.0,
        )
        for width in range(1, devices + 1)
    ]
    return make_problem(
        kinds=kinds, num_bytes=np.zeros(blocks.num_blocks), edges=blocks.edges, wires=()
    )


def measure(
    path: str, devices: int, bytes_per_second: float, budget_seconds: float
) -> dict[str, Any]:
    """One file's record."""
    graph = read_graph(path)
    cluster = fully_connected(num_devices=1, device_type="cpu", bytes_per_second=1.0)
    instance = make_instance(graph, cluster)
    chain = make_chain(instance, [0])
    began = perf_counter()
    with announced_compilation():
        published = partition_chain(
            chain, (Tier(width=devices, bytes_per_second=bytes_per_second),), as_published=True
        )
    chain_seconds = perf_counter() - began
    blocks = find_blocks(graph, ties_loose=False)
    problem = make_published(graph, blocks, devices, bytes_per_second)
    began = perf_counter()
    with announced_compilation():
        found = solve_split(problem, budget_seconds=budget_seconds)
    return {
        "file": path,
        "devices": devices,
        "gigabytes_per_second": bytes_per_second / 1e9,
        "one_device": float(instance.seconds[:, 0].sum()),
        "chain": published.seconds,
        "chain_search_s": round(chain_seconds, 4),
        "ours": found.seconds,
        "bound": found.bound_seconds,
        "stop": found.stop.value,
        "replicas": [problem.kinds[kind].width for kind in found.kind_of_stage],
        "downsets": found.statistics.get("downsets"),
        "search_s": round(perf_counter() - began, 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="the authors' graph.txt")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--gigabytes-per-second", type=float, default=10.0)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds a file, at most")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        if options.devices < 1:
            raise InputError(f"--devices must be positive, got {options.devices}")
        for name in ("gigabytes_per_second", "budget"):
            value = getattr(options, name)
            if not 0 < value < float("inf"):
                option = name.replace("_", "-")
                raise InputError(f"--{option} must be positive and finite, got {value}")
        rate = options.gigabytes_per_second * 1e9
        for path in options.files:
            record = measure(path, options.devices, rate, options.budget)
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    return (
        f"{record['file']}: {record['ours']:.6f} s a minibatch, at least {record['bound']:.6f} "
        f"({record['stop']}), authors' chain {record['chain']:.6f}, one device "
        f"{record['one_device']:.6f}, {record['search_s']:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
