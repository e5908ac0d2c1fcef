"""Plans that fit only because parts divide state or compute activations again, found and run.

    python benchmarks/relief.py [--budget S] [--only MODEL,..] [--json]

For each model of `auto_models` and both `pipeline` and `deploy`: the largest memory of two or four
equal devices, of a falling row, for which the method finds a plan, but none without relief
(`search/relief.py`). It is then planned by `meshwright plan` and run by `meshwright run --check`,
beside one process.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from auto_runs import TRAINED, Pair, Record, capture_step, make_cluster, one_host, run_pair, show
from meshwright.graph.graph import Graph
from meshwright.search.portfolio import find_plan
from meshwright.search.relief import Reliever
from meshwright.source import load_graph

METHODS = ("pipeline", "deploy")
MEMORIES = tuple(round(0.8 * 0.9**k, 4) for k in range(18))
"""Of what the whole step needs on one device."""
DEVICES = (2, 4)


def find_memory(
    graph: Graph, method: str, devices: int, budget: float
) -> tuple[float, float] | None:
    """The largest memory for which relief is needed and enough, and the step; None: there is
    none."""
    for memory in MEMORIES:
        cluster = make_cluster(one_host(devices, 1000, memory=memory), graph)
        with mock.patch.object(Reliever, "offer"):
            without = find_plan(graph, cluster, method, budget_seconds=budget)
        if without.plan is not None:
            continue
        found = find_plan(graph, cluster, method, budget_seconds=budget)
        if found.plan is not None:
            return memory, found.step_seconds
    return None


def run_case(model: str, method: str, devices: int, folder: Path, budget: float) -> Record:
    """What came of a model and a method."""
    graph = load_graph(capture_step(model, folder))
    record: Record = {"model": model, "method": method, "devices": devices}
    found = find_memory(graph, method, devices, budget)
    if found is None:
        return {**record, "memory": None}
    hosts = one_host(devices, 1000, memory=found[0])
    pair = Pair(model=model, cluster=hosts, is_trained=True)
    step = {"memory": found[0], "step_seconds": found[1]}
    return {**record, **step, **run_pair(pair, folder, budget, method)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a record a case, then how many were found and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of a search")
    parser.add_argument("--only", default=",".join(TRAINED), help="models, with commas")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    records = []
    for number, model in enumerate(options.only.split(",")):
        for method in METHODS:
            with tempfile.TemporaryDirectory(prefix="meshwright-relief-") as name:
                devices = DEVICES[number % len(DEVICES)]
                record = run_case(model, method, devices, Path(name), options.budget)
            records.append(record)
            show(record, options.json)
    found = [each for each in records if each["memory"] is not None]
    ran = [each for each in found if each.get("run_codes") == [0]]
    deviations = [each["loss_deviation"] for each in ran if "loss_deviation" in each]
    summary = {
        "cases": len(records), "found": len(found), "run": len(ran),
        "checked": len(deviations), "worst_loss_deviation": max(deviations, default=None),
        "by_method": {
            each: sum(row["method"] == each for row in found) for each in METHODS
        },
    }  # fmt: skip
    show(summary, options.json)
    return int(len(ran) < len(found))


if __name__ == "__main__":
    sys.exit(main())
