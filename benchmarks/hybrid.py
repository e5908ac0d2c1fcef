"""Hybrid plans: our search against a manual plan, MCMC and a search that sees no network.

One JSON object a row: a model on so many devices of a network, all methods judged by the same
simulator (fair sharing). `manual` is Megatron-LM's advice with the best of its microbatches, `mcmc`
a walk over degrees that starts there and has as long as ours took, `unaware` our dynamic programme
with all links as fast as the fastest; of each the first five that fit are simulated by layer and
the best counts. They are the methods `manual`, `hybrid-mcmc` and `unaware` of `meshwright plan`,
which simulate these five op by op, too. Steps in seconds, larger ratios are better for us.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph, Phase
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.baseline import (
    manual_drafts,
    mcmc_drafts,
    simulate_first,
    unaware_drafts,
)
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import HybridSpace, make_space
from meshwright.search.method.hybrid.trial import HybridTrials, TrialScene
from meshwright.search.pool.process import Processes
from meshwright.search.portfolio import search_by
from meshwright.source import load_graph

hybrid = partial(search_by, "hybrid")

MODELS = ("bert-large", "llama-2-7b", "llama-3-70b", "mixtral-8x7b", "gpt3-175b")
NETWORKS = ("tpuv4-fattree", "h100-spineleaf")
DEVICES = (64, 128, 256, 512, 1024)
BATCH = 4096
BASELINES = ("manual", "mcmc", "unaware")


def compare(
    model: str,
    graph: Graph,
    cluster: Cluster,
    budget_seconds: float,
    seed: int,
    baselines: Sequence[str] = BASELINES,
) -> dict[str, Any]:
    """One row."""
    answer = hybrid(graph, cluster, budget_seconds=budget_seconds)
    space = make_space(graph, cluster, Scope())
    steps = {
        name: _best(space, drafts)
        for name, drafts in _baselines(space, answer.search_seconds, seed, baselines)
    }
    ours = answer.step_seconds
    step_flops = float(graph.flops[graph.phase != Phase.UPDATE].sum())
    peak = sum(
        cluster.types[device.type].peak_flops_per_second(_precision(graph))
        for device in cluster.devices
    )
    tokens = max(kind.tokens for kind in space.stack.kinds if kind.heads)
    return {
        "model": model,
        "cluster": cluster.name,
        "devices": cluster.num_devices,
        "batch": graph.batch,
        "step_seconds": _finite(ours),
        "bound_seconds": answer.bound_seconds,
        "gap": _finite(answer.gap),
        "search_seconds": round(answer.search_seconds, 3),
        "simulated": answer.statistics.get("simulated"),
        "tokens_per_second": _finite(graph.batch * tokens / ours) if ours else None,
        "mfu": _finite(step_flops / ours / peak) if ours else None,
        "plan": answer.plan.description if answer.plan else answer.binding,
        "runner_ups": [
            {"step_seconds": each.step_seconds, "plan": each.description}
            for each in answer.runner_ups[:3]
        ],
        **{f"{name}_step_seconds": _finite(step) for name, (step, _) in steps.items()},
        **{f"{name}_plan": text for name, (_, text) in steps.items()},
        **{f"{name}_ratio": _finite(step / ours) for name, (step, _) in steps.items()},
        "never_slower": all(ours <= step * (1 + 1e-9) for step, _ in steps.values())
        if steps
        else None,
    }


def _baselines(
    space: HybridSpace, seconds: float, seed: int, names: Sequence[str]
) -> Iterator[tuple[str, Sequence[HybridDraft]]]:
    by_hand = manual_drafts(space) if {"manual", "mcmc"} & {*names} else []
    if "manual" in names:
        yield "manual", by_hand
    if "mcmc" in names:
        yield "mcmc", mcmc_drafts(space, by_hand[0], seed, Clock(seconds)) if by_hand else ()
    if "unaware" in names:
        yield "unaware", unaware_drafts(space, Clock(60))


def _best(space: HybridSpace, drafts: Sequence[HybridDraft]) -> tuple[float, str]:
    """The step and the plan of the best of the first that fit."""
    scene = TrialScene(
        graph=space.stack.graph, cluster=space.cluster, tiers=space.prices.tiers, sharing="fair"
    )
    trials = HybridTrials(scene, Processes(1))
    simulate_first(trials, drafts, Clock())
    if not trials.num_fitting:
        return float("inf"), ""
    verdict, draft = trials.ranked()[0]
    return verdict.step_seconds, scene.plan(draft).description


def _precision(graph: Graph) -> str:
    """That most of the FLOPs have."""
    names, codes = graph.precision_codes
    return names[int(np.bincount(codes, weights=graph.flops).argmax())]


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if value < float("inf") else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for every model, network and number of devices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NAME",
                        help="catalogue names without the number of devices")  # fmt: skip
    parser.add_argument("--devices", nargs="+", type=int, default=list(DEVICES), metavar="N")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples a step (4096)")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a search (10)")
    parser.add_argument("--baselines", nargs="*", default=list(BASELINES), choices=BASELINES,
                        help="those to run beside ours (all); none on 16,384 devices, where they "
                        "take minutes")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args(arguments)
    try:
        for model in options.models:
            graph = load_graph(model).at_batch(options.batch)
            for network in options.networks:
                for count in options.devices:
                    cluster = find_cluster(f"{network}-{count}")
                    row = compare(
                        model, graph, cluster, options.budget, options.seed, options.baselines
                    )
                    print(json.dumps(row) if options.json else _text(row), flush=True)
    except InputError as error:
        print(f"hybrid: {error}", file=sys.stderr)
        return 2
    return 0


def _text(row: dict[str, Any]) -> str:
    steps = ", ".join(
        f"{name} {row[f'{name}_step_seconds']} s"
        for name in BASELINES
        if f"{name}_step_seconds" in row
    )
    return (
        f"{row['model']} on {row['cluster']}: {row['step_seconds']} s (found in "
        f"{row['search_seconds']} s, bound {row['bound_seconds']:.4g} s; {row['plan']})"
        f"{'; ' if steps else ''}{steps}"
    )


if __name__ == "__main__":
    sys.exit(main())
