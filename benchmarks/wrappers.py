"""What wrappers of PyTorch cost a host: FSDP2's hooks, tensor parallelism by DTensor, collectives.

    python benchmarks/wrappers.py --json

Of a small transformer block on this machine's CPU, in a process group that sends nothing (torch's
`fake` backend), so that Python and dispatch are all that is measured: CPU seconds a layer more than
without wrappers, and in launches: times those of a plain layer's kernel in forward. From these, at
the seconds of a launch in `meshwright.cost.compute`, come the figures of `meshwright.cost.runtime`.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time
from typing import Any

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
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDTH, HEADS, TOKENS, LAYERS, RANKS = 64, 8, 8, 8, 8
KERNELS = 13
"""Of a block's forward: two norms, six products, attention, a copy, GELU and two sums."""
COLUMNS, ROWS = ("q", "k", "v", "up"), ("o", "down")


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then two products."""
        y, (samples, tokens, _) = self.first(x), x.shape
        split = (samples, tokens, -1, WIDTH // HEADS)
        q, k, v = (each(y).view(split).transpose(1, 2) for each in (self.q, self.k, self.v))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.o(attended.reshape(samples, tokens, -1))
        made: torch.Tensor = x + self.down(gelu(self.up(self.second(x))))
        return made


def shard(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Every block by itself, then the whole, as FSDP2's users do."""
    for block in (*model, model):
        fully_shard(block, mesh=mesh)


def divide(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Tensor teams by DTensor, as torchtitan has them."""
    styles: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS}
    styles |= {name: RowwiseParallel() for name in ROWS}
    for block in model:
        parallelize_module(block, mesh, styles)


def layer_seconds(model: nn.Module, repeats: int) -> tuple[float, float]:
    """CPU seconds of a layer's forward and backward, the medians."""
    x, spent = torch.randn(1, TOKENS, WIDTH), []
    for _ in range(repeats):
        start = process_time()
        loss = model(x).sum()
        middle = process_time()
        loss.backward()
        spent.append((middle - start, process_time() - middle))
    forward, backward = zip(*spent[repeats // 4 :], strict=True)
    return statistics.median(forward) / LAYERS, statistics.median(backward) / LAYERS


def call_seconds(call: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of one call, the median."""
    spent = []
    for _ in range(20 * repeats):
        start = process_time()
        call()
        spent.append(process_time() - start)
    return statistics.median(spent)


def transfer(tensor: torch.Tensor) -> None:
    """Send to and receive from a neighbour, as pipeline stages do."""
    calls = [dist.P2POp(each, tensor, 1) for each in (dist.isend, dist.irecv)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a record a wrapper."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=24, metavar="N")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, as always")
    repeats = parser.parse_args(arguments).repeats
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))
    plain = layer_seconds(nn.Sequential(*(Block() for _ in range(LAYERS))), repeats)
    launch = plain[0] / KERNELS
    for name, wrap in (("fully_shard", shard), ("DTensor", divide)):
        model = nn.Sequential(*(Block() for _ in range(LAYERS)))
        wrap(model, mesh)
        more = [a - b for a, b in zip(layer_seconds(model, repeats), plain, strict=True)]
        launches = [round(each / launch, 1) for each in more]
        print(json.dumps({"wrapper": name, "seconds": more, "launches": launches}), flush=True)
    tensor = torch.randn(WIDTH)
    add = call_seconds(lambda: tensor + tensor, repeats)
    for name, call in (("all_reduce", dist.all_reduce), ("send and receive", transfer)):
        seconds = call_seconds(partial(call, tensor), repeats)
        print(json.dumps({"call": name, "seconds": seconds, "adds": round(seconds / add, 1)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
