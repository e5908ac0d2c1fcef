"""Our ZeRO 3 and tensor plans against PyTorch's own, on the same four ranks over the same network.

    python benchmarks/peers.py [--megabits 0,200,500,1000] [--steps N] [--json]

`fully_shard` (FSDP2, a unit a block and one for the rest) against ZeRO 3 of one microbatch;
`parallelize_module` (DTensor, columns and rows) against a tensor team of four; both of two against
both of two. A small causal transformer in fp32 with AdamW, real compute, gloo. Rounds of both take
turns in the same processes, so that whatever else the machine does hits both; a step is the median
over rounds. 0 Mbit/s: the loopback. Others need root, for network namespaces.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F  # noqa: N812

from execution_cases import make_cluster
from execution_ranks import run_on_hosts
from hybrid_plans import hybrid_plan
from language_model import HEAD_SIZE, Language
from meshwright.capture.capture import capture_workload
from meshwright.capture.deferred.deferred import record
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.errors import InputError
from meshwright.execute.group import CommonClock
from meshwright.execute.lowered import Lowered, lower_frozen
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer
from meshwright.network.testbed.apply import built
from rank_seat import take_seat

RANKS = 4
LIMIT_SECONDS = 500.0
WIDTH, LAYERS, WORDS, SEQUENCE, BATCH = 256, 4, 1024, 64, 8
LEARNING_RATE = 1e-3
MEGABITS = (0, 200, 500, 1000)


class Block(nn.Module):
    """Attention and a perceptron, with separate products that PyTorch's styles can divide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer; a member has its own heads."""
        y = self.first(x)
        query, key, value = (
            each(y).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        z = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(z.transpose(1, 2).flatten(2))
        made: torch.Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return made


def make_language() -> Workload:
    """The model and a batch."""
    ids = torch.randint(WORDS, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))
    model = Language(width=WIDTH, layers=LAYERS, words=WORDS, make_block=Block)
    return Workload(name="language", model=model, args=(ids,))


def divide_products(model: Language, mesh: DeviceMesh) -> None:
    """Columns and rows as Megatron-LM has them; the head by columns with its result gathered."""
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel)
    for block in model.blocks:
        plan = {name: style() for name, style in columns.items()}
        parallelize_module(
            block, mesh, plan | {"out": RowwiseParallel(), "down": RowwiseParallel()}
        )


def shard_weights(model: Language, mesh: DeviceMesh) -> None:
    """A unit a block, and one for the rest."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def peer_step(kind: str, rank: int) -> Callable[[], float]:
    """A step of PyTorch's own; returns the loss of this rank's samples."""
    torch.manual_seed(0)
    workload = make_language()
    model = workload.model
    assert isinstance(model, Language)
    tensor = {"zero 3": 1, "tensor 4": 4, "tensor 2, zero 3": 2}[kind]
    mesh = init_device_mesh("cpu", (RANKS // tensor, tensor), mesh_dim_names=("data", "tensor"))
    if tensor > 1:
        divide_products(model, mesh["tensor"])
    if tensor < RANKS:
        shard_weights(model, mesh["data"])
    # Batched updates refuse lists of both kinds.
    groups: dict[type, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(type(parameter.data), []).append(parameter)
    sorts = [{"params": each} for each in groups.values()]
    optimiser = torch.optim.AdamW(sorts, lr=LEARNING_RATE, foreach=True)
    ids = workload.args[0].chunk(RANKS // tensor)[rank // tensor]

    def step() -> float:
        loss = model(ids)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return float(loss.detach())

    return step


PLANS: dict[str, dict[str, Any]] = {
    "zero 3": {"zero": 3},
    "tensor 4": {"tensor": 4},
    "tensor 2, zero 3": {"tensor": 2, "zero": 3},
}


def own_step(lowered: Lowered, rank: int) -> tuple[Callable[[], object], Trainer]:
    """A step of ours."""
    deferred = record(make_language, 0)
    settings = Settings(learning_rate=LEARNING_RATE)
    trainer = Trainer(take_seat(lowered, rank), deferred.workload, settings, real=deferred.real)
    args = tuple(deferred.real(each) for each in deferred.workload.args)
    return lambda: trainer.step(args), trainer


def take_turns(
    kind: str, lowered: Lowered, rounds: int
) -> Callable[[int], tuple[list[float], list[float]]]:
    """Work that runs both, a step each by turns; seconds of each."""

    def work(rank: int) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        theirs = peer_step(kind, rank)
        ours, trainer = own_step(lowered, rank)
        clock = CommonClock()
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(rounds + 2):
            for place, step in enumerate((theirs, ours)):
                began = clock.start_together()
                step()
                dist.barrier()
                seconds[place].append(clock.now() - began)
        trainer.close()
        return seconds[0][2:], seconds[1][2:]

    return work


def measure(kind: str, megabits: int, rounds: int) -> dict[str, Any]:
    """One record."""
    workload = make_language()
    graph = capture_workload(workload, "adamw")
    cluster: Cluster = make_cluster(RANKS, megabits or 10_000, DEVICE_TYPES["cpu"])
    lowered = lower_frozen(graph, cluster, hybrid_plan(graph, cluster, **PLANS[kind]))
    with built(cluster, "peers") if megabits else nullcontext(None) as testbed:
        work = take_turns(kind, lowered, rounds)
        results = run_on_hosts(testbed, RANKS, work, LIMIT_SECONDS, hastens=False)
    theirs, ours = (
        [max(each) for each in zip(*side, strict=True)] for side in zip(*results, strict=True)
    )
    return {
        "plan": kind,
        "peer": "parallelize_module"
        if kind == "tensor 4"
        else "fully_shard"
        if kind == "zero 3"
        else "both",
        "megabits": megabits,
        "peer_seconds": median(theirs),
        "our_seconds": median(ours),
        "ratio": median(ours) / median(theirs),
        "load": os.getloadavg()[0],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the same: rows are JSON anyway")
    parser.add_argument("--steps", type=int, default=20, help="of each side (default: 20)")
    parser.add_argument("--megabits", default=",".join(map(str, MEGABITS)))
    parser.add_argument("--only", default="", help="plans whose names hold this")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # before anything starts threads, which a fork would lose
    try:
        for megabits in map(int, options.megabits.split(",")):
            for kind in PLANS:
                if options.only in kind:
                    print(json.dumps(measure(kind, megabits, options.steps)), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
