"""What a GPU's 16-bit products and layers keep up under load that lasts, and at which clock.

    python benchmarks/sustained.py [--seconds S] [--json]

Kernels are calibrated one by one, in bursts that end before the power limit is felt; training goes
on for days. Three loads run for S seconds each on random data: a large product, a feed-forward
block, and a layer in training (attention, norms and gradients included). Prints, for every second,
the rate that a load reaches, with the clock and the power that nvidia-smi reads meanwhile.
"""

import argparse
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

SIZE, ROWS, HIDDEN, HEADS, SEQUENCE = 8192, 8192, 4096, 32, 2048


class Meter:
    """The clock and power of the GPU, read beside the load."""

    def __init__(self) -> None:
        self.read = (0.0, 0.0, 0.0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        query = "--query-gpu=clocks.sm,power.draw,temperature.gpu"
        while not self._is_over.is_set():
            said = subprocess.run(
                ["nvidia-smi", query, "--format=csv,noheader,nounits"],
                capture_output=True, text=True, check=False,
            ).stdout.split("\n")[0]  # fmt: skip
            values = [float(each) for each in said.split(",")]
            self.read = (values[0], values[1], values[2])
            self._is_over.wait(0.2)

    def close(self) -> None:
        """Stop reading."""
        self._is_over.set()
        self._thread.join()


def make_loads() -> dict[str, tuple[float, Callable[[], Any]]]:
    """By name: FLOPs of a call, and the call."""
    device = torch.device("cuda")

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    a, b = draw(SIZE, SIZE), draw(SIZE, SIZE)
    x = draw(ROWS, HIDDEN)
    up, down = draw(HIDDEN, 4 * HIDDEN), draw(4 * HIDDEN, HIDDEN)
    layer = torch.nn.TransformerEncoderLayer(
        HIDDEN, HEADS, 4 * HIDDEN, dropout=0.0, activation="gelu", batch_first=True,
        norm_first=True, device=device, dtype=torch.bfloat16,
    )  # fmt: skip
    rows = draw(ROWS // SEQUENCE, SEQUENCE, HIDDEN)

    def train() -> None:
        layer.zero_grad(set_to_none=True)
        layer(rows).sum().backward()

    products = 24 * ROWS * HIDDEN**2
    attention = 4 * ROWS * SEQUENCE * HIDDEN
    return {
        "product": (2.0 * SIZE**3, lambda: a @ b),
        "feed-forward": (16.0 * ROWS * HIDDEN**2, lambda: functional.gelu(x @ up) @ down),
        "layer": (3.0 * (products + attention), train),
    }


def measure(name: str, flops: float, call: Callable[[], Any], seconds: float) -> Iterator[Any]:
    """A line a second: what the load reaches, and what the GPU says of itself."""
    meter = Meter()
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    began = last = time.perf_counter()
    count = 0
    while last - began < seconds:
        for _ in range(20):
            call()
        count += 20
        torch.cuda.synchronize()
        now = time.perf_counter()
        if now - last >= 1.0 or (last == began and count == 20):
            clock, power, heat = meter.read
            yield {
                "load": name,
                "seconds": round(now - began, 3),
                "tflops": round(flops * count / (now - last) / 1e12, 1),
                "clock_mhz": clock,
                "watts": power,
                "celsius": heat,
            }
            last, count = now, 0
    meter.close()


def main() -> None:
    """Run the loads one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for name, (flops, call) in make_loads().items():
        for line in measure(name, flops, call, arguments.seconds):
            text = " ".join(f"{key} {value}" for key, value in line.items())
            print(json.dumps(line) if arguments.json else text, flush=True)


if __name__ == "__main__":
    main()
