"""Steps of hybrid plans simulated op by op against the same simulated layer by layer.

    python benchmarks/granularity.py [MODEL ...] [--plans N] [--seed S]

Plans are drawn at random: stages, widths of teams, sequence parallelism, ZeRO, recomputation,
microbatches and schedules that a model and its cluster allow. One JSON object a plan (both steps,
both peaks, the ratios), then one with the summary. Layer by layer a rule says what of a collective
hides behind compute; op by op that follows from streams and orders, so the two cannot be equal.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hybrid_plans import stage_parts
from meshwright.api import load_graph
from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cost.layer.team import Team, team_fits
from meshwright.errors import InputError
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Recompute, Schedule, ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.program.lower import MAX_OP_INSTANCES, count_instances
from meshwright.simulate.simulate import simulate

MODELS = ("gpt2-medium", "bert-large", "llama-2-7b", "vit-l", "mixtral-8x7b")
CLUSTERS = ("a100-80-x8", "h100-x8")


def main() -> None:
    """Draw, simulate twice, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--plans", type=int, default=20, help="of each model (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the same: rows are JSON anyway")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        for row in compare(name, arguments.plans, random.Random(f"{arguments.seed} {name}")):
            rows.append(row)
            print(json.dumps(row), flush=True)
    print(json.dumps(summarise(rows)))


def compare(name: str, count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Rows of so many plans of a model."""
    graph = load_graph(name)
    stack = find_layers(graph)
    found = 0
    while found < count:
        cluster = load_cluster(chance.choice(CLUSTERS))
        plan = draw_plan(stack, cluster, chance)
        if plan is None or count_instances(plan) > MAX_OP_INSTANCES // 4:
            continue
        try:
            by_op, by_layer = (
                simulate(graph, cluster, plan, granularity=each) for each in ("op", "layer")
            )
        except InputError as error:
            print(f"{name}, {plan.description}: {error}", file=sys.stderr)
            continue
        found += 1
        yield {
            "model": name,
            "cluster": cluster.name,
            "plan": plan.description,
            "op_seconds": by_op.step_seconds,
            "layer_seconds": by_layer.step_seconds,
            "step_ratio": by_op.step_seconds / by_layer.step_seconds,
            "peak_ratio": max(by_op.peak_bytes) / max(by_layer.peak_bytes),
        }


def draw_plan(stack: Stack, cluster: Cluster, chance: random.Random) -> Plan | None:
    """A plan with teams, ZeRO or recomputation; None where what was drawn is not allowed."""
    graph, devices = stack.graph, cluster.num_devices
    num_stages = chance.choice([1, 1, 2, 4])
    tensor = chance.choice([1, 2, 4, 8])
    each = devices // num_stages
    if num_stages > stack.num_layers or each % tensor:
        return None
    team = Team(tensor=tensor, sequence=tensor > 1 and chance.random() < 0.5)
    if any(team_fits(kind, team) is not None for kind in stack.kinds):
        return None
    microbatches = chance.choice([1, 2, 4, 8])
    if graph.batch % (microbatches * each // tensor):
        return None
    schedule = Schedule(
        kind=chance.choice([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B]),
        microbatches=microbatches,
    )
    plan = Plan(
        parts=tuple(
            replace(
                part,
                tensor=tensor,
                sequence=team.sequence,
                zero=chance.choice([0, 1, 2, 3]) if each > tensor else 0,
                recompute=chance.choice(list(Recompute)),
            )
            for part in stage_parts(stack, cluster, num_stages)
        ),
        schedule=schedule,
    )
    return None if plan.is_plain else plan


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far the two are from each other."""
    found: dict[str, Any] = {"plans": len(rows)}
    for name in ("step_ratio", "peak_ratio"):
        ratios = sorted(row[name] for row in rows)
        found |= {
            f"{name}_mean_error": statistics.fmean(abs(each - 1) for each in ratios),
            f"{name}_least": ratios[0],
            f"{name}_most": ratios[-1],
        }
    return found


if __name__ == "__main__":
    main()
