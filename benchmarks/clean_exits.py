"""Starts many short runs beside busy loops on all cores, and looks at how every process ends.

    python benchmarks/clean_exits.py [--runs N] [--at-once N] [--ways W,..] [--json]

A rank that still has threads inside torch when its interpreter ends is aborted ("terminate called
without an active exception"), which happens on busy machines only. Runs of two to four ranks take
turns: plans of ops placed one by one, pipelines, replicas, tensor teams with ZeRO; run by
`meshwright run --emulate`, by `meshwright run --model`, by a rank that ends as Python ends, and by
a script of one's own (`mw.training`). Ranks are forked from a process that has imported everything
and end as any other Python does. A run is clean where all exit codes are 0 and nothing is said.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch._dynamo  # tracing imports it
from torch import nn
from torch.nn import functional as F  # noqa: N812

import meshwright as mw
from auto_runs import show
from hybrid_plans import hybrid_plan
from meshwright.cli import main as run_meshwright
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.execute.session import run_rank
from meshwright.execute.settings import Settings
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, place_ops
from meshwright.planned import read_plan_folder
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain, stages_plan
from meshwright.search.method.pipeline.consecutive import equal_stages
from meshwright.simulate.simulate import simulate

BATCH, WIDTH, BLOCKS, STEPS = 8, 16, 2, 2
MODEL = "clean_exits:factory"
ABORT = "terminate called"

Record = dict[str, Any]


class Block(nn.Module):
    """A perceptron around a residual connection, which a tensor team can divide."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        made: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return made


class Network(nn.Module):
    """Blocks one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean of squares."""
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return F.mse_loss(self.leave(x), y)


def factory() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and a batch."""
    return Network(), (torch.randn(BATCH, 4, WIDTH), torch.randn(BATCH, 4, WIDTH))


def _placed(graph: Graph, cluster: Cluster) -> Plan:
    """Ops in turn on one device and on the other, those of one group together."""
    groups = {name: number for number, name in enumerate(dict.fromkeys(graph.group))}
    places = [groups[each] % cluster.num_devices for each in graph.group]
    return place_ops(graph.op_names, places, [device.name for device in cluster.devices])


def _pipeline(graph: Graph, cluster: Cluster) -> Plan:
    chain = make_chain(make_instance(graph, cluster), [0])
    ends = equal_stages(np.ones(chain.num_blocks), cluster.num_devices)
    homes = np.split(np.arange(cluster.num_devices), cluster.num_devices)
    plan = stages_plan(graph, cluster, chain, ends, homes, 2)
    return replace(plan, schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2))


def _data(graph: Graph, cluster: Cluster) -> Plan:
    names = tuple(device.name for device in cluster.devices)
    return Plan(parts=(Part(ops=graph.op_names, devices=names),), schedule=None)


def _hybrid(graph: Graph, cluster: Cluster) -> Plan:
    return hybrid_plan(graph, cluster, tensor=2, zero=3)


PLANS: dict[str, tuple[int, Callable[[Graph, Cluster], Plan]]] = {
    "placed": (2, _placed),
    "pipeline": (3, _pipeline),
    "data": (2, _data),
    "tensor and ZeRO": (4, _hybrid),
}
"""Plans by name, with their number of ranks."""
WAYS = ("emulated", "rank", "emulated", "rank", "script", "trained")
"""How runs are run, in turn: `emulated` and `trained` by the command, `rank` by the function that
the command calls, `script` by `mw.training`. The last two end as Python ends."""


def write_plans(folder: Path) -> None:
    """All plans, as `meshwright plan -o` writes them."""
    model, args = factory()
    graph = mw.capture(model, args)
    for name, (ranks, make) in PLANS.items():
        cluster = find_cluster(f"cpu-x{ranks}")
        own = folder / name
        own.mkdir()
        graph.save(own / "graph.json.gz")
        cluster.save(own / "cluster.yaml")
        make(graph, cluster).save(own / "plan.json")


def take_part(way: str, folder: Path) -> int:
    """What one rank does; its exit code."""
    if way in ("emulated", "trained"):
        how = ["--emulate"] if way == "emulated" else ["--model", MODEL]
        return run_meshwright(["run", str(folder), *how, "--steps", str(STEPS), "--json"])
    graph, cluster, plan = read_plan_folder(folder)
    if way == "rank":
        run_rank(graph, cluster, plan, None, Settings(steps=STEPS), lambda _: None)
        return 0
    torch.manual_seed(0)
    model, args = factory()
    with mw.training(plan, cluster, model, args=args) as trainer:
        for _ in range(STEPS):
            trainer.step(*args)
        trainer.losses()
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A run under way: its ranks' processes and the files that they write to."""

    number: int
    plan: str
    way: str
    ranks: dict[int, Path]
    began: float


def start_run(number: int, folder: Path, ways: Sequence[str]) -> Started:
    """Fork the ranks of a run; each ends as Python ends, after its part."""
    name = list(PLANS)[number % len(PLANS)]
    way = ways[number // len(PLANS) % len(ways)]
    count, ranks = PLANS[name][0], {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for rank in range(count):
        path = folder / f"{number}-{rank}"
        process = os.fork()
        if not process:
            _enter_rank(path, rank, count, port)
            sys.exit(take_part(way, folder / name))
        ranks[process] = path
    return Started(number=number, plan=name, way=way, ranks=ranks, began=time.monotonic())


def _enter_rank(path: Path, rank: int, count: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "MESHWRIGHT_INTERFACES": "",
    }
    for number, ending in ((1, "out"), (2, "said")):
        file = os.open(f"{path}-{ending}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(file, number)


def finish_run(started: Started) -> Record:
    """Wait for the ranks of a run; how they ended, and all that they said."""
    codes, said = [], []
    for process, path in started.ranks.items():
        _, status = os.waitpid(process, 0)
        codes.append(os.waitstatus_to_exitcode(status))
        said += Path(f"{path}-said").read_text().splitlines()
    return {
        "run": started.number,
        "plan": started.plan,
        "way": started.way,
        "codes": codes,
        "said": said,
        "seconds": round(time.monotonic() - started.began, 1),
    }


@contextmanager
def busy_cores() -> Iterator[int]:
    """While this holds, there is a busy loop for each core; a forked rank that ends leaves them."""
    count, owner = os.cpu_count() or 1, os.getpid()
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield count
    finally:
        for each in loops if os.getpid() == owner else ():
            each.kill()
            each.wait()


def run_all(folder: Path, num_runs: int, at_once: int, ways: Sequence[str]) -> Iterator[Record]:
    """Run by run, so many at a time."""
    under_way: list[Started] = []
    for number in range(num_runs):
        under_way.append(start_run(number, folder, ways))
        if len(under_way) == at_once:
            yield finish_run(under_way.pop(0))
    for each in under_way:
        yield finish_run(each)


def summarise(records: Sequence[Record], busy_loops: int) -> Record:
    """All runs in one object."""
    codes = Counter(code for each in records for code in each["codes"])
    return {
        "runs": len(records),
        "ranks": codes.total(),
        "busy_loops": busy_loops,
        "codes": {str(code): count for code, count in sorted(codes.items())},
        "aborted": sum(ABORT in line for each in records for line in each["said"]),
        "clean": sum(not any(each["codes"]) and not each["said"] for each in records),
        "by_way": dict(Counter(each["way"] for each in records)),
        "by_plan": dict(Counter(each["plan"] for each in records)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a record a run, then a summary; 1 where a process did not end cleanly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas, taken in turn")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    records, ways = [], options.ways.split(",")
    for way in ways:
        if way not in WAYS:
            parser.error(f"--ways: must be of {', '.join(sorted(set(WAYS)))}, got {way}")
    folder = Path(tempfile.mkdtemp(prefix="meshwright-exits-"))
    # In a process of its own: what traces starts threads, which forks would lack.
    code = f"import clean_exits, pathlib; clean_exits.write_plans(pathlib.Path({str(folder)!r}))"
    paths = [str(Path(__file__).resolve().parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    for name in PLANS:  # loads compiled kernels, so that ranks need not
        simulate(*read_plan_folder(folder / name), granularity="op")
    with busy_cores() as busy_loops:
        for record in run_all(folder, options.runs, options.at_once, ways):
            records.append(record)
            show(record, options.json)
    summary = summarise(records, busy_loops)
    show(summary, options.json)
    return int(summary["clean"] < summary["runs"])


if __name__ == "__main__":
    sys.exit(main())
