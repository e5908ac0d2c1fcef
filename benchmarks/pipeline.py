"""Pipelines: our search against the usual ones, and what each part of it is worth.

Two tables, one JSON object a row. `methods`: step and search seconds of `consecutive`, `pipedream`
and `pipeline` on every model and cluster, and of `pipeline` without one of its parts. `parts`: for
fixed stages and replicas the slowest stage (compute, transfers, and what comes once a step as a
part of it, a microbatch) and the simulated step, of stages cut from clusters of blocks or from
single blocks, with and without refinement: how many clusters (K), what communication counts in
clustering (alpha), and how moves are compared. Stages stand on the devices in their order, one
schedule (1F1B; GPipe where weights are tied), four microbatches a stage or as many as there are
samples.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.search.instance import make_instance
from meshwright.search.judge import try_plan
from meshwright.search.method.pipeline.block import find_blocks
from meshwright.search.method.pipeline.candidate import Candidate, suited_kinds
from meshwright.search.method.pipeline.consecutive import microbatch_choices
from meshwright.search.method.pipeline.cutter import (
    DEFAULT,
    WEIGHTS,
    Cutter,
    Options,
    Sketch,
    reference_rates,
)
from meshwright.search.method.pipeline.microbatch_price import PipelineShape, Prices, StageTeam
from meshwright.search.method.pipeline.place import mapping_problem, plain_homes
from meshwright.search.method.pipeline.refine import BY_DISTANCE, BY_TIME
from meshwright.search.method.pipeline.stage.problem import device_loads
from meshwright.search.portfolio import search_by
from meshwright.source import load_graph

consecutive = partial(search_by, "consecutive")
pipedream = partial(search_by, "pipedream")
pipeline = partial(search_by, "pipeline")

MODELS = ("resnet152", "bert-large", "swin-l", "inception-v3", "transformer")
CLUSTERS = ("titan-v-4x4", "dgx1-x2")
SHAPES = ((4, 4), (8, 2), (16, 1))
"""Stages and replicas on 16 devices."""
COUNTS = (16, 24, 32, 48, 64, 96, 128, 256)
"""Clusters, besides as many as stages and twice that."""
WITHOUT = {
    "without_clusters": replace(DEFAULT, num_clusters=0),
    "without_refinement": replace(DEFAULT, refines=False),
    "without_mapping": replace(DEFAULT, maps=False),
    "without_tuning": replace(DEFAULT, tunes=False),
}
TABLES = ("methods", "parts")


def compare_methods(
    name: str, graph: Graph, cluster: Cluster, budget_seconds: float, seed: int
) -> Iterator[dict[str, Any]]:
    """One record of all methods."""
    record: dict[str, Any] = {
        "table": "methods",
        "model": name,
        "batch": graph.batch,
        "ops": graph.num_ops,
        "cluster": cluster.name,
    }
    answers = {
        "consecutive": consecutive(graph, cluster, budget_seconds=budget_seconds),
        "pipedream": pipedream(graph, cluster, budget_seconds=budget_seconds),
        "pipeline": pipeline(graph, cluster, seed=seed, budget_seconds=budget_seconds),
    }
    for label, options in WITHOUT.items():
        answers[label] = pipeline(
            graph, cluster, seed=seed, budget_seconds=budget_seconds, options=options
        )
    for label, answer in answers.items():
        record[f"{label}_step_ms"] = _milliseconds(answer.step_seconds)
        record[f"{label}_search_s"] = round(answer.search_seconds, 2)
    ours = answers["pipeline"]
    usual = min(answers[each].step_seconds for each in ("consecutive", "pipedream"))
    plan = ours.plan
    record |= {
        "bound_ms": _milliseconds(ours.bound_seconds),
        "simulations": ours.statistics.get("simulations"),
        "schedule": plan.schedule.kind.value if plan and plan.schedule else "",
        "microbatches": plan.schedule.microbatches if plan and plan.schedule else 0,
        "replicas": [len(part.devices) for part in plan.parts] if plan else [],
        "never_slower": ours.step_seconds <= usual * (1 + 1e-9),
        "ratio": round(usual / ours.step_seconds, 4),
    }
    yield record


def compare_parts(
    name: str, graph: Graph, cluster: Cluster, stages: int, replicas: int
) -> Iterator[dict[str, Any]]:
    """One record a way to cut: single blocks, then clusters with and without refinement."""
    prices, blocks = Prices(make_instance(graph, cluster)), find_blocks(graph)
    microbatches = microbatch_choices(graph, stages, replicas)[-1]
    shape = PipelineShape(
        teams=(StageTeam(grade=0, replicas=replicas),),
        counts=(stages * replicas,),
        microbatches=min(microbatches, 4 * stages),
        keeps_all=blocks.has_tail,
    )
    ways = [(0, 1.0, ""), *((0, 1.0, order) for order in (BY_DISTANCE, BY_TIME))]
    for count in sorted({stages, 2 * stages, *COUNTS}):
        if stages <= count < blocks.num_blocks:
            ways += [(count, 1.0, order) for order in ("", BY_DISTANCE, BY_TIME)]
    for weight in WEIGHTS:
        if weight != 1.0:
            ways += [(64, weight, order) for order in ("", BY_DISTANCE)]
    for count, weight, order in ways:
        options = Options(num_clusters=count, weights=(weight,), order=order or BY_DISTANCE)
        began = perf_counter()
        cutter = Cutter(prices, blocks, options)
        per_byte = reference_rates(prices)[-1]
        sketch = cutter.sketch(cutter.clusterings[0], shape, per_byte)
        if sketch is not None and order:
            sketch = cutter.refine(sketch)
        yield {
            "table": "parts",
            "model": name,
            "cluster": cluster.name,
            "stages": stages,
            "replicas": replicas,
            "microbatches": shape.microbatches,
            "blocks": blocks.num_blocks,
            "clusters": count or blocks.num_blocks,
            "is_clustered": count > 0,
            "alpha": weight,
            "refinement": order or "none",
            "search_s": round(perf_counter() - began, 4),
            **_assess(cutter, cluster, sketch, per_byte),
        }


def _assess(
    cutter: Cutter, cluster: Cluster, sketch: Sketch | None, per_byte: float
) -> dict[str, Any]:
    """The slowest stage and the simulated step, in milliseconds."""
    if sketch is None:
        return {"largest_stage_ms": None, "step_ms": None, "fits": False}
    prices = cutter.prices
    problem = prices.split_problem(cutter.blocks, sketch.shape, seconds_per_byte=per_byte)
    loads = device_loads(problem, sketch.stage_of_block, sketch.kind_of_stage)
    cut = sketch.cut
    mapping = mapping_problem(prices, cut, sketch.teams, sketch.flights())
    homes = plain_homes(mapping, cut.num_stages)[0]
    count = sketch.shape.microbatches
    kind = suited_kinds(cut.num_stages, homes, count)[0]
    plan = Candidate(cut=cut, homes=homes, kind=kind, microbatches=count).plan(cluster)
    try:
        verdict = try_plan(cut.graph, cluster, plan, "fair", "part")
    except InputError:  # an op that needs the whole batch within a replicated stage
        verdict = try_plan(cut.graph, cluster, plan, "fair", "op")
    return {
        "largest_stage_ms": _milliseconds(float(loads.max())),
        "step_ms": _milliseconds(verdict.step_seconds),
        "fits": verdict.fits,
    }


def _milliseconds(seconds: float) -> float | None:
    return round(seconds * 1e3, 4) if seconds < float("inf") else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=TABLES, action="append", help="default: both")
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--cluster", action="append", help=f"default: {', '.join(CLUSTERS)}")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds a search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        if not 0 < options.budget < float("inf"):
            raise InputError(f"--budget must be positive and finite, got {options.budget}")
        for record in _records(options):
            text = ", ".join(f"{key} {value}" for key, value in record.items())
            print(json.dumps(record) if options.json else text, flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _records(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    tables = options.table or TABLES
    for name in options.model or MODELS:
        graph = load_graph(name, precision="fp32")
        for label in options.cluster or CLUSTERS:
            cluster = find_cluster(label)
            pipeline(graph, cluster, budget_seconds=0.01)  # compiles what is not yet
            if "methods" in tables:
                yield from compare_methods(name, graph, cluster, options.budget, options.seed)
            if "parts" in tables:
                for stages, replicas in SHAPES:
                    if stages * replicas == cluster.num_devices:
                        yield from compare_parts(name, graph, cluster, stages, replicas)


if __name__ == "__main__":
    sys.exit(main())
