"""Bandwidth: step time with each host's network interfaces shared out, against uniform bandwidth.

AlexNet, VGG-16, FNet and BERT on 4 servers of one V100 each, whose d interfaces lead to as many
switches, at 5 to 40 Gb/s a link and d = 2 and 4; one JSON object a row. Sharing `fair` is what a
network does: without an allocation every pair of hosts has the one link that its route takes, with
whatever else is on it. `none` is the model of Wang's thesis (2025): every pair of hosts has one
link's rate b, whatever else is sent, against rates that add up to at most d x b out of a host and
into it. The batches are those of the placement benchmark, and so is the device: 512 pictures of 32
x 32, 64 sequences of 128 tokens, V100 of 32 GB.

Uniform bandwidth gets the same care: it is searched with other seeds until it has had as long as
allocations, and the best of all counts. Rows of pipelines and of
data parallelism keep the plan that is best under uniform bandwidth and share the network out for
it. `reduction` is of the step's time, `gap` is to the bound on all plans of the kind and all
allocations. The last row is the BERT of 12,000 ops that the thesis takes 76.7 s for.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.architecture.bert import bert
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.search.answer import answer_attempt
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.method.bandwidth.joint.joint import allocate_plan
from meshwright.search.method.table import METHODS
from meshwright.search.portfolio import search_by
from meshwright.search.problem import Problem
from meshwright.search.run import run_method
from meshwright.source import load_graph

data = partial(search_by, "data")
joint = partial(search_by, "placement", allocate=True)
pipeline = partial(search_by, "pipeline")
placement = partial(search_by, "placement")

MODELS = (("alexnet-32", 512), ("vgg16-32", 512), ("fnet-base", 64), ("bert-base", 64))
"""Zoo names and samples a step: 32 x 32 pictures, 128 tokens."""
GBITS = (5.0, 10.0, 20.0, 40.0)
INTERFACES = (2, 4)
SHARINGS = ("fair", "none")
PLANS = ("placement", "pipeline", "data")
NUM_HOSTS = 4
DEVICE = "v100-32"
LARGE_LAYERS, LARGE_BATCH, LARGE_GBIT = 206, 16, 10.0
"""Of a BERT of base width that has 12,000 ops, as in the placement benchmark."""
LARGE_SECONDS = 9.0
"""For its search, so that all of it is done in 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row's question."""

    graph: Graph
    gbit: float
    interfaces: int
    sharing: str
    num_hosts: int
    device: str
    budget_seconds: float
    seed: int

    def cluster(self) -> Cluster:
        """The servers."""
        return multi_rail(
            num_hosts=self.num_hosts,
            num_rails=self.interfaces,
            devices_per_host=1,
            rail_bytes_per_second=self.gbit * 1e9 / 8,
            device_type=self.device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The answers without and with an allocation."""

    uniform_seconds: float
    allocated: Answer
    search_seconds: float
    """What finding the second took, the search under uniform bandwidth that it begins with
    included."""
    uniform_search_seconds: float


def place(setting: Setting) -> Pair:
    """Placement and allocation together, against the best placement of as long a search."""
    graph, cluster, sharing = setting.graph, setting.cluster(), setting.sharing
    began = time.perf_counter()
    found = joint(
        graph,
        cluster,
        seed=setting.seed,
        budget_seconds=setting.budget_seconds,
        sharing=sharing,
    )
    taken = time.perf_counter() - began
    began = time.perf_counter()
    problem, uniform = place_uniform(setting, cluster, taken)
    uniform_taken = time.perf_counter() - began
    # What the joint search begins with is of uniform bandwidth, too.
    uniform_seconds = min(uniform.step_seconds, found.statistics["uniform_seconds"])
    # And a better placement than that counts for both.
    shared = Incumbent(problem.clock).begin("placement", Claim.ALLOCATED)
    allocate_plan(problem, uniform, shared)
    other = answer_attempt(problem, shared)
    return Pair(
        uniform_seconds=uniform_seconds,
        allocated=min(found, other, key=lambda each: each.step_seconds),
        search_seconds=taken,
        uniform_search_seconds=uniform_taken,
    )


def place_uniform(
    setting: Setting, cluster: Cluster, budget_seconds: float
) -> tuple[Problem, Attempt]:
    """The best of searches under uniform bandwidth, with other seeds while there is time."""
    clock = Clock(budget_seconds)
    found: list[Attempt] = []
    problem = Problem(graph=setting.graph, cluster=cluster, sharing=setting.sharing, clock=clock)
    while not found or clock.left > 0.1 * budget_seconds:
        own = replace(problem, seed=setting.seed + len(found), clock=clock.rest(1.0))
        plain = Incumbent(own.clock).begin("placement", Claim.PLACEMENT)
        METHODS["placement"](own, plain)
        found.append(plain)
    return problem, min(found, key=lambda each: each.step_seconds)


def share_out(method: str, setting: Setting) -> Pair:
    """The plan of another search, and the network shared out for it."""
    began = time.perf_counter()
    problem = Problem(
        graph=setting.graph, cluster=setting.cluster(), sharing=setting.sharing,
        seed=setting.seed, clock=Clock(setting.budget_seconds),
    )  # fmt: skip
    incumbent = Incumbent(problem.clock)
    run_method(method, problem, incumbent)
    uniform, taken = incumbent.attempts[method], time.perf_counter() - began
    shared = Incumbent(problem.clock).begin(method, Claim.UNDIVIDED)
    allocate_plan(problem, uniform, shared)
    return Pair(
        uniform_seconds=uniform.step_seconds,
        allocated=answer_attempt(problem, shared),
        search_seconds=time.perf_counter() - began,
        uniform_search_seconds=taken,
    )


def measure(plans: str, setting: Setting) -> dict[str, Any]:
    """One row."""
    pair = place(setting) if plans == "placement" else share_out(plans, setting)
    uniform_seconds, allocated = pair.uniform_seconds, pair.allocated
    plan = allocated.plan
    return {
        "model": setting.graph.name,
        "batch": setting.graph.batch,
        "num_ops": setting.graph.num_ops,
        "num_hosts": setting.num_hosts,
        "device": setting.device,
        "plans": plans,
        "gbit": setting.gbit,
        "interfaces": setting.interfaces,
        "sharing": setting.sharing,
        "uniform_seconds": _rounded(uniform_seconds),
        "allocated_seconds": _rounded(allocated.step_seconds),
        "reduction": round(1 - allocated.step_seconds / uniform_seconds, 5)
        if plan is not None
        else None,
        "bound_seconds": _rounded(allocated.bound_seconds),
        "gap": round(allocated.gap, 5) if plan is not None else None,
        "stop": str(allocated.stop),
        "num_allocations": len(plan.allocations) if plan is not None else 0,
        "search_seconds": round(pair.search_seconds, 3),
        "uniform_search_seconds": round(pair.uniform_search_seconds, 3),
    }


def _rounded(seconds: float) -> float | None:
    return float(f"{seconds:.9g}") if seconds < float("inf") else None


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows, those of the large BERT last."""
    for graph in _graphs(options.models):
        for plans in options.plans:
            for sharing in options.sharing:
                for interfaces in options.interfaces:
                    for gbit in options.gbit:
                        setting = _setting(options, graph, gbit, interfaces, sharing)
                        yield {"table": "models", **measure(plans, setting)}
    if options.large:
        graph = bert(hidden=768, heads=12, layers=LARGE_LAYERS, sequence=128, batch=LARGE_BATCH)
        for sharing in options.sharing:
            for interfaces in options.interfaces:
                setting = _setting(options, graph, LARGE_GBIT, interfaces, sharing)
                budget = min(options.budget, LARGE_SECONDS)
                large = replace(setting, budget_seconds=budget)
                yield {"table": "large", **measure("placement", large)}


def _graphs(names: Sequence[str]) -> Iterator[Graph]:
    batches = dict(MODELS)
    for name in names or batches:
        model, _, batch = name.partition(":")
        samples = int(batch) if batch else batches.get(model)
        yield load_graph(model, samples, precision="fp32")


def _setting(
    options: argparse.Namespace, graph: Graph, gbit: float, interfaces: int, sharing: str
) -> Setting:
    return Setting(
        graph=graph,
        gbit=gbit,
        interfaces=interfaces,
        sharing=sharing,
        num_hosts=options.hosts,
        device=options.device,
        budget_seconds=options.budget,
        seed=options.seed,
    )


def warm_up() -> None:
    """Compile what is measured."""
    graph = load_graph("alexnet-32")
    cluster = multi_rail(num_hosts=2, num_rails=2, devices_per_host=1, device_type=DEVICE)
    joint(graph, cluster, budget_seconds=0.5)
    pipeline(graph, cluster, budget_seconds=0.5)


def summarise(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By kind of plans, sharing and rate: the mean reduction, the least and the largest."""
    records = [each for each in records if each["table"] == "models"]
    keys = dict.fromkeys((each["plans"], each["sharing"], each["gbit"]) for each in records)
    for plans, sharing, gbit in keys:
        found = [
            each["reduction"]
            for each in records
            if (each["plans"], each["sharing"], each["gbit"]) == (plans, sharing, gbit)
            and each["reduction"] is not None
        ]
        if found:
            yield {
                "table": "summary",
                "plans": plans,
                "sharing": sharing,
                "gbit": gbit,
                "rows": len(found),
                "mean_reduction": round(sum(found) / len(found), 5),
                "least_reduction": min(found),
                "largest_reduction": max(found),
            }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a record."""
    options = _parse(arguments)
    records: list[dict[str, Any]] = []
    try:
        warm_up()
        for record in compare(options):
            records.append(record)
            print(json.dumps(record) if options.json else as_text(record), flush=True)
        for record in summarise(records):
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=[],
        metavar="M,..",
        help="of the zoo, each with :BATCH if need be (default: the papers' four)",
    )
    parser.add_argument("--plans", type=_some(PLANS), default=PLANS, metavar="P,..")
    parser.add_argument("--sharing", type=_some(SHARINGS), default=SHARINGS, metavar="S,..")
    parser.add_argument("--gbit", type=_numbers(float), default=GBITS, metavar="G,..")
    parser.add_argument("--interfaces", type=_numbers(int), default=INTERFACES, metavar="D,..")
    parser.add_argument("--hosts", type=int, default=NUM_HOSTS)
    parser.add_argument("--device", default=DEVICE, help=f"device type (default: {DEVICE})")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each search")
    parser.add_argument("--no-large", dest="large", action="store_false", help="no 12,000-op BERT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    return parser.parse_args(arguments)


def _some(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for each in chosen:
            if each not in known:
                raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}, got {each!r}")
        return chosen

    return parse


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(each) for each in text.split(",")]


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    return "  ".join(f"{key} {value}" for key, value in record.items())


if __name__ == "__main__":
    sys.exit(main())
