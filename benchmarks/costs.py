"""How fast the cost models are, on one core, after compilation.

    python benchmarks/costs.py [--json] [--repeats N]

`op_seconds` of a GPT step of 26,000 ops on an H100, at a batch that changes its products' sizes,
and of as many ops of which only flops and bytes are known;
`collective_model` of every collective on 1024 devices; and `import meshwright` in a new process.
Times are the best of N, in milliseconds, beside what was promised of each.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from meshwright.cluster.catalogue import find_cluster
from meshwright.cost.collective import Collective, collective_model
from meshwright.cost.compute import op_seconds
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from simulator import best_milliseconds
from synthetic import synthetic_gpt

NUM_OPS = 26_000
CLUSTER = "h100-spineleaf-1024"

Row = tuple[str, float, Callable[[], object]]
"""What is timed, the milliseconds that were promised, and what does it."""


def rows() -> Iterator[Row]:
    """All that is timed."""
    graph, cluster = synthetic_gpt(NUM_OPS), find_cluster(CLUSTER)
    device_type = next(iter(cluster.types.values()))
    batches = count(1)  # what is asked again is remembered
    yield (
        f"op_seconds, {graph.num_ops} ops",
        200.0,
        lambda: op_seconds(graph, device_type, next(batches)),
    )
    roofline = _plain_graph()
    op_seconds(roofline, device_type, 1)  # codes of precisions, once
    yield (
        f"op_seconds, {roofline.num_ops} ops by the roofline",
        1.0,
        lambda: op_seconds(roofline, device_type, next(batches)),
    )
    for each in Collective:
        devices = range(cluster.num_devices)
        compute = partial(collective_model, cluster, each, devices)
        yield f"{each.value}, {cluster.num_devices} devices", 50.0, compute


def _plain_graph() -> Graph:
    """Ops that follow each other, of which nothing is known but flops and bytes."""
    builder = GraphBuilder("plain", batch=8)
    for number in range(NUM_OPS):
        builder.add_op(f"op{number}", kind="relu", flops=1e6, bytes_read=1e6, bytes_written=1e6)
    return builder.finish()


def import_milliseconds(repeats: int) -> float:
    """What `import meshwright` takes where nothing else is imported."""
    code = (
        "import time; start = time.perf_counter(); import meshwright; "
        "print((time.perf_counter() - start) * 1e3)"
    )
    command = [sys.executable, "-c", code]
    return min(float(subprocess.check_output(command)) for _ in range(repeats))


def main() -> None:
    """Print a line for everything timed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="a line of JSON each")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    measured = [(name, most, best_milliseconds(run, asked.repeats)) for name, most, run in rows()]
    measured.append(("import meshwright", 500.0, import_milliseconds(asked.repeats)))
    for name, most, found in measured:
        if asked.json:
            print(json.dumps({"what": name, "ms": round(found, 3), "promised_ms": most}))
        else:
            print(f"{name:35}{found:10.2f} ms, promised {most:g}")


if __name__ == "__main__":
    main()
