"""Hybrid plans: whether a search that may look at less ever finds a faster plan.

One JSON object a row. For each pair of a model and a cluster the whole scope is searched, then
scopes that random limits make narrower: a limit keeps some of the values that it may have, at
random; every second row leaves out what the plan of the whole scope has. `ratio` is the narrow
plan's step divided by the whole one's, with the same budget: below 1 the wider search has missed a
plan that it was allowed to find. Steps in seconds; null where no plan fits. Other seeds are other
limits. On a machine that others use, too, `--processor` counts budgets in seconds of the processor.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError
from meshwright.plan.answer import Answer
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.search import clock
from meshwright.search.method.hybrid.scope import Scope, divisors
from meshwright.search.portfolio import search_by
from meshwright.source import load_graph

hybrid = partial(search_by, "hybrid")

PAIRS = (
    ("bert-large", 128, "h100-x8"),
    ("gpt2-xl", 64, "dgx1"),
    ("llama-2-7b", 64, "a100-40-x8x2"),
    ("vgg16", 256, "titan-v-4x4"),
    ("llama-2-7b", 64, "dgx1-x4"),
    ("vgg16", 256, "hierarchical-4x4x4"),
    ("mixtral-8x7b", 256, "tpuv4-fattree-64"),
    ("llama-3-70b", 512, "h100-spineleaf-256"),
    ("gpt3-175b", 512, "a100-80-x8x64"),
    ("gpt3-175b", 1024, "h100-spineleaf-1024"),
)
"""Models, samples a step, and clusters of 8 to 1,024 devices."""
_BOTH = 0.3
"""How often a second limit is narrowed along with the first."""

Limits = dict[str, Any]


def values_of(limit: str, batch: int, num_devices: int) -> Sequence[Any]:
    """What a limit may have."""
    widths = [each for each in (1, 2, 4, 8, 16, 32) if each <= num_devices]
    values: Mapping[str, Sequence[Any]] = {
        "tensor": widths,
        "context": widths[:4],
        "pipeline": [each for each in divisors(num_devices) if each <= 32],
        "data": divisors(num_devices),
        "chunks": [1, 2, 3, 4, 5, 6, 8, 12],
        "microbatches": divisors(batch),
        "zero": [0, 1, 2, 3],
        "recompute": list(Recompute),
        "schedules": list(ScheduleKind),
    }
    return values[limit]


LIMITS = (
    "tensor", "context", "pipeline", "data", "chunks", "microbatches", "zero", "recompute",
    "schedules",
)  # fmt: skip


def used_by(plan: Plan, limit: str) -> set[Any]:
    """The values of a limit that a plan has."""
    runs = list(dict.fromkeys(part.devices for part in plan.parts))
    schedule = plan.schedule
    assert schedule is not None, "hybrid plans have schedules"
    of_plan: dict[str, set[Any]] = {
        "pipeline": {len(runs)},
        "chunks": {len(plan.parts) // len(runs)},
        "microbatches": {schedule.microbatches},
        "schedules": {schedule.kind},
        "data": {len(part.devices) // (part.tensor * part.context) for part in plan.parts},
    }
    return of_plan.get(limit) or {getattr(part, limit) for part in plan.parts}


def draw_limits(
    rng: random.Random, plan: Plan, batch: int, num_devices: int, *, is_away: bool
) -> Limits:
    """One limit or two, each some of its values; away: the first without the plan's own."""
    names = rng.sample(LIMITS, 2 if rng.random() < _BOTH else 1)
    limits: Limits = {}
    for place, name in enumerate(names):
        values = list(values_of(name, batch, num_devices))
        if is_away and place == 0:
            used = used_by(plan, name)
            values = [each for each in values if each not in used] or values
        kept = rng.sample(
            values, rng.choice([1, 1, 2, max(1, len(values) // 2)]) % len(values) or 1
        )
        limits[name] = tuple(each for each in values if each in kept)
    return limits


def narrow(
    pair: tuple[str, int, str], count: int, budget_seconds: float, seed: int
) -> Iterator[dict[str, Any]]:
    """A row for the whole scope and one for each narrower one."""
    model, batch, cluster_name = pair
    graph, cluster = load_graph(model).at_batch(batch), find_cluster(cluster_name)
    rng = random.Random(f"{seed} {pair}")
    whole = hybrid(graph, cluster, budget_seconds=budget_seconds)
    about = {"model": model, "batch": batch, "cluster": cluster_name}
    about["devices"] = cluster.num_devices
    yield {**about, "limits": {}, **_found(whole)}
    assert whole.plan is not None, "the pairs are chosen so that a plan fits"
    done: list[Limits] = []
    while len(done) < count:
        is_away = len(done) % 2 == 0
        limits = draw_limits(rng, whole.plan, batch, cluster.num_devices, is_away=is_away)
        if limits in done:
            continue
        try:
            scope = Scope(**limits)
        except InputError:  # schedules and chunks that do not go together
            continue
        done.append(limits)
        answer = hybrid(graph, cluster, budget_seconds=budget_seconds, scope=scope)
        ratio = answer.step_seconds / whole.step_seconds if answer.plan else None
        row = {**about, "limits": limits, **_found(answer), "whole_seconds": whole.step_seconds}
        yield {**row, "ratio": ratio, "is_faster": ratio is not None and ratio < 1 - 1e-9}


def _found(answer: Answer) -> dict[str, Any]:
    return {
        "step_seconds": answer.step_seconds if answer.plan else None,
        "bound_seconds": answer.bound_seconds,
        "stop": answer.stop,
        "search_seconds": round(answer.search_seconds, 2),
        "simulated": answer.statistics.get("simulated"),
        "plan": answer.plan.description if answer.plan else answer.binding,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for every scope."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", nargs="+", type=int, default=list(range(len(PAIRS))),
                        metavar="N", help="numbers of the pairs, from 0 (all)")  # fmt: skip
    parser.add_argument("--narrowings", type=int, default=10, help="a pair (10)")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of a search (15)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    parser.add_argument("--processor", action="store_true",
                        help="count the processor's seconds instead of the clock's")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.processor:
        vars(clock)["perf_counter"] = time.process_time
    for number in options.pairs:
        for row in narrow(PAIRS[number], options.narrowings, options.budget, options.seed):
            print(json.dumps(row) if options.json else _text(row), flush=True)
    return 0


def _text(row: dict[str, Any]) -> str:
    limits = ", ".join(f"{name} {'/'.join(map(str, kept))}" for name, kept in row["limits"].items())
    ratio = row.get("ratio")
    beside = "" if ratio is None else f", {ratio:.4f} of the whole{' FASTER' * row['is_faster']}"
    return (
        f"{row['model']} on {row['cluster']} ({limits or 'whole'}): {row['step_seconds']} s"
        f"{beside} (found in {row['search_seconds']} s; {row['plan']})"
    )


if __name__ == "__main__":
    sys.exit(main())
