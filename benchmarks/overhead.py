"""What a run takes besides computing and communicating, on two ranks of this machine.

    python benchmarks/overhead.py [--steps N] [--json]

A language model trains by a pipeline, by replicas and by ZeRO 3, for real, through gloo. Of every
step a rank's time is divided: in functions of segments (compute), in tensors that are packed,
joined and unpacked for communication (moving), in torch's calls that start transfers (starting), in
waits for others (waiting), and the rest, which is ours: overhead. Shares are of the step; the
median of all steps counts, of the rank that has the larger share of overhead.
"""

import argparse
import json
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing

from language_model import Language
from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.cluster.build import fully_connected
from meshwright.cluster.cluster import Cluster
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer
from meshwright.execute.walk import ProgramWalk
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain, stages_plan
from meshwright.search.method.pipeline.consecutive import equal_stages
from rank_seat import take_seat

RANKS, SAMPLES, TOKENS, WORDS, WIDTH, LAYERS = 2, 8, 64, 512, 256, 4
WARM_UP = 3


def make_workload() -> Workload:
    """The model and a batch."""
    torch.manual_seed(0)
    model = Language(width=WIDTH, layers=LAYERS, words=WORDS)
    return Workload(
        name="language", model=model, args=(torch.randint(0, WORDS, (SAMPLES, TOKENS)),)
    )


def make_plans(graph: Graph, cluster: Cluster) -> dict[str, Plan]:
    """The plans, by name."""
    names = tuple(each.name for each in cluster.devices)
    chain = make_chain(make_instance(graph, cluster), [0])
    ends = equal_stages(np.ones(chain.num_blocks), RANKS)
    stages = stages_plan(graph, cluster, chain, ends, np.split(np.arange(RANKS), RANKS), 4)
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=4)
    data = Part(ops=graph.op_names, devices=names)
    return {
        "pipeline": replace(stages, schedule=schedule),
        "data": Plan(parts=(data,)),
        "zero 3": Plan(parts=(replace(data, zero=3),)),
    }


class Spent:
    """Seconds of the main thread by what it did; what is called inside is not counted again."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.main, self.inside = threading.get_ident(), 0.0

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time noted."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.main:
                return function(*args, **kwargs)
            before, self.inside = self.inside, 0.0
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - start
                self.seconds[kind] += taken - self.inside
                self.inside = before + taken

        return run


def watch(walk: ProgramWalk, spent: Spent) -> None:
    """Note what a walk does from now on."""
    worker: Any = walk.worker
    worker.functions = {key: spent.timed("compute", each) for key, each in worker.functions.items()}
    for name in ("pack", "join", "collect", "accept", "empty"):
        setattr(worker, name, spent.timed("moving", getattr(worker, name)))
    walk.sends.wait = spent.timed("waiting", walk.sends.wait)  # type: ignore[method-assign]
    exchange: Any = type(walk.exchange)
    for name in ("send", "receive"):
        setattr(exchange, name, spent.timed("starting", getattr(exchange, name)))
    wait_for = walk._wait_for

    def note(instruction: int, pending: Any, peer: int) -> None:
        pending.work = Waited(pending.work, spent)
        pending.finish = spent.timed("moving", pending.finish)
        wait_for(instruction, pending, peer)

    walk._wait_for = note  # type: ignore[method-assign]


class Waited:
    """Communication whose waits are noted."""

    def __init__(self, work: Any, spent: Spent) -> None:
        self.work, self.wait = work, spent.timed("waiting", work.wait)

    @property
    def is_done(self) -> bool:
        """As that of the work."""
        return bool(self.work.is_done)


def run_rank(rank: int, port: int, name: str, graph: Graph, steps: int, results: Any) -> None:
    """Train, and tell how the time was spent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    cluster = fully_connected(num_devices=RANKS, device_type="h100", bytes_per_second=1e9)
    workload = make_workload()
    lowered = lower_frozen(graph, cluster, make_plans(graph, cluster)[name])
    trainer = Trainer(take_seat(lowered, rank), workload, Settings())
    for _ in range(WARM_UP):
        trainer.step(workload.args)
    trainer.gather_losses()
    spent, rows = Spent(), []
    watch(trainer.walk, spent)
    for _ in range(steps):
        spent.seconds.clear()
        start = time.perf_counter()
        trainer.step(workload.args)
        total = time.perf_counter() - start
        known = dict(spent.seconds)
        rows.append({**known, "total": total, "overhead": total - sum(known.values())})
    trainer.gather_losses()
    trainer.close()
    dist.destroy_process_group()
    results.put((rank, rows))


def measure(name: str, graph: Graph, steps: int) -> dict[str, Any]:
    """How the steps are spent of the rank with more overhead, by the median of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=run_rank, args=(rank, port, name, graph, steps, results))
        for rank in range(RANKS)
    ]
    for each in processes:
        each.start()
    found = [results.get()[1] for _ in processes]
    for each in processes:
        each.join()

    def middle(rows: list[dict[str, float]], kind: str) -> float:
        return median(row.get(kind, 0.0) for row in rows)

    kinds = ("total", "compute", "moving", "starting", "waiting", "overhead")
    worst = max(found, key=lambda rows: middle(rows, "overhead") / middle(rows, "total"))
    spent = {f"{kind}_ms": round(middle(worst, kind) * 1e3, 3) for kind in kinds}
    share = round(spent["overhead_ms"] / spent["total_ms"], 4)
    return {"plan": name, "steps": steps, **spent, "overhead_share": share}


def main() -> None:
    """Print a line a plan."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="a line of JSON each")
    asked = parser.parse_args()
    graph = capture_workload(make_workload(), "adamw")
    cluster = fully_connected(num_devices=RANKS, device_type="h100", bytes_per_second=1e9)
    for name in make_plans(graph, cluster):
        found = measure(name, graph, asked.steps)
        if asked.json:
            print(json.dumps(found), flush=True)
        else:
            print("  ".join(f"{key} {value}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
