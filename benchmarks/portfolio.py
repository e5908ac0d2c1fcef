"""`auto` against every single method that has its whole time, on pairs of all kinds.

    python benchmarks/portfolio.py [--budget S] [--pair MODEL CLUSTER] [--workers N] [--json]

One JSON object a pair: the step of `auto` and of each method that searches for as long as it is
given time, each with the whole budget; `slower_than` names the methods that found a faster plan
than `auto`, with the ratio; what `auto` proves, how long it took and how long its first plan took.
The last object is a summary. Workers are processes with cores of their own, so that pairs do not
take each other's time.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.stack.find import has_layers
from meshwright.plan.answer import Answer
from meshwright.search.portfolio import find_plan
from meshwright.source import load_graph

SMALL_GPT = "gpt:hidden=256,heads=4,layers=12,sequence=256,batch=32"
SMALL_MIXTRAL = "mixtral:hidden=256,heads=4,layers=4,sequence=256,intermediate=512,batch=32"
MODELS = (
    "mlp", "alexnet-32", "vgg16-32", "vgg16", "resnet50", "inception-v3", "unet", "transformer",
    "bert-small", "bert-base", "bert-large", "vit-l", "gpt2", "gpt2-medium", SMALL_GPT,
    SMALL_MIXTRAL,
)  # fmt: skip
CLUSTERS = (
    "tag-testbed", "v100-32-x4", "mixed-s0", "dgx1-x2", "mixed-s1", "titan-v-2x4", "tag-cloud",
    "rail10-4x2", "mixed-s2", "nvlink50-eth20-x4", "uniform-8", "mixed-s3", "h100-x8",
    "random-blk1-16", "mixed-s4", "hierarchical-2x2x2-o2", "mixed-s6",
)  # fmt: skip
"""Seventeen, so that every model meets others: each takes the next four."""
EACH = 4
METHODS = ("hybrid", "pipeline", "deploy", "placement", "mcmc")
"""Those that go on while they have time; `auto` runs the others whole."""
TOLERANCE = 1e-9
"""Relative: steps this near are the same plan's, added up in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A model, a cluster and the time that each search gets."""

    model: str
    cluster: str
    budget_seconds: float
    seed: int


def list_pairs(budget_seconds: float, seed: int) -> Iterator[Pair]:
    """All pairs."""
    for number in range(EACH * len(MODELS)):
        yield Pair(
            model=MODELS[number // EACH], cluster=CLUSTERS[number % len(CLUSTERS)],
            budget_seconds=budget_seconds, seed=seed,
        )  # fmt: skip


def compare(pair: Pair) -> dict[str, Any]:
    """The row of a pair."""
    graph, cluster = load_graph(pair.model), find_cluster(pair.cluster)

    def search(method: str) -> tuple[Answer, float]:
        find_plan(graph, cluster, method, budget_seconds=0.01)  # compiles what it needs
        began = perf_counter()
        found = find_plan(
            graph, cluster, method, seed=pair.seed, budget_seconds=pair.budget_seconds
        )
        return found, perf_counter() - began

    methods = [each for each in METHODS if each != "hybrid" or has_layers(graph)]
    answer, wall_seconds = search("auto")
    single = {each: search(each)[0] for each in methods}
    steps = {name: each.step_seconds for name, each in single.items() if each.plan is not None}
    own = answer.step_seconds if answer.plan is not None else None
    slower = {
        name: own / step if own is not None else None
        for name, step in steps.items()
        if own is None or own > step * (1 + TOLERANCE)
    }
    first = next((each.seconds for each in answer.history if each.step_seconds < 1e300), None)
    return {
        "model": pair.model,
        "cluster": pair.cluster,
        "budget_s": pair.budget_seconds,
        "auto_step_s": own,
        "auto_by": answer.method,
        "auto_gap": own / answer.bound_seconds - 1 if own is not None else None,
        "auto_wall_s": wall_seconds,
        "auto_first_s": first,
        "auto_steps": {
            name.removesuffix("_seconds"): value for name, value in answer.statistics.items()
        },
        "step_s": steps,
        "slower_than": slower,
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rows say together."""
    slower = [each for each in rows if each["slower_than"]]
    worst = [ratio for each in slower for ratio in each["slower_than"].values() if ratio]
    return {
        "pairs": len(rows),
        "slower_pairs": len(slower),
        "worst_ratio": max(worst, default=1.0),
        "median_gap": median(each["auto_gap"] for each in rows if each["auto_gap"] is not None),
        "largest_overrun": max(each["auto_wall_s"] / each["budget_s"] - 1 for each in rows),
    }


def _take_cores(cores: "multiprocessing.Queue[set[int]]") -> None:
    os.sched_setaffinity(0, cores.get())


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all pairs, or those asked for; 1 where `auto` is slower than a method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=15.0, metavar="S", help="of each search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pair", nargs=2, action="append", metavar=("MODEL", "CLUSTER"), help="only these"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="pairs at a time")
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="of each worker")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    pairs = list(list_pairs(options.budget, options.seed))
    if options.pair:
        pairs = [
            Pair(model=model, cluster=cluster, budget_seconds=options.budget, seed=options.seed)
            for model, cluster in options.pair
        ]
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    mine = sorted(os.sched_getaffinity(0))
    for worker in range(options.workers):
        cores.put({mine[(worker * options.cores + k) % len(mine)] for k in range(options.cores)})
    rows = []
    with ProcessPoolExecutor(
        options.workers, mp_context=context, initializer=_take_cores, initargs=(cores,)
    ) as pool:
        for row in pool.map(compare, pairs):
            rows.append(row)
            print(json.dumps(row) if options.json else _in_words(row), flush=True)
    summary = summarise(rows)
    print(json.dumps({"summary": summary}) if options.json else summary)
    return int(summary["slower_pairs"] > 0)


def _in_words(row: dict[str, Any]) -> str:
    own = row["auto_step_s"]
    step = "no plan" if own is None else f"{1e3 * own:.3f} ms by {row['auto_by']}"
    slower = ", ".join(f"{name} {ratio or 0:.3f}" for name, ratio in row["slower_than"].items())
    return (
        f"{row['model']} on {row['cluster']}: {step}, gap {100 * (row['auto_gap'] or 0):.0f} %, "
        f"{row['auto_wall_s']:.1f} s{f'; slower than {slower}' if slower else ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
