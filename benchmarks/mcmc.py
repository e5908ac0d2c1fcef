"""Evaluations a second of the MCMC placement search on a GPT step of 12,000 ops.

Two starts: everything on the best device, as the search starts, and a random placement, whose
schedules are long and rarely given up early. An evaluation is one proposed move and its decision.
Results until 2026-11-15 are of another graph: a transformer with attention in separate ops, of as
many ops in a sixth fewer units.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError
from meshwright.search.clock import Clock
from meshwright.search.instance import make_instance
from meshwright.search.method.mcmc import DEFAULT_BETA, MetropolisWalk, first_placement
from meshwright.search.order.list_schedule import ListSchedule
from synthetic import synthetic_gpt


def measure(num_ops: int, cluster_name: str, steps: int, seed: int) -> Iterator[dict[str, Any]]:
    """One record a start."""
    instance = make_instance(synthetic_gpt(num_ops), find_cluster(cluster_name))
    together = first_placement(instance)
    assert together is not None, "every device can run every op of the step"
    generator = np.random.default_rng(seed)
    spread = generator.integers(0, instance.num_devices, instance.num_units).astype(np.int32)
    for name, start in (("one device", together), ("random", spread)):
        walk = MetropolisWalk(instance, start, seed, DEFAULT_BETA)
        walk.run(min(100, steps), Clock())  # compiled, and the caches warm
        before = walk.statistics["evaluations"]
        began = time.perf_counter()
        walk.run(steps, Clock())
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        ListSchedule(instance, walk.best_device_of_op)
        yield {
            "start": name,
            "cluster": cluster_name,
            "num_ops": instance.num_ops,
            "num_units": instance.num_units,
            "evaluations": walk.statistics["evaluations"] - before,
            "evaluations_per_second": (walk.statistics["evaluations"] - before) / seconds,
            "accepted": walk.statistics["accepted"],
            "first_seconds": walk.first_seconds,
            "best_seconds": walk.best_seconds,
            "full_evaluation_seconds": time.perf_counter() - began,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=12_000, help="about so many ops")
    parser.add_argument("--cluster", default="h100-x4", help="a catalogue name")
    parser.add_argument("--steps", type=int, default=25_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        for record in measure(options.ops, options.cluster, options.steps, options.seed):
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    return (
        f"{record['num_ops']} ops on {record['cluster']} from {record['start']}: "
        f"{record['evaluations_per_second']:.0f} evaluations a second, "
        f"{record['first_seconds'] * 1e3:.1f} -> {record['best_seconds'] * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
