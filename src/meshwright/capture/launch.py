"""How fast this host launches kernels, beside the hosts whose figures the cost model has.

The kernels of a tiny transformer's step are done before their host comes to the next ones. What it
takes, over what `meshwright.cost.compute` says that hosts take for it, is the host's share. Its
calls are those that most models make: products, norms, attention, element-wise ops, their
gradients, and an update by `foreach`.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from meshwright.capture.capture import capture
from meshwright.cost.compute import host_seconds
from meshwright.graph.graph import Graph

WARM_UPS = 10
STEPS = 30
LAYERS = 4
WIDTH, TOKENS, SAMPLES = 64, 16, 2


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.first(x)).unflatten(-1, (3, 4, WIDTH // 4)).unbind(2)
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y: torch.Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return y


class Tiny(nn.Module):
    """The model whose steps are timed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_Layer() for _ in range(LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss of no meaning."""
        y: torch.Tensor = self.layers(x).square().mean()
        return y


def tiny_graph() -> Graph:
    """The step as the cost model sees it."""
    with torch.device("meta"):
        model, x = Tiny(), torch.empty(SAMPLES, TOKENS, WIDTH)
    return capture(model, (x,), foreach=True)


def measure_launch_share(device: torch.device) -> float:
    """What this host takes to launch a step, over what hosts are thought to take: the median."""
    model = Tiny().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(SAMPLES, TOKENS, WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()

    return time_steps(step, device) / float(host_seconds(tiny_graph()).sum())


def time_steps(step: Callable[[], None], device: torch.device) -> float:
    """The median seconds until the host is done with a step; each begins on an idle device."""
    times = []
    for number in range(WARM_UPS + STEPS):
        begin = time.perf_counter()
        step()
        end = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= WARM_UPS:
            times.append(end - begin)
    return statistics.median(times)
