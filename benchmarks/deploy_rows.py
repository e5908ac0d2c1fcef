"""The rows of the benchmark of deployment (`deploy.py`): what is compared, and one record each."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from deploy_factors import kind_of_factor
from meshwright.cluster.build import multi_rail
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.search.method.deploy.analysis import analyse
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.factor.factor import (
    choose_duplicated,
    find_factors,
    find_gradients,
)
from meshwright.search.method.deploy.factor.price import price_factors
from meshwright.search.method.deploy.tree.net import NetworkPrior, load_prior
from meshwright.search.method.deploy.tree.tree import Prior, iterations_to_beat, uniform_prior
from meshwright.search.portfolio import search_by
from meshwright.search.warm import small_cluster, small_step
from meshwright.source import zoo_graph

data = partial(search_by, "data")
data_proportional = partial(search_by, "data-proportional")
deploy = partial(search_by, "deploy")
flexflow = partial(search_by, "flexflow")
heft = partial(search_by, "heft")
horovod = partial(search_by, "horovod")
mcmc = partial(search_by, "mcmc")
mcts = partial(search_by, "mcts")
metis = partial(search_by, "metis")
msct = partial(search_by, "m-sct")

MODELS = (
    ("inception-v3", 96), ("resnet101", 96), ("vgg19", 96), ("transformer", 480),
    ("bert-small", 96), ("bert-large", 16),
)  # fmt: skip
"""Zoo names and samples a step, as TAG has them; none is trained on."""
SMALL_BATCH = 4
"""Of the table of sufficient factors."""
SHARING = "fair"
NEVER_SLOWER = 1e-9
"""Relative: sums in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model on a cluster, and what may be spent on it."""

    table: str
    model: str
    batch: int
    cluster: str
    seed: int
    budget_seconds: float = 0.0
    cap: int = 0
    """Of iterations."""
    num_seeds: int = 1
    per_host: int = 0
    gbit: float = 0.0


METHODS: dict[str, Callable[..., Answer]] = {
    "data": data,
    "data-proportional": data_proportional,
    "horovod": horovod,
    "flexflow": flexflow,
    "mcmc": mcmc,
    "m-sct": msct,
    "metis": metis,
    "heft": heft,
    "mcts": mcts,
    "deploy": deploy,
}
"""Of these `deploy` is ours."""


@cache
def compile_kernels() -> None:
    """Once a process: compiling is not searching."""
    for search in METHODS.values():
        search(small_step(), small_cluster(), budget_seconds=0.01, sharing=SHARING)


@cache
def network() -> Prior:
    """The shipped network's belief."""
    return load_prior(warn=lambda line: print(line, file=sys.stderr))


def read_step(question: Question) -> Graph:
    """The step of a row, in fp32 as the paper's models are."""
    return zoo_graph(question.model, question.batch, precision="fp32")


def answer_question(question: Question) -> dict[str, Any]:
    """The record of a row."""
    compile_kernels()
    rows = {"sfb": compare_factors, "iterations": count_iterations}
    return rows.get(question.table, compare_methods)(question)


def compare_methods(question: Question) -> dict[str, Any]:
    """Every method with the same budget under the same simulator."""
    graph, cluster = read_step(question), find_cluster(question.cluster)
    answers = {
        name: search(
            graph,
            cluster,
            seed=question.seed,
            budget_seconds=question.budget_seconds,
            sharing=SHARING,
        )
        for name, search in METHODS.items()
    }
    ours = answers["deploy"]
    usual = answers["data"].step_seconds
    return {
        **_head(question, cluster),
        "budget_s": question.budget_seconds,
        "step_ms": {name: _milliseconds(each) for name, each in answers.items()},
        "search_s": {name: round(each.search_seconds, 3) for name, each in answers.items()},
        "fits": {name: each.plan is not None for name, each in answers.items()},
        "speed_up": {name: _ratio(usual, each.step_seconds) for name, each in answers.items()},
        "bound_ms": round(ours.bound_seconds * 1e3, 6),
        "gap": None if ours.plan is None else round(ours.gap, 5),
        "stop": str(ours.stop),
        "slower_than": [
            name
            for name, each in answers.items()
            if each.step_seconds < ours.step_seconds * (1 - NEVER_SLOWER)
        ],
        "statistics": {key: round(value, 6) for key, value in ours.statistics.items()},
    }


def compare_factors(question: Question) -> dict[str, Any]:
    """Data parallelism with a small batch, with and without sufficient factor broadcasting."""
    graph = read_step(question)
    cluster = multi_rail(
        num_hosts=2,
        num_rails=1,
        devices_per_host=question.per_host,
        rail_bytes_per_second=question.gbit * 1e9 / 8,
        device_type="v100-32",
        name=question.cluster,
    )
    evaluator = Evaluator(analyse(graph, cluster), SHARING)
    strategy, devices = evaluator.data_parallel, range(cluster.num_devices)

    def evaluate(ops: frozenset[int]) -> float:
        missing, seconds = evaluator.rank(strategy, ops)
        return seconds if missing <= 0 else float("inf")

    began = time.perf_counter()
    chosen = choose_duplicated(evaluate, graph, cluster, devices)
    search_seconds = time.perf_counter() - began
    prices = price_factors(graph, cluster, devices)
    factors = find_factors(graph, prices, find_gradients(prices))
    solves = [each.solve_seconds for each in factors]
    without, with_factors = evaluate(frozenset()), evaluate(chosen)
    return {
        **_head(question, cluster),
        "gbit": question.gbit,
        "data_ms": round(without * 1e3, 6),
        "sfb_ms": round(with_factors * 1e3, 6),
        "speed_up": _ratio(without, with_factors),
        "duplicated_ops": len(chosen),
        "classes": sorted({kind_of_factor(graph, op) for op in chosen}),
        "factors": len(solves),
        "largest_solve_s": round(max(solves, default=0.0), 4),
        "search_s": round(search_seconds, 3),
    }


def count_iterations(question: Question) -> dict[str, Any]:
    """Iterations of tree search until data parallelism is beaten; None: not within the cap."""
    graph, cluster = read_step(question), find_cluster(question.cluster)
    analysis = analyse(graph, cluster, seed=question.seed)
    seeds = range(question.seed, question.seed + question.num_seeds)

    def count(prior: Prior) -> list[int | None]:
        return [
            iterations_to_beat(analysis, prior, seed=each, cap=question.cap, sharing=SHARING)
            for each in seeds
        ]

    belief = network()
    return {
        **_head(question, cluster),
        "groups": analysis.num_groups,
        "actions": len(analysis.actions),
        "cap": question.cap,
        "has_network": isinstance(belief, NetworkPrior),
        "network": count(belief),
        "uniform": count(uniform_prior),
    }


def mean_iterations(counts: Sequence[int | None], cap: int) -> float:
    """What was not beaten counts as the cap, which favours whoever did not beat it."""
    return sum(cap if each is None else each for each in counts) / len(counts)


def _head(question: Question, cluster: Cluster) -> dict[str, Any]:
    return {
        "table": question.table,
        "model": question.model,
        "batch": question.batch,
        "cluster": question.cluster,
        "devices": cluster.num_devices,
        "hosts": len(cluster.hosts),
        "seed": question.seed,
    }


def _milliseconds(answer: Answer) -> float | None:
    return None if answer.plan is None else round(answer.step_seconds * 1e3, 6)


def _ratio(before: float, after: float) -> float | None:
    is_known = before < float("inf") and 0 < after < float("inf")
    return round(before / after, 4) if is_known else None
