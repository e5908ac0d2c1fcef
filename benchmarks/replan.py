"""Planning anew from the plan that was there, beside planning afresh, after a host was lost.

    python benchmarks/replan.py [--json] [--budget S] [--processor] [CASE ...]

Each case is a model, a cluster and a method. A plan is searched for on the whole cluster; then its
second host is gone, and both searches are run one after the other in one process: afresh with the
request's whole budget, and near the old plan with what `meshwright replan` takes. The time of
afresh is told twice: its whole time, and the time until it first had a plan within 3 % of its own
best. Methods offer what they find when they end, so that the latter is an upper estimate. With
`--processor` the searches' own clock counts processor seconds, on one core, so that they do as much
on a busy machine as on a quiet one, and speeds are ratios of processor seconds.
"""

import argparse
import json
import math
import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

from meshwright.change.host import drop_hosts
from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.answer import Answer
from meshwright.plan.moment import Moment
from meshwright.planned import Planned
from meshwright.replan.move import find_moves
from meshwright.replan.replan import BUDGET_PART, search_near
from meshwright.search import clock
from meshwright.search.portfolio import find_plan
from meshwright.source import load_graph
from meshwright.units import format_bytes, format_seconds

CASES = (
    ("resnet50", "dgx1-x4", "auto"),
    ("gpt2", "titan-v-4x2", "auto"),
    ("bert-base", "h100-x8x4", "auto"),
    ("vgg16", "tag-testbed", "auto"),
    ("inception-v3", "titan-v-4x4", "auto"),
    ("mlp", "mixed-s3", "auto"),
    ("transformer", "nvlink50-eth20-x4", "auto"),
    ("llama-2-7b", "h100-x8x4", "hybrid"),
    ("llama-3-70b", "h100-x8x16", "hybrid"),
    ("mixtral-8x7b", "h200-x8x5", "hybrid"),
    ("gpt2-xl", "h100-spineleaf-64", "hybrid"),
    ("gpt3-175b", "h100-x8x32", "hybrid"),
    ("gpt2", "nvlink50-eth20-x4", "pipeline"),
    ("resnet50", "mixed-s3", "pipeline"),
    ("vgg16", "spine-leaf-2x2x2x4", "pipeline"),
    ("unet", "titan-v-4x2", "placement"),
    ("resnet50", "nvlink50-eth20-x4", "placement"),
    ("inception-v3", "titan-v-4x2", "placement"),
    ("transformer", "rail10-4x2", "allocate"),
    ("bert-small", "tag-testbed", "deploy"),
    ("inception-v3", "tag-cloud", "deploy"),
    ("vgg16", "titan-v-4x4", "deploy"),
)
"""`allocate` is the method `placement` that shares out the network, too."""
NEAR = 0.03


def processor_seconds() -> float:
    """What this process and those that it has waited for have used."""
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What some work gives, its seconds by the clock and by the processor."""
    began, used = perf_counter(), processor_seconds()
    found = work()
    return found, perf_counter() - began, processor_seconds() - used


def count_processor() -> None:
    """Let the searches' clock count what the processor has done for them, on one core."""
    clock.perf_counter = process_time  # type: ignore[attr-defined]
    os.sched_getaffinity = lambda _: {0}


def run_case(
    model: str, name: str, method: str, budget: float, old_budget: float
) -> dict[str, Any]:
    """One case, as a line of results."""
    graph, cluster = load_graph(model), find_cluster(name)
    # One for each search: what is computed of a cluster stays with it.
    left, same = (drop_hosts(cluster, [cluster.hosts[1]], "without") for _ in range(2))
    allocate = method == "allocate"
    asked: dict[str, Any] = {
        "method": "placement" if allocate else method,
        "allocate": allocate,
    }
    counts = clock.perf_counter is process_time  # type: ignore[attr-defined]
    old = find_plan(graph, cluster, budget_seconds=old_budget, **asked)
    row: dict[str, Any] = {
        "model": model, "cluster": name, "method": method, "lost": cluster.hosts[1],
        "num_devices": cluster.num_devices, "devices_left": left.num_devices,
        "budget_seconds": budget, "old_budget_seconds": old_budget,
        "clock": "processor" if counts else "wall",
    }  # fmt: skip
    if old.plan is None or old.request is None:
        return row | {"skipped": f"no plan on the whole cluster: {old.binding}"}
    request = replace(old.request, budget_seconds=budget)
    planned = Planned(request=request, plan=old.plan, method=old.method)
    near_budget = budget * BUDGET_PART

    def plan_near() -> Any:
        near = search_near(planned, left, budget_seconds=near_budget)
        return near.answer.binding if near.answer.plan is None else near

    def plan_afresh() -> Answer:
        return find_plan(graph, same, budget_seconds=budget, **asked)

    found, near_seconds, near_processor = timed(plan_near)
    afresh, seconds, processor = timed(plan_afresh)
    row |= {
        "old_plan": old.plan.description,
        "old_seconds": old.step_seconds,
        "afresh_plan": "" if afresh.plan is None else afresh.plan.description,
        "afresh_seconds": finite(afresh.step_seconds),
        "afresh_search_seconds": seconds,
        "afresh_processor_seconds": processor,
        "afresh_near_seconds": first_near(afresh.history, afresh.step_seconds, seconds),
        "replan_search_seconds": near_seconds,
        "replan_processor_seconds": near_processor,
    }
    if isinstance(found, str):
        return row | {"replan_seconds": None, "obstacle": found}
    step = found.answer.step_seconds
    searched = near_processor if counts else near_seconds
    speedup = (processor if counts else seconds) / searched
    before, after = (cluster, old.plan), (left, found.answer.plan)
    moves, move_seconds, _ = timed(lambda: find_moves(graph, before, after))
    return row | {
        "replan_plan": found.answer.plan.description,
        "replan_seconds": step,
        "carried": "" if found.carried.plan is None else found.carried.plan.description,
        "step_ratio": step / afresh.step_seconds,
        "speedup": speedup,
        "speedup_to_near": row["afresh_near_seconds"] / searched,
        "moved_bytes": moves.total_bytes,
        "stored_bytes": moves.stored_bytes,
        "moving_seconds": finite(moves.seconds),
        "find_moves_seconds": move_seconds,
        "holds": step <= (1 + NEAR) * afresh.step_seconds and speedup >= 5,
    }


def first_near(moments: Sequence[Moment], best: float, otherwise: float) -> float:
    """When a search first had a plan within 3 % of its best."""
    near = [each.seconds for each in moments if each.step_seconds <= (1 + NEAR) * best]
    return near[0] if near else otherwise


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def show(row: dict[str, Any]) -> None:
    """A row for people."""
    head = f"{row['model']} on {row['cluster']} by {row['method']}"
    if row.get("replan_seconds") is None:
        print(f"{head}: {row.get('skipped') or row.get('obstacle')}", flush=True)
        return
    print(
        f"{head}: step {format_seconds(row['replan_seconds'])}, {row['step_ratio']:.3f} of afresh; "
        f"{row['speedup']:.1f} x as fast ({row['speedup_to_near']:.1f} x until near); moves "
        f"{format_bytes(row['moved_bytes'])}"
        f"{'' if row['holds'] else '  (resists)'}",
        flush=True,
    )


def main() -> None:
    """Run the cases whose models, clusters or methods are named; without names all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CASE", help="a model, cluster or method")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of a search afresh")
    parser.add_argument("--old-budget", type=float, help="of the plan before (default: the same)")
    parser.add_argument(
        "--processor", action="store_true", help="searches' clock counts processor seconds"
    )
    given = parser.parse_args()
    if given.processor:
        count_processor()
    chosen = [each for each in CASES if not given.names or set(given.names) & set(each)]
    find_plan(load_graph("mlp"), find_cluster("titan-v-2x2"), budget_seconds=2.0)  # loads all
    held = 0
    for case in chosen:
        row = run_case(*case, given.budget, given.old_budget or given.budget)
        held += bool(row.get("holds"))
        if given.json:
            print(json.dumps(row), flush=True)
        else:
            show(row)
    print(f"{held} of {len(chosen)} cases hold", file=sys.stderr)


if __name__ == "__main__":
    main()
