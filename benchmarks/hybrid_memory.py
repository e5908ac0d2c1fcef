"""The memory of ranks that train by hybrid plans: the simulator's peak against a tracked one.

Four processes with gloo train by data parallelism and by a pipeline, with every stage of ZeRO and
every kind of recomputation; the cluster is described by the rates that they measure first. On a
GPU, which they share, its allocator says what each holds. On CPUs each follows the storages that
its main thread makes, by a dispatch mode. What collectives over gloo make in the threads of their
lanes is not seen then, since NCCL has no such buffers, nor what kernels allocate and free within
themselves; so what kernels of a GPU work in is left out of the prediction. One JSON object a line.
"""

import argparse
import gc
import json
import os
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from language_model import Language
from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Recompute
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain, stages_plan
from meshwright.search.method.pipeline.consecutive import equal_stages
from meshwright.simulate.simulate import run_program
from rank_seat import take_seat

RANKS, STEPS, MICROBATCHES = 4, 2, 4
OPTIMIZER = "adamw"


class UNet(nn.Module):
    """Three levels with long skips."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(sizes)
        )
        self.middle = nn.Conv2d(sizes[-1], sizes[-1], 3, padding=1)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(sizes))
        self.join = nn.ModuleList(nn.Conv2d(2 * a, a, 3, padding=1) for a in sizes[:-1])
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        y, skips = F.gelu(self.enter(x)), []
        for down in self.down:
            skips.append(y)
            y = F.gelu(down(y))
        y = F.gelu(self.middle(y))
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            y = F.gelu(join(torch.cat((up(y), skips.pop()), 1)))
        return F.l1_loss(self.leave(y), x)


def make_workload(name: str) -> Workload:
    """A model and a batch, the same in every process."""
    torch.manual_seed(0)
    if name == "gpt":
        model = Language(width=256, layers=4, words=512, predicts_next=False)
        return Workload(name=name, model=model, args=(torch.randint(0, 512, (16, 128)),))
    if name == "gpt-small":
        model = Language(width=128, layers=2, words=256, predicts_next=False)
        return Workload(name=name, model=model, args=(torch.randint(0, 256, (8, 64)),))
    return Workload(name=name, model=UNet(), args=(torch.randn(16, 3, 64, 64),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a rank gets when all run at once: what is held at once depends on what takes longer."""

    flops: float
    memory: float
    network: float


def make_cluster(rates: Rates) -> Cluster:
    """Four devices, each joined with every other."""
    kind = DeviceType(
        name="r",
        flops_per_second={"fp32": rates.flops},
        memory_bytes=1e10,
        memory_bytes_per_second=rates.memory,
    )
    names = [f"d{number}" for number in range(RANKS)]
    return Cluster(
        name="ranks",
        types={"r": kind},
        devices=tuple(Device(name=each, type="r", host="h", memory_bytes=1e10) for each in names),
        links=tuple(
            Link(source=one, target=other, bytes_per_second=rates.network, latency_seconds=1e-5)
            for one, other in product(names, names)
            if one != other
        ),
    )


def measure_rates(device: str) -> Rates:
    """Of products, activations and gathers of the models' sizes, as a mean over ranks."""
    left, right = (torch.randn(size, device=device) for size in ((512, 256), (256, 1024)))
    made, given = left @ right, torch.randn(512, 1024, device=device)
    own = torch.randn(2**19, device=device)
    whole = [torch.empty_like(own) for _ in range(RANKS)]
    seconds = torch.tensor(
        [
            _seconds(lambda: torch.mm(left, right, out=made), device),
            _seconds(lambda: F.gelu(given), device),
            _seconds(lambda: dist.all_gather(whole, own), device),
        ]
    )
    dist.all_reduce(seconds)
    flops, memory, network = (seconds / RANKS).tolist()
    return Rates(
        flops=2.0 * 512 * 256 * 1024 / flops,
        memory=2.0 * given.nbytes / memory,
        network=(RANKS - 1) * own.nbytes / network,
    )


def _seconds(call: Callable[[], Any], device: str) -> float:
    for count in (3, 30):  # the first are warm-up
        dist.barrier()
        start = perf_counter()
        for _ in range(count):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = (perf_counter() - start) / count
    return seconds


def make_plan(graph: Graph, cluster: Cluster, kind: str, zero: int, again: Recompute) -> Plan:
    """Four replicas, or two stages of two."""
    if kind == "data":
        devices = tuple(each.name for each in cluster.devices)
        plan = Plan(parts=(Part(ops=graph.op_names, devices=devices),))
    else:
        chain = make_chain(make_instance(graph, cluster), [0])
        ends = equal_stages(chain.seconds, 2)
        homes = np.split(np.arange(RANKS), 2)
        plan = stages_plan(graph, cluster, chain, ends, homes, MICROBATCHES)
    return replace(plan, parts=tuple(replace(p, zero=zero, recompute=again) for p in plan.parts))


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that ops of this thread make, until they are freed."""

    def __init__(
        self, held: Iterable[torch.Tensor] = (), others: Iterable[torch.Tensor] = ()
    ) -> None:
        """`held` counts from the start; `others`, of which views may be made, never."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes, self.peak_bytes = 0.0, 0.0
        self.known = set[int]()
        self.others = [each.untyped_storage() for each in others]
        for each in held:
            self._add(each)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in pytree.tree_leaves(made):
            if isinstance(each, torch.Tensor):
                self._add(each)
        return made

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = int(storage._cdata), storage.nbytes()
        if key in self.known or not size:
            return
        if any(0 <= storage.data_ptr() - each.data_ptr() < each.nbytes() for each in self.others):
            return
        self.known.add(key)
        weakref.finalize(storage, self._free, key, size)
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.bytes -= size


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One rank's memory, in bytes."""

    peak: float
    """The most at once, in a step after the first."""
    held: float
    """What it holds between steps."""


def track_rank(
    rank: int, workload: Workload, graph: Graph, cluster: Cluster, plan: Plan, device: str = "cpu"
) -> Measured:
    """Train on this rank, and follow its memory in the last step."""
    torch.manual_seed(0)
    gc.collect()  # the trainer of the case before
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    seat = take_seat(lower_frozen(graph, cluster, plan), rank, device)
    trainer = Trainer(seat, workload, Settings(optimizer=OPTIMIZER))
    for _ in range(STEPS - 1):
        trainer.step(workload.args)
    tracker = Tracker(trainer.held.state, workload.args)  # the whole batch is the caller's
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        trainer.step(workload.args)
        torch.cuda.synchronize()
        peak = float(torch.cuda.max_memory_allocated() - before)
    else:
        with tracker:
            trainer.step(workload.args)
        peak = tracker.peak_bytes
    held = sum(each.untyped_storage().nbytes() for each in trainer.held.state)
    trainer.close()
    return Measured(peak=peak, held=held)


def predict(
    graph: Graph, cluster: Cluster, plan: Plan, device: str = "cpu"
) -> tuple[tuple[float, ...], list[float]]:
    """Each device's peak, and what it holds between steps."""
    if device == "cpu":
        graph = replace(graph, workspace_bytes=np.zeros(graph.num_ops))
    program = lower_frozen(graph, cluster, plan).program
    return run_program(program, cluster).peak_bytes, program.state_bytes.tolist()


def _work(rank: int, port: int, name: str, cases: list[Any], folder: str, device: str) -> None:
    torch.set_num_threads(1)
    # The library's own workspace is the same whatever is trained.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, rank=rank, world_size=RANKS)
    rates = measure_rates(device)
    (Path(folder) / f"rates-{rank}.json").write_text(json.dumps(asdict(rates)))
    workload, cluster = make_workload(name), make_cluster(rates)
    graph = capture_workload(workload, OPTIMIZER)
    for number, (kind, zero, again) in enumerate(cases):
        plan = make_plan(graph, cluster, kind, zero, again)
        found = track_rank(rank, workload, graph, cluster, plan, device)
        text = json.dumps([found.peak, found.held])
        (Path(folder) / f"{number}-{rank}.json").write_text(text)
        dist.barrier()
    dist.destroy_process_group()


def measure(name: str, cases: list[Any], device: str) -> tuple[Rates, list[list[list[float]]]]:
    """The rates, and by case and rank the peak and what is held between steps."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            _work, (port, name, cases, folder, device), RANKS
        )
        found = [
            [json.loads((Path(folder) / f"{k}-{rank}.json").read_text()) for rank in range(RANKS)]
            for k in range(len(cases))
        ]
        rates = Rates(**json.loads((Path(folder) / "rates-0.json").read_text()))
        return rates, found


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gpt", "unet"])
    parser.add_argument("--kinds", nargs="+", default=["data", "stages"])
    parser.add_argument("--zero", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--recompute", nargs="+", default=[str(each) for each in Recompute])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    again = [Recompute(each) for each in given.recompute]
    cases = list(product(given.kinds, given.zero, again))
    for name in given.models:
        graph = capture_workload(make_workload(name), OPTIMIZER)
        rates, found = measure(name, cases, given.device)
        print(json.dumps({"model": name, "rates": asdict(rates)}), flush=True)
        cluster = make_cluster(rates)
        for case, ranks in zip(cases, found, strict=True):
            plan = make_plan(graph, cluster, *case)
            peaks, held = predict(graph, cluster, plan, given.device)
            errors = [float(a / b[0] - 1) for a, b in zip(peaks, ranks, strict=True)]
            line = {
                "device": given.device,
                "model": name,
                "kind": case[0],
                "zero": case[1],
                "recompute": str(case[2]),
                "predicted_bytes": [round(each) for each in peaks],
                "tracked_bytes": [round(each[0]) for each in ranks],
                "predicted_state_bytes": [round(each) for each in held],
                "state_bytes": [round(each[1]) for each in ranks],
                "worst_error": round(sorted(errors, key=abs)[-1], 4),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
