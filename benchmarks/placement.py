"""Placement of ops on devices: our search against the papers' methods, on the papers' models.

Four tables, one JSON object a row. `methods`: step time and search time of every method on
AlexNet, VGG-16, FNet and BERT with 2 to 8 V100 (pairs by NVLink at 50 GB/s, hosts by Ethernet at 20
GB/s), the gap that is proven, and how much shorter our step is than the best of METIS and MCMC.
`schemes`: every coarsening scheme before the same integer programme, on 4 devices. `speed`: the
time to a plan as good as that of MCMC with 25,000 steps on a BERT of 12,000 ops. `scaling`:
GPT steps from 1,000 to 100,000 ops on 8 devices (until 2026-11-15 transformers with attention in
separate ops). Transfers take their time alone, which is the papers' assumption; the `fair_` columns
hold the same plans under shared links, ours searched for that.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.architecture.bert import bert
from meshwright.graph.coarsen.fusion import fuse_ops
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Plan
from meshwright.search.instance import make_instance, mean_device_seconds
from meshwright.search.method.quickp.quickp import find_scheme
from meshwright.search.method.quickp.scope import Coarsener, QuickpScope, ThresholdRule
from meshwright.search.portfolio import search_by
from meshwright.simulate.simulate import simulate
from meshwright.source import load_graph
from synthetic import synthetic_gpt

heft = partial(search_by, "heft")
mcmc = partial(search_by, "mcmc")
metis = partial(search_by, "metis")
placement = partial(search_by, "placement")
quickp = partial(search_by, "quickp")

MODELS = (
    ("alexnet-32", 512), ("vgg16-32", 512), ("fnet-base", 64), ("bert-base", 64), ("bert-base", 16),
)  # fmt: skip
"""Zoo names and samples a step: 32 x 32 pictures, 128 tokens."""
HOSTS = (1, 2, 3, 4)
SIZES = (1_000, 10_000, 100_000)
LARGE_LAYERS = 206
"""Of a BERT of base width that has 12,000 ops; the zoo's largest has 48 layers, 2,847 ops."""
BUDGETS = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
TABLES = ("methods", "schemes", "speed", "scaling")

Method = Callable[..., Answer]


def compare_methods(solver_seconds: float, seed: int) -> Iterator[dict[str, Any]]:
    """One record a model and number of devices."""
    for name, batch in MODELS:
        graph = load_graph(name, batch, precision="fp32")
        for hosts in HOSTS:
            cluster = find_cluster(f"nvlink50-eth20-x{hosts}")
            methods: dict[str, Method] = {
                "metis": metis,
                "heft": heft,
                "mcmc-5k": partial(mcmc, steps=5_000),
                "mcmc-15k": partial(mcmc, steps=15_000),
                "mcmc-25k": partial(mcmc, steps=25_000),
                "quickp": partial(quickp, budget_seconds=solver_seconds),
                "quickp-slopes": partial(
                    quickp,
                    scope=QuickpScope(rule=ThresholdRule.SLOPES),
                    budget_seconds=solver_seconds,
                ),
                "quickp-capped": partial(
                    quickp, scope=_capped(cluster), budget_seconds=solver_seconds
                ),
                "ours": placement,
            }
            yield _compare(name, graph, cluster, methods, seed)


def _capped(cluster: Cluster) -> QuickpScope:
    """QuickP's coarsening with no group above half a device's share: the care ours has."""
    return QuickpScope(max_share=0.5 / cluster.num_devices)


def _compare(
    name: str, graph: Graph, cluster: Cluster, methods: dict[str, Method], seed: int
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "table": "methods",
        "model": name,
        "batch": graph.batch,
        "ops": graph.num_ops,
        "devices": cluster.num_devices,
    }
    for method, search in methods.items():
        answer = search(graph, cluster, seed=seed, sharing="none")
        record[method] = _milliseconds(answer.step_seconds)
        record[f"{method}_search_s"] = round(answer.search_seconds, 4)
        if method != "ours":
            record[f"fair_{method}"] = _fair(graph, cluster, answer.plan)
    shared = placement(graph, cluster, seed=seed, sharing="fair")
    others = ["metis", "heft", "mcmc-25k", "quickp", "quickp-slopes", "quickp-capped"]
    usual = [record[each] for each in ("metis", "mcmc-5k", "mcmc-15k", "mcmc-25k")]
    fair_usual = [record[f"fair_{each}"] for each in ("metis", "mcmc-25k")]
    fair_ours = _milliseconds(shared.step_seconds)
    record |= {
        "one_device": _milliseconds(float(make_instance(graph, cluster).seconds.min(axis=1).sum())),
        "fair_ours": fair_ours,
        "bound": _milliseconds(answer.bound_seconds),
        "gap": round(answer.gap, 5),
        "stop": str(answer.stop),
        "never_slower": all(record["ours"] <= record[each] * (1 + 1e-9) for each in others),
        "fair_never_slower": all(
            fair_ours <= record[f"fair_{each}"] * (1 + 1e-9) for each in others
        ),
        "reduction": round(1 - record["ours"] / min(usual), 5),
        "fair_reduction": round(1 - fair_ours / min(fair_usual), 5),
    }
    return record


def _fair(graph: Graph, cluster: Cluster, plan: Plan | None) -> float:
    return _milliseconds(
        np.inf if plan is None else simulate(graph, cluster, plan, sharing="fair").step_seconds
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def compare_schemes(solver_seconds: float, seed: int) -> Iterator[dict[str, Any]]:
    """One record a model and coarsening scheme, on 4 devices."""
    cluster = find_cluster("nvlink50-eth20-x2")
    scopes = {str(each): QuickpScope(scheme=each) for each in Coarsener} | {
        "quickp-slopes": QuickpScope(rule=ThresholdRule.SLOPES),
        "quickp-capped": _capped(cluster),
    }
    for name, batch in MODELS:
        graph = load_graph(name, batch, precision="fp32")
        instance = make_instance(graph, cluster)
        delays = mean_device_seconds(instance)
        for label, scope in scopes.items():
            scheme = find_scheme(scope, instance, seed)
            scheme(graph, delays)  # compiled, and the caches warm
            began = time.perf_counter()
            coarse = scheme(graph, delays).graph
            coarsen_seconds = time.perf_counter() - began
            answer = quickp(
                graph, cluster, seed=seed, sharing="none", scope=scope,
                budget_seconds=solver_seconds,
            )  # fmt: skip
            yield {
                "table": "schemes",
                "model": name,
                "batch": batch,
                "scheme": label,
                "ops": graph.num_ops,
                "coarse_ops": coarse.num_ops,
                "groups": int(answer.statistics["groups"]),
                "coarsen_s": round(coarsen_seconds, 5),
                "search_s": round(answer.search_seconds, 3),
                "step_ms": _milliseconds(answer.step_seconds),
            }


def measure_speed(seed: int) -> Iterator[dict[str, Any]]:
    """A BERT of 12,000 ops on 4 devices: MCMC, then ours with rising budgets, then ours at ease."""
    graph = bert(hidden=768, heads=12, layers=LARGE_LAYERS, sequence=128, batch=16)
    cluster = find_cluster("nvlink50-eth20-x2")
    small = load_graph("alexnet-32")
    for method in (mcmc, placement):
        method(small, cluster, sharing="none", budget_seconds=1.0)  # compiled
    began = time.perf_counter()
    usual = mcmc(graph, cluster, seed=seed, sharing="none", budget_seconds=600.0)
    usual_seconds = time.perf_counter() - began
    fused = fuse_ops(graph, mean_device_seconds(make_instance(graph, cluster)))
    began = time.perf_counter()
    fused = fuse_ops(graph, mean_device_seconds(make_instance(graph, cluster)))
    fusion_seconds = time.perf_counter() - began
    for budget in (*BUDGETS, 30.0):
        began = time.perf_counter()
        answer = placement(graph, cluster, seed=seed, sharing="none", budget_seconds=budget)
        taken = time.perf_counter() - began
        yield {
            "table": "speed",
            "model": f"bert-base of {LARGE_LAYERS} layers",
            "ops": graph.num_ops,
            "devices": cluster.num_devices,
            "budget_s": budget,
            "wall_s": round(taken, 3),
            "step_ms": _milliseconds(answer.step_seconds),
            "gap": round(answer.gap, 5),
            "mcmc_step_ms": _milliseconds(usual.step_seconds),
            "mcmc_wall_s": round(usual_seconds, 3),
            "is_as_good": bool(answer.step_seconds <= usual.step_seconds),
            "times_faster": round(usual_seconds / taken, 1),
            "fused_ops": fused.graph.num_ops,
            "fusion_s": round(fusion_seconds, 4),
        }


def measure_scaling(seed: int) -> Iterator[dict[str, Any]]:
    """GPT steps on 8 devices, from a graph to an answer."""
    # Memory without end, so that time is what is measured and not the lack of room.
    cluster = find_cluster("nvlink50-eth20-x4")
    placement(synthetic_gpt(200), cluster, sharing="none", budget_seconds=1.0)
    before = 0.0
    for size in SIZES:
        # A small hidden width and batch: 100,000 ops have to fit 8 devices.
        graph = synthetic_gpt(size, hidden=256, heads=4, sequence=128, batch=4)
        began = time.perf_counter()
        answer = placement(graph, cluster, seed=seed, sharing="none", budget_seconds=60.0)
        taken = time.perf_counter() - began
        yield {
            "table": "scaling",
            "ops": graph.num_ops,
            "devices": cluster.num_devices,
            "wall_s": round(taken, 3),
            "times_the_last": round(taken / before, 2) if before else None,
            "step_ms": _milliseconds(answer.step_seconds),
            "gap": round(answer.gap, 5),
            "rounds": answer.statistics.get("rounds"),
            "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3),
        }
        before = taken


def summarise(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Means over the rows of the table of methods."""
    rows = [each for each in records if each["table"] == "methods"]
    if rows:
        yield {
            "table": "summary",
            "rows": len(rows),
            "never_slower": all(each["never_slower"] for each in rows),
            "fair_never_slower": all(each["fair_never_slower"] for each in rows),
            "mean_reduction": round(float(np.mean([each["reduction"] for each in rows])), 5),
            "largest_reduction": max(each["reduction"] for each in rows),
            "fair_mean_reduction": round(
                float(np.mean([each["fair_reduction"] for each in rows])), 5
            ),
            "largest_gap": max(each["gap"] for each in rows),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=TABLES, action="append", help="a table; all if not given")
    parser.add_argument("--solver-seconds", type=float, default=15.0, help="for each programme")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    tables: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "methods": partial(compare_methods, options.solver_seconds, options.seed),
        "schemes": partial(compare_schemes, options.solver_seconds, options.seed),
        "speed": partial(measure_speed, options.seed),
        "scaling": partial(measure_scaling, options.seed),
    }
    records: list[dict[str, Any]] = []
    try:
        for name in options.only or TABLES:
            for record in tables[name]():
                records.append(record)
                print(json.dumps(record) if options.json else as_text(record), flush=True)
        for record in summarise(records):
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    return "  ".join(f"{key} {value}" for key, value in record.items())


if __name__ == "__main__":
    sys.exit(main())
