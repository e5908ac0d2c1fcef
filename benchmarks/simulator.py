"""How fast lowering and simulation are, on one core, after compilation.

    python benchmarks/simulator.py [--json] [--repeats N]

GPT steps of 2,600 to 260,000 ops on 16 devices, placed in consecutive blocks and at random (the
hardest case: nearly every tensor crosses). Times are the best of N, in milliseconds: `lower` from a
plan to a program, `run` from a program to the step time, `simulate` both. Rates count instructions
over `run`. Results until 2026-11-15 are of other graphs: a transformer with attention in separate
ops, of as many ops with 18% fewer tensors.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from meshwright.cluster.build import fully_connected
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, place_ops
from meshwright.program.lower import lower
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain
from meshwright.search.method.pipeline.consecutive import equal_stages
from meshwright.simulate.simulate import run_program, simulate
from synthetic import synthetic_gpt

NUM_DEVICES = 16
SIZES = (2_600, 26_000, 260_000)


def best_milliseconds(function: Callable[[], object], repeats: int) -> float:
    """The fastest of several runs: the machine's noise only ever adds."""
    best = float("inf")
    function()
    gc.disable()
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - begin)
    gc.enable()
    return best * 1e3


def place(graph: Graph, cluster: Cluster, layout: str) -> Plan:
    """Ops in consecutive blocks or at random; co-located groups follow their first op."""
    if layout == "blocks":
        device = np.arange(graph.num_ops) * NUM_DEVICES // graph.num_ops
    else:
        device = np.random.default_rng(0).integers(0, NUM_DEVICES, graph.num_ops)
    first: dict[int, int] = {}
    for op in np.flatnonzero(graph.group >= 0).tolist():
        device[op] = first.setdefault(int(graph.group[op]), int(device[op]))
    return place_ops(graph.op_names, device.tolist(), [each.name for each in cluster.devices])


def measure_placements(repeats: int) -> Iterator[dict[str, object]]:
    """One row for each size, layout and way of sharing."""
    cluster = fully_connected(num_devices=NUM_DEVICES, device_type="v100-32", bytes_per_second=50e9)
    for size in SIZES:
        graph = synthetic_gpt(size)
        for layout in ("blocks", "random"):
            plan = place(graph, cluster, layout)
            program = lower(graph, cluster, plan)
            for sharing in ("none", "fair"):
                run = partial(run_program, program, cluster, sharing=sharing)
                both = partial(simulate, graph, cluster, plan, sharing=sharing)
                run_ms = best_milliseconds(run, repeats)
                yield {
                    "case": f"placement {layout}",
                    "sharing": sharing,
                    "ops": graph.num_ops,
                    "instructions": program.num_instructions,
                    "run_ms": run_ms,
                    "simulate_ms": best_milliseconds(both, repeats),
                    "instructions_per_second": program.num_instructions / run_ms * 1e3,
                }


def measure_pipeline(repeats: int) -> Iterator[dict[str, object]]:
    """A pipeline of 16 stages and 8 microbatches, by op and by part."""
    cluster = fully_connected(num_devices=NUM_DEVICES, device_type="v100-32", bytes_per_second=50e9)
    graph = synthetic_gpt(2_600)
    plan = cut_stages(graph, cluster)
    for granularity in ("op", "part"):
        program = lower(graph, cluster, plan, granularity)
        timeline = run_program(program, cluster, sharing="none")
        run_ms = best_milliseconds(partial(run_program, program, cluster, sharing="none"), repeats)
        yield {
            "case": f"pipeline by {granularity}",
            "sharing": "none",
            "ops": graph.num_ops,
            "instructions": program.num_instructions,
            "run_ms": run_ms,
            "instructions_per_second": program.num_instructions / run_ms * 1e3,
            "step_seconds": timeline.step_seconds,
        }


def cut_stages(graph: Graph, cluster: Cluster) -> Plan:
    """Stages of equal compute along the graph's chain; what wraps is in the first."""
    instance = make_instance(graph, cluster)
    chain = make_chain(instance, np.unique(instance.type_of).tolist())
    ends = np.asarray(equal_stages(chain.seconds, NUM_DEVICES))
    stage = np.searchsorted(ends, chain.block_of_op, side="right")
    stage = np.where(chain.block_of_op < 0, 0, stage)
    parts = tuple(
        Part(
            ops=tuple(graph.op_names[op] for op in np.flatnonzero(stage == number)),
            devices=(cluster.devices[number].name,),
        )
        for number in range(NUM_DEVICES)
    )
    return Plan(parts=parts, schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=8))


def main() -> None:
    """Print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--repeats", type=int, default=20, help="runs of which the best counts")
    arguments = parser.parse_args()
    for row in [*measure_placements(arguments.repeats), *measure_pipeline(arguments.repeats)]:
        if arguments.json:
            print(json.dumps(row))
        else:
            print("  ".join(f"{key} {_short(value)}" for key, value in row.items()))


def _short(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value}"


if __name__ == "__main__":
    main()
