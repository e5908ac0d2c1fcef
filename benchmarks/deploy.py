"""Deployment on unequal devices: `deploy` against the usual methods, on TAG's models and clusters.

Four tables, one JSON object a row; every step time is the simulator's with fairly shared links.
`named`: InceptionV3, ResNet-101, VGG-19, Transformer, BERT-Small and BERT-Large on TAG's testbed
and cloud; `topologies`: two of them in turn on each random mixed cluster. In both every method has
the same budget, `slower_than` names methods that found a faster plan than `deploy`, and speed-ups
are over data parallelism with equal shares (none where that does not fit). `sfb`: data parallelism
with a batch of 4 on two hosts, with and without sufficient factor broadcasting. `iterations`: of
tree search until data parallelism is beaten, with the network's prior and with a uniform one, the
same seeds and cap for both, on random clusters and models that the network was not trained on
(training draws clusters of seeds from 100,000 on).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean, geometric_mean, median
from time import perf_counter
from typing import Any

from deploy_rows import (
    MODELS,
    SMALL_BATCH,
    Question,
    answer_question,
    mean_iterations,
)
from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError, quoted

NAMED = ("tag-testbed", "tag-cloud")
GBITS = (10.0, 25.0, 50.0, 100.0)
PER_HOST = (1, 2)
TABLES = ("named", "topologies", "sfb", "iterations")


def list_questions(options: argparse.Namespace) -> Iterator[Question]:
    """All rows that are asked for."""
    models = _find_models(options.models)
    for table in options.table or TABLES:
        if table == "named":
            for cluster in options.clusters or NAMED:
                for model, batch in models:
                    yield Question(
                        table=table, model=model, batch=batch, cluster=cluster, seed=options.seed,
                        budget_seconds=options.budget,
                    )  # fmt: skip
        elif table == "topologies":
            for number in range(options.topologies):
                for place in range(min(options.each, len(models))):
                    model, batch = models[(options.each * number + place) % len(models)]
                    yield Question(
                        table=table, model=model, batch=batch, cluster=f"mixed-s{number}",
                        seed=options.seed, budget_seconds=options.topology_budget,
                    )  # fmt: skip
        elif table == "sfb":
            for model, _ in models:
                for per_host in PER_HOST:
                    for gbit in GBITS:
                        yield Question(
                            table=table, model=model, batch=SMALL_BATCH, seed=options.seed,
                            cluster=f"v100-2x{per_host}-{gbit:g}gbit", per_host=per_host, gbit=gbit,
                        )  # fmt: skip
        else:
            yield from _iteration_questions(options, models)


def _iteration_questions(
    options: argparse.Namespace, models: Sequence[tuple[str, int]]
) -> Iterator[Question]:
    """Each topology with one of the models, in turn; one device leaves nothing to choose."""
    for number in range(options.topologies):
        model, batch = models[number % len(models)]
        cluster = f"mixed-s{number}"
        if find_cluster(cluster).num_devices > 1:
            yield Question(
                table="iterations", model=model, batch=batch, cluster=cluster, seed=options.seed,
                cap=options.cap, num_seeds=options.seeds,
            )  # fmt: skip


def _find_models(names: Sequence[str]) -> list[tuple[str, int]]:
    known = dict(MODELS)
    for name in names:
        if name not in known:
            raise InputError(f"model: must be one of {', '.join(known)}, got {quoted(name)}")
    return [(name, known[name]) for name in names or known]


def summarise(records: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the tables say together."""
    for table in TABLES:
        rows = [each for each in records if each["table"] == table]
        if rows:
            one = {"sfb": _summarise_factors, "iterations": _summarise_iterations}
            yield {
                "table": "summary",
                "of": table,
                "rows": len(rows),
                **one.get(table, _summarise_methods)(rows),
            }


def _summarise_methods(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    models = dict.fromkeys(each["model"] for each in rows)
    gained = {
        model: [
            each["speed_up"]["deploy"]
            for each in rows
            if each["model"] == model and each["speed_up"]["deploy"] is not None
        ]
        for model in models
    }
    return {
        "slower_rows": sum(bool(each["slower_than"]) for each in rows),
        "without_a_plan": sum(not each["fits"]["deploy"] for each in rows),
        "only_deploy_fits": sum(
            each["fits"]["deploy"] and not each["fits"]["data"] for each in rows
        ),
        "mean_speed_up": {
            model: round(geometric_mean(each), 4) if each else None
            for model, each in gained.items()
        },
        "least_speed_up": {model: min(each, default=None) for model, each in gained.items()},
        "longest_search_s": max(each["search_s"]["deploy"] for each in rows),
    }


def _summarise_factors(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    models = dict.fromkeys(each["model"] for each in rows)
    best = {
        model: max(each["speed_up"] for each in rows if each["model"] == model) for model in models
    }
    return {
        "largest_speed_up": best,
        "never_slower": all(each["speed_up"] >= 1 for each in rows),
        "classes": sorted({name for each in rows for name in each["classes"]}),
        "largest_solve_s": max(each["largest_solve_s"] for each in rows),
    }


def _summarise_iterations(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over rows on which either has beaten data parallelism at least once.

    Searches that ended at the cap count as the cap in means; `ratio_where_all_end` is of rows on
    which none did, `ratio_of_all_rows` also of those that neither has ever beaten.
    """
    beaten = [each for each in rows if any(_found(each["network"] + each["uniform"]))]
    ended = [each for each in rows if all(_found(each["network"] + each["uniform"]))]
    summary: dict[str, Any] = {
        "has_network": all(each["has_network"] for each in rows),
        "rows_that_can_be_beaten": len(beaten),
        "rows_where_all_end": len(ended),
    }
    for prior in ("network", "uniform"):
        counts = [mean_iterations(each[prior], each["cap"]) for each in beaten]
        summary |= {
            f"{prior}_mean": round(fmean(counts), 2) if counts else None,
            f"{prior}_median": round(median(counts), 2) if counts else None,
            f"{prior}_never": sum(not all(_found(each[prior])) for each in beaten),
        }
    return summary | {
        "ratio": _ratio(beaten),
        "ratio_where_all_end": _ratio(ended),
        "ratio_of_all_rows": _ratio(rows),
    }


def _ratio(rows: Sequence[dict[str, Any]]) -> float | None:
    """Mean iterations with the network over those without."""
    if not rows:
        return None
    guided, blind = (
        fmean(mean_iterations(each[prior], each["cap"]) for each in rows)
        for prior in ("network", "uniform")
    )
    return round(guided / blind, 4)


def _found(counts: Sequence[int | None]) -> list[bool]:
    return [each is not None for each in counts]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a record."""
    options = _read(arguments)
    records: list[dict[str, Any]] = []
    began = perf_counter()
    try:
        questions = list(list_questions(options))
        for record in _answer_all(questions, options.workers):
            records.append(record)
            print(json.dumps(record) if options.json else as_text(record), flush=True)
            taken = perf_counter() - began
            line = f"{len(records)}/{len(questions)} {record['table']} {record['model']}"
            print(f"{line} on {record['cluster']}, {taken:.0f} s so far", file=sys.stderr)
        for record in summarise(records):
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _answer_all(questions: Sequence[Question], workers: int) -> Iterator[dict[str, Any]]:
    """Records in the order of questions."""
    if workers <= 1:
        yield from map(answer_question, questions)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(answer_question, questions)


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=TABLES, action="append", help="all if not given")
    parser.add_argument("--models", nargs="+", default=[], help="zoo names; all six if not given")
    parser.add_argument("--clusters", nargs="+", default=[], help="of the table of named ones")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds, on named clusters")
    parser.add_argument("--topology-budget", type=float, default=4.0, help="on random ones")
    parser.add_argument("--topologies", type=int, default=100, help="how many random clusters")
    parser.add_argument("--each", type=int, default=2, help="models a random cluster, in turn")
    parser.add_argument("--cap", type=int, default=200, help="of iterations")
    parser.add_argument("--seeds", type=int, default=3, help="of each search that is counted")
    parser.add_argument("--workers", type=int, default=2, help="processes, one row each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    return parser.parse_args(arguments)


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    return "  ".join(f"{key} {value}" for key, value in record.items())


if __name__ == "__main__":
    sys.exit(main())
