"""Predicted against measured layers of a team's member: time and saved memory under tensor widths.

    python benchmarks/layers.py measure -o FILE      on the CUDA machine: torch is enough
    python benchmarks/layers.py predict FILE         anywhere

`measure` runs what one member of a tensor team runs of a few GPT or Llama layers, eagerly, in
bf16: 1/t of the heads and of the features between products, norms and residual sums whole. There is
nobody to talk to, so collectives are left out on both sides. Each row gives milliseconds a layer of
forward, of backward, and of backward with the layer computed again (torch.utils.checkpoint), and
the bytes that a layer keeps for backward. `predict` prices the same by formulas and layer costs
alone; errors of time are over rows in which the device takes longer than its host (both as
predicted), since short kernels wait for their launches.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LAYERS = 6
REPEATS = 12
DEVICE_TYPE = "h200"
SHAPES: tuple[dict[str, Any], ...] = (
    {"architecture": "gpt", "hidden": 2048, "heads": 16, "sequence": 1024},
    {"architecture": "gpt", "hidden": 4096, "heads": 32, "sequence": 2048},
    {"architecture": "gpt", "hidden": 12288, "heads": 96, "sequence": 2048},
    {"architecture": "llama", "hidden": 4096, "heads": 32, "key_heads": 32,
     "intermediate": 11008, "sequence": 4096},
    {"architecture": "llama", "hidden": 8192, "heads": 64, "key_heads": 8,
     "intermediate": 28672, "sequence": 4096},
)  # fmt: skip
WIDTHS = (1, 2, 4, 8)
SAMPLES = (1, 4)


def measure(path: Path) -> None:
    """Time every shape, width and number of samples on this machine's CUDA device."""
    import torch

    rows: list[dict[str, Any]] = [
        {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    ]
    for shape in SHAPES:
        for tensor in WIDTHS:
            for samples in SAMPLES:
                torch.cuda.empty_cache()
                try:
                    found = _measure_row(torch, shape, tensor, samples)
                except torch.cuda.OutOfMemoryError:
                    continue
                rows.append({**shape, "tensor": tensor, "samples": samples, **found})
                print(json.dumps(rows[-1]), flush=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _measure_row(torch: Any, shape: dict[str, Any], tensor: int, samples: int) -> dict[str, float]:
    from torch.utils.checkpoint import checkpoint

    make = {"gpt": _gpt_layer, "llama": _llama_layer}[shape["architecture"]]
    layers = [make(torch, shape, tensor) for _ in range(LAYERS)]
    x = torch.randn(
        samples, shape["sequence"], shape["hidden"], device="cuda", dtype=torch.bfloat16
    ).requires_grad_()

    def run(again: bool) -> tuple[float, float]:
        times = []
        for _ in range(REPEATS):
            start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            start.record()
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=False) if again else layer(y)
            middle.record()
            y.backward(y.detach())
            end.record()
            torch.cuda.synchronize()
            times.append((start.elapsed_time(middle), middle.elapsed_time(end)))
        forward, backward = zip(*times[2:], strict=True)
        return statistics.median(forward) / LAYERS, statistics.median(backward) / LAYERS

    forward, backward = run(again=False)
    _, recomputed = run(again=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = x
    for layer in layers:
        y = layer(y)
    torch.cuda.synchronize()
    saved = (torch.cuda.memory_allocated() - before) / LAYERS
    del y
    return {
        "forward_ms": forward,
        "backward_ms": backward,
        "recomputed_backward_ms": recomputed,
        "saved_bytes": saved,
    }


def _linear(torch: Any, inputs: int, outputs: int, bias: bool) -> Any:
    return torch.nn.Linear(inputs, outputs, bias=bias, device="cuda", dtype=torch.bfloat16)


def _gpt_layer(torch: Any, shape: dict[str, Any], tensor: int) -> Callable[[Any], Any]:
    """GPT-2's block, as Hugging Face writes it, with 1/t of its heads and features."""
    hidden, heads = shape["hidden"], shape["heads"] // tensor
    width, f = hidden // shape["heads"], torch.nn.functional
    norms = [torch.nn.LayerNorm(hidden, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    attend, project = (
        _linear(torch, hidden, 3 * heads * width, True),
        _linear(torch, heads * width, hidden, True),
    )
    up, down = (
        _linear(torch, hidden, 4 * hidden // tensor, True),
        _linear(torch, 4 * hidden // tensor, hidden, True),
    )

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))

    def layer(x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (
            each.view(batch, length, heads, width).transpose(1, 2)
            for each in attend(norms[0](x)).split(heads * width, dim=2)
        )
        y = f.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        y = project(y.transpose(1, 2).reshape(batch, length, heads * width))
        x = f.dropout(y, 0.1) + x
        return x + f.dropout(down(gelu(up(norms[1](x)))), 0.1)

    return layer


def _llama_layer(torch: Any, shape: dict[str, Any], tensor: int) -> Callable[[Any], Any]:
    """Llama's block, likewise; each member has at least one head of keys."""
    hidden, width = shape["hidden"], shape["hidden"] // shape["heads"]
    heads, keys = shape["heads"] // tensor, max(1, shape["key_heads"] // tensor)
    wide, f = shape["intermediate"] // tensor, torch.nn.functional
    scales = [
        torch.ones(hidden, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in "ab"
    ]
    query, key, value = (
        _linear(torch, hidden, count * width, False) for count in (heads, keys, keys)
    )
    project = _linear(torch, heads * width, hidden, False)
    gate, up, down = (
        _linear(torch, hidden, wide, False),
        _linear(torch, hidden, wide, False),
        _linear(torch, wide, hidden, False),
    )
    angles = torch.outer(
        torch.arange(shape["sequence"], device="cuda").float(),
        1.0 / 10000 ** (torch.arange(0, width, 2, device="cuda").float() / width),
    )
    angles = torch.cat((angles, angles), dim=-1)
    cosine, sine = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)

    def norm(x: Any, scale: Any) -> Any:
        wide_x = x.to(torch.float32)
        variance = wide_x.pow(2).mean(-1, keepdim=True)
        return scale * (wide_x * torch.rsqrt(variance + 1e-5)).to(x.dtype)

    def rotate(x: Any) -> Any:
        first, second = x[..., : width // 2], x[..., width // 2 :]
        return x * cosine + torch.cat((-second, first), dim=-1) * sine

    def layer(x: Any) -> Any:
        batch, length, _ = x.shape
        y = norm(x, scales[0])
        q = query(y).view(batch, length, heads, width).transpose(1, 2)
        k = key(y).view(batch, length, keys, width).transpose(1, 2)
        v = value(y).view(batch, length, keys, width).transpose(1, 2)
        q, k = rotate(q), rotate(k)
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=keys < heads)
        x = x + project(y.transpose(1, 2).reshape(batch, length, heads * width))
        y = norm(x, scales[1])
        return x + down(f.silu(gate(y)) * up(y))

    return layer


def predict(path: Path) -> None:
    """Hold the rows of a file against layer costs, and say how far these are off."""
    from meshwright.cluster.devices import DEVICE_TYPES
    from meshwright.cost.layer.price import price_layer
    from meshwright.cost.layer.team import Team
    from meshwright.graph.architecture.shape import Shape
    from meshwright.graph.stack.find import find_layers
    from meshwright.plan.part import Recompute

    errors: dict[str, list[float]] = {}
    device_type = DEVICE_TYPES[DEVICE_TYPE]
    for line in path.read_text().splitlines()[1:]:
        row = json.loads(line)
        sizes = {
            name: row[name]
            for name in ("hidden", "heads", "sequence", "key_heads", "intermediate")
            if name in row
        }
        shape = Shape(architecture=row["architecture"], sizes={**sizes, "layers": 3})
        stack = find_layers(shape.build(batch=row["samples"], precision="bf16"))
        kind = max(stack.kinds, key=lambda each: each.heads)
        team = Team(tensor=row["tensor"])
        plain, again = (
            price_layer(kind, team, each, device_type, row["samples"])
            for each in (Recompute.NONE, Recompute.FULL)
        )
        found = {
            "forward_ms": plain.forward_seconds * 1e3,
            "backward_ms": plain.backward_seconds * 1e3,
            "recomputed_backward_ms": again.backward_seconds * 1e3,
            "saved_bytes": plain.saved_bytes,
        }
        host_ms = plain.host_seconds * 1e3
        is_launch_bound = host_ms > found["forward_ms"] + found["backward_ms"]
        for name, value in found.items():
            if name == "saved_bytes" or not is_launch_bound:
                errors.setdefault(name, []).append(value / row[name] - 1)
        predicted = {f"predicted_{name}": round(value, 6) for name, value in found.items()}
        more = {"predicted_host_ms": round(host_ms, 6), "is_launch_bound": is_launch_bound}
        print(json.dumps({**row, **predicted, **more}))
    print(json.dumps(_summary(errors)))


def _summary(errors: dict[str, list[float]]) -> dict[str, float]:
    summary: dict[str, float] = {"rows_that_devices_bound": len(errors["forward_ms"])}
    for name, each in errors.items():
        summary[f"{name}_mean_error"] = round(statistics.fmean(map(abs, each)), 4)
        worst: float = max(each, key=abs)
        summary[f"{name}_worst_error"] = round(worst, 4)
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("-o", type=Path, required=True, metavar="FILE")
    predicting = commands.add_parser("predict")
    predicting.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "measure":
        measure(options.o)
    else:
        predict(options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
