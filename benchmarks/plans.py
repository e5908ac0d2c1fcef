"""Plans of all methods by counted work: what a change of a search changes.

    python benchmarks/plans.py [METHOD ...] [--against FILE] [--json]

One JSON object a plan: the method, model, cluster, seed, options and limits, its step, its bound,
why the search stopped, and the SHA-256 of its file. The searches' clock goes on by the same time
whenever they look at it, and they are told of one core, so that a row is the same on any machine
under any load. All but the rows with few looks have more than they use and end by themselves:
these do not depend on how often a search looks. With `--against` the rows are held against a
recorded file: every row with another plan or a weaker bound is listed with both values, and the
exit status is 1 if a plan is slower, a bound is weaker or a recorded row is missing.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
import timeit  # noqa: F401  (keeps the true clock for Numba, whose compilation is no search)
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

SECONDS_A_LOOK = 2.0**-13
"""A power of two: sums and differences of looks are exact."""
MANY_LOOKS, FEW_LOOKS = 2**26, 2**9
"""More than a search of these cases uses, and where those end that know no other limit."""
TOLERANCE = 1e-9
"""Relative: the same plan's time or bound from sums in another order is no other one."""

GPT = "gpt:hidden=256,heads=4,layers=2,sequence=128,batch=4"
DEEP = "gpt:hidden=256,heads=4,layers=10,sequence=128,batch=8"
"""Of more layers than `hybrid` looks at all plans of."""
MIXTRAL = "mixtral:hidden=256,heads=4,layers=2,sequence=128,intermediate=512,batch=4"
VIT = "vit:hidden=192,heads=3,layers=10,batch=8"
NO_SEARCH = (
    "single", "round-robin", "data", "data-proportional", "horovod", "metis", "heft", "m-sct",
    "consecutive", "pipedream",
)  # fmt: skip
PLACES = (
    ("mlp", "v100-32-x2"), ("alexnet-32", "titan-v-2x2"), ("vgg16-32", "mixed-s2"),
    ("bert-small", "hierarchical-2x2x2-o2"), (GPT, "uniform-4"),
)  # fmt: skip
LAYERED = (
    (GPT, "v100-32-x2"), (DEEP, "hierarchical-2x2x2-o2"), (MIXTRAL, "v100-32-x2"),
    (VIT, "titan-v-2x2"),
)  # fmt: skip
CUT = ("flexflow", "mcts", "hybrid-mcmc")
"""Those that go on for as long as they have time, or longer than is worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a plan is searched for."""

    method: str
    model: str
    cluster: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `meshwright.plan`; a scope by its fields."""

    @property
    def looks(self) -> int:
        """How often the search may look at the clock."""
        return FEW_LOOKS if self.method in CUT else MANY_LOOKS


def list_cases() -> Iterator[Case]:
    """All methods; those that draw at random with several seeds."""
    for (model, cluster), method in product(PLACES, NO_SEARCH):
        yield Case(method=method, model=model, cluster=cluster)
    for (model, cluster), method in product(LAYERED, ("hybrid", "manual", "unaware")):
        yield Case(method=method, model=model, cluster=cluster)
    for (model, cluster), seed in product(LAYERED[:2], (0, 1)):
        yield Case(method="hybrid-mcmc", model=model, cluster=cluster, seed=seed)
    for method, seed in product(("flexflow", "mcts", "deploy", "placement", "mcmc"), (0, 1)):
        yield Case(method=method, model="mlp", cluster="v100-32-x2", seed=seed)
        yield Case(method=method, model="alexnet-32", cluster="titan-v-2x2", seed=seed)
        yield Case(method=method, model="alexnet-32", cluster="uniform-4", seed=seed)
    for model, cluster in PLACES:
        yield Case(method="metis", model=model, cluster=cluster, seed=1)
        yield Case(method="mcmc", model=model, cluster=cluster, seed=2)
        yield Case(method="pipeline", model=model, cluster=cluster)
    yield from _list_options()
    for model, cluster in PLACES[:2]:
        yield Case(method="auto", model=model, cluster=cluster)
    yield Case(method="auto", model=GPT, cluster="v100-32-x2")


def _list_options() -> Iterator[Case]:
    """What a method can be told."""
    small: dict[str, Any] = {"model": "alexnet-32", "cluster": "titan-v-2x2"}
    for mapping in ("consecutive", "p2p-first", "p2p-only", "all-reduce-only", "ensemble"):
        yield Case(method="pipeline", **small, options={"scope": {"mapping": mapping}})
    yield Case(method="pipeline", **small, options={"scope": {"stages": [2]}})
    for method in ("consecutive", "pipedream", "pipeline"):
        yield Case(method=method, **small, options={"microbatches": [4]})
    for model, cluster in (("mlp", "v100-32-x2"), ("alexnet-32", "titan-v-2x2")):
        for scheme in ("quickp", "fusion", "colocrl", "spotlight"):
            options = {"scope": {"scheme": scheme}, "gap": 0.05}
            yield Case(method="quickp", model=model, cluster=cluster, options=options)
    for scheme in ("placeto", "metis", "parmesan"):
        options = {"scope": {"scheme": scheme, "groups": 6, "order": "free"}, "gap": 0.05}
        yield Case(method="quickp", model="mlp", cluster="v100-32-x2", options=options)
    for method in ("data", "heft", "pipeline", "placement", "deploy", "mcmc"):
        yield Case(method=method, **small, options={"sharing": "none"})
    for method in ("single", "data", "heft", "pipeline", "placement"):
        cluster = "rail10-4x2"
        yield Case(method=method, model="mlp", cluster=cluster, options={"allocate": True})
    for runtime in ("megatron", "deepspeed", "fsdp2", "torchtitan"):
        yield Case(method="hybrid", model=GPT, cluster="v100-32-x2", options={"runtime": runtime})
    for scope in ({"tensor": [2]}, {"pipeline": [2], "zero": [1]}, {"mixed": False}):
        yield Case(method="hybrid", model=DEEP, cluster="dgx1", options={"scope": scope})


class CountedClock:
    """A clock that goes on by the same time with every look."""

    looks = 0

    def __call__(self) -> float:
        """The time of a look."""
        self.looks += 1
        return self.looks * SECONDS_A_LOOK


@contextmanager
def counted() -> Iterator[None]:
    """Searches imported within this count looks in place of seconds, and know of one core.

    Processes beside this one would answer sooner or later, as the machine has it.
    """
    before = time.perf_counter, os.sched_getaffinity
    time.perf_counter, os.sched_getaffinity = CountedClock(), lambda _: {0}
    try:
        yield
    finally:
        time.perf_counter, os.sched_getaffinity = before


def find_row(case: Case) -> dict[str, Any]:
    """Search, within `counted`; the plan as a row."""
    # Searches take the clock when they are imported: not before it is replaced.
    from meshwright import PipelineScope, QuickpScope, Scope, load_graph
    from meshwright.cluster.catalogue import load_cluster
    from meshwright.search.portfolio import find_plan

    options = dict(case.options)
    if "scope" in options:
        kinds = {"hybrid": Scope, "pipeline": PipelineScope, "quickp": QuickpScope}
        options["scope"] = kinds[case.method](**options["scope"])
    answer = find_plan(
        load_graph(case.model), load_cluster(case.cluster), case.method, seed=case.seed,
        budget_seconds=case.looks * SECONDS_A_LOOK, **options,
    )  # fmt: skip
    return {
        "method": case.method,
        "model": case.model,
        "cluster": case.cluster,
        "seed": case.seed,
        "options": dict(case.options),
        "limits": {"looks": case.looks},
        "step_seconds": answer.step_seconds if answer.plan else None,
        "bound_seconds": answer.bound_seconds if math.isfinite(answer.bound_seconds) else None,
        "stop": str(answer.stop.value),
        "plan": answer.plan and digest(answer.plan),
    }


def digest(plan: Any) -> str:
    """The SHA-256 of a plan's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a recorded file, without its header."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "method" in line]


def compare(
    recorded: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The rows that differ, with what was recorded; `worse` says in what, and is empty else."""
    now = {_key(row): row for row in found}
    return [
        change for row in recorded if (change := _compare_row(row, now.get(_key(row)))) is not None
    ]


_NAMED = ("method", "model", "cluster", "seed", "options", "limits")


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps([row[name] for name in _NAMED], sort_keys=True)


def _compare_row(
    recorded: Mapping[str, Any], found: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    named = {name: recorded[name] for name in _NAMED}
    if found is None:
        return named | {"worse": ["missing"]}
    was, now = _seconds(recorded, "step_seconds"), _seconds(found, "step_seconds")
    bound, new_bound = _seconds(recorded, "bound_seconds"), _seconds(found, "bound_seconds")
    worse = ["step"] * (now > was * (1 + TOLERANCE)) + ["bound"] * (
        new_bound < bound * (1 - TOLERANCE)
    )
    if not worse and found["plan"] == recorded["plan"]:
        return None
    return named | {
        "worse": worse,
        "has_same_plan": found["plan"] == recorded["plan"],
        "step_seconds": [recorded["step_seconds"], found["step_seconds"]],
        "bound_seconds": [recorded["bound_seconds"], found["bound_seconds"]],
    }


def _seconds(row: Mapping[str, Any], name: str) -> float:
    """None is infinity: no plan, or a proof that there is none."""
    return math.inf if row[name] is None else float(row[name])


def describe(row: Mapping[str, Any]) -> str:
    """A row or a change as a line for people."""
    what = " ".join(f"{row[name]}" for name in ("method", "model", "cluster", "seed"))
    more = {name: each for name, each in row.items() if name not in _NAMED}
    return f"{what} {row['options'] or ''}: {', '.join(f'{k} {v}' for k, v in more.items())}"


def main() -> int:
    """Search, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="of these only (default: of all)")
    parser.add_argument("--against", type=Path, metavar="FILE", help="rows recorded before")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    show = json.dumps if arguments.json else describe
    cases = [each for each in list_cases() if each.method in (arguments.methods or (each.method,))]
    rows: list[dict[str, Any]] = []
    with counted():
        for case in cases:
            began = time.monotonic()
            rows.append(find_row(case))
            print(show(rows[-1]), flush=True)
            print(f"{describe(rows[-1])}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    if arguments.against is None:
        return 0
    wanted = {each.method for each in cases}
    recorded = [row for row in read_rows(arguments.against) if row["method"] in wanted]
    changes = compare(recorded, rows)
    for change in changes:
        print(show(change))
    return int(any(change["worse"] for change in changes))


if __name__ == "__main__":
    sys.exit(main())
