"""Times kernels of random sizes on a CUDA device: the measuring half of `calibrate.py`.

Inputs are cold and random (see `meshwright.capture.profile`). The seed fixes the sizes, so that a
sweep can be repeated on another device or with another version of the libraries.
"""

import gzip
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.profile import CACHE_BYTES, time_kernel
from sweep_attention import DTYPES, draw_attention, draw_size, make_calls

Row = dict[str, Any]

SEED = 7
DROPOUT_SEED = 8
CLASS_SEED = 9
WIDTHS = (
    64, 128, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 1600, 2048, 2304, 2560, 3072, 3200,
    4096, 5120, 6400, 8192, 11008, 14336, 16384, 28672, 30522, 32000, 50257, 128256,
)  # fmt: skip
"""Of the hidden layers, projections and vocabularies of common models."""
TOKENS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (4, 8, 16, 32, 64, 128, 256, 512)
IMAGES = (4, 7, 8, 14, 16, 28, 32, 35, 56, 64, 112, 128, 224)
CHANNELS_IN = (
    3, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024, 2048,
)  # fmt: skip
CHANNELS_OUT = (16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048)
WIDE = (4096, 6144, 8192, 10240, 12288, 16384, 20480, 25600)
"""Hidden sizes of models of 7 to 1,000 billion parameters."""
DEPTHWISE = (32, 64, 96, 144, 192, 240, 256, 384, 480, 576, 672, 768, 960, 1152)
MATMUL_FLOPS = {"bf16": 6e12, "fp16": 6e12, "fp32": 6e11, "tf32": 2e12}
"""Larger ones say no more, and take longer."""
BMM_FLOPS = {"bf16": 2e12, "fp32": 3e11}
CONVOLUTION_FLOPS = {"bf16": 3e12, "tf32": 1.5e12, "fp32": 3e11}


def measure(path: Path, *, has_classes: bool = False) -> None:
    """Time everything, writing as it comes, so that what was measured is kept.

    `has_classes`: only what the sweep of 2026-11-15 lacks.
    """
    device = torch.device("cuda")
    header = {
        "kind": "header",
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    began = time.perf_counter()
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write(json.dumps(header) + "\n")
        sweep = Sweep(device)
        for number, row in enumerate(sweep.classes() if has_classes else sweep.rows()):
            file.write(json.dumps(row) + "\n")
            if number % 100 == 0:
                file.flush()
                print(number, row["kind"], f"{time.perf_counter() - began:.1f} s", flush=True)


def _add_often(tensor: Tensor, times: int) -> None:
    for _ in range(times):
        tensor.add_(1)


class Sweep:
    """A seeded walk over sizes; holds the device's buffers and the state of the draws."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flush = torch.empty(CACHE_BYTES, dtype=torch.int8, device=device)
        self.random = random.Random(SEED)

    def rows(self) -> Iterator[Row]:
        """Every row; their order is part of the seed."""
        yield from self.small()
        for precision, number in (("bf16", 500), ("fp32", 320), ("tf32", 120), ("fp16", 40)):
            yield from self.matmuls(precision, number)
        for precision, number in (("bf16", 140), ("fp32", 120)):
            yield from self.batched(precision, number)
        for precision, number in (("tf32", 260), ("bf16", 260), ("fp32", 160)):
            yield from self.convolutions(precision, number)
        for precision, number in (("bf16", 160), ("fp32", 120)):
            yield from self.attentions(precision, number, 0.0)
        # after the rest and by a seed of its own: the sweep of 2026-11-15 had none
        self.random = random.Random(DROPOUT_SEED)
        for precision, number in (("bf16", 80), ("fp32", 60)):
            yield from self.attentions(precision, number, 0.1)

    def classes(self) -> Iterator[Row]:
        """Convolutions as in VGG and of each channel by itself, attention with grouped heads and
        with learnt masks, very large products, and updates by lists of tensors."""
        self.random = random.Random(CLASS_SEED)
        for precision, number in (("fp32", 70), ("tf32", 30), ("bf16", 30)):
            yield from self.convolutions(precision, number, self.draw_plain)
        for precision, number in (("fp32", 60), ("tf32", 30), ("bf16", 60)):
            yield from self.convolutions(precision, number, self.draw_depthwise)
        for precision, number in (("bf16", 80), ("fp32", 60)):
            yield from self.attentions(precision, number, 0.0, is_plain=False)
        for precision, number in (("bf16", 25), ("fp32", 25)):
            yield from self.attentions(precision, number, 0.1, is_plain=False)
        for precision, number in (("bf16", 50), ("tf32", 12), ("fp32", 4)):
            yield from self.matmuls(precision, number, is_large=True)
        yield from self.updates()

    def updates(self) -> Iterator[Row]:
        """AdamW as torch chooses it, on so many parameters of a size."""
        for dtype in ("fp32", "bf16"):
            for number in (8, 64, 256):
                for size in (1 << 10, 1 << 16, 1 << 20, 1 << 22):
                    if number * size > 1 << 29:
                        continue
                    given = [self.normal(size, dtype=DTYPES[dtype]) for _ in range(number)]
                    for each in given:
                        each.requires_grad_().grad = torch.ones_like(each)
                    optimizer = torch.optim.AdamW(given)
                    optimizer.step()
                    yield {
                        "kind": "update", "dtype": dtype, "number": number, "size": size,
                        "seconds": self.time(optimizer.step), "host": self.host(optimizer.step),
                        "bytes": self.bytes(optimizer.step),
                    }  # fmt: skip

    def small(self) -> Iterator[Row]:
        """What an event costs, a launch, and copies of all sizes."""
        one = torch.zeros(1, device=self.device)
        for name, times in (("nothing", 0), ("add_", 1), ("add_x2", 2), ("add_x4", 4)):
            seconds = self.time(partial(_add_often, one, times))
            yield {"kind": "tiny", "name": name, "seconds": seconds}
        for megabytes in (0.01, 0.1, 1, 4, 16, 64, 256, 1024):
            source = torch.zeros(int(megabytes * 2**18), device=self.device)
            target = torch.empty_like(source)
            cold = self.time(partial(target.copy_, source))
            yield {"kind": "copy", "bytes": 2 * source.nbytes, "cold": cold}

    def matmuls(self, precision: str, number: int, *, is_large: bool = False) -> Iterator[Row]:
        """Linear layers, forward and backward: a number of tokens and two widths."""
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        dtype = DTYPES.get(precision, torch.float32)
        while number:
            draw = self.random
            tokens = draw.choice(
                [self.pick(8, 65536, 8), self.pick(128, 65536, 64), draw.choice(TOKENS)]
            )
            first, second = self.width(), self.width()
            if is_large:
                tokens, first = draw.choice(TOKENS[3:7]), draw.choice(WIDE)
                second = first * draw.choice([1, 3, 4]) // draw.choice([1, 1, 2, 4, 8])
            layout = draw.choice(["nt", "nn", "tn", "ntb"])
            m, n, k = (first, second, tokens) if layout == "tn" else (tokens, first, second)
            held = (m * k + k * n + m * n) * dtype.itemsize
            most = MATMUL_FLOPS[precision] * (8 if is_large else 1)
            if not 1e6 <= 2.0 * m * n * k <= most or held > (3e10 if is_large else 3e9):
                continue
            left, right = self.factors((), m, n, k, layout, dtype)
            bias = self.normal(n, dtype=dtype)
            run = partial(torch.addmm, bias) if layout == "ntb" else torch.mm
            seconds = self.time(partial(run, left, right))
            yield {
                "kind": "matmul", "dtype": precision, "layout": layout, "m": m, "n": n, "k": k,
                "count": 1, "seconds": seconds,
            }  # fmt: skip
            number -= 1

    def batched(self, precision: str, number: int) -> Iterator[Row]:
        """Many small products at once."""
        torch.backends.cuda.matmul.allow_tf32 = False
        dtype = DTYPES[precision]
        while number:
            draw = self.random
            count = self.pick(4, 4096, 1)
            m = self.pick(16, 2048, draw.choice([1, 8, 16]))
            n = self.pick(16, 2048, draw.choice([1, 8, 16]))
            k = self.pick(16, 512, draw.choice([8, 16]))
            held = count * (m * k + k * n + m * n) * dtype.itemsize
            if 2.0 * count * m * n * k > BMM_FLOPS[precision] or held > 2e9:
                continue
            layout = draw.choice(["nt", "nn", "tn"])
            left, right = self.factors((count,), m, n, k, layout, dtype)
            yield {
                "kind": "bmm", "dtype": precision, "layout": layout, "m": m, "n": n, "k": k,
                "count": count, "seconds": self.time(partial(torch.bmm, left, right)),
            }  # fmt: skip
            number -= 1

    def convolutions(
        self, precision: str, number: int, drawn: Callable[[str], Row] | None = None
    ) -> Iterator[Row]:
        """Of images, forward, backward, and for some the weight's gradient alone."""
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        dtype = DTYPES.get(precision, torch.float32)
        while number:
            row = (drawn or self.draw_convolution)(precision)
            batch, size, made, channels, width, window, stride, groups = list(row.values())[2:]
            flops = 2.0 * batch * made * made * width * (channels // groups) * window * window
            largest = max(batch * channels * size * size, batch * width * made * made)
            if (
                not (1e7 if drawn else 1e8)
                <= flops
                <= CONVOLUTION_FLOPS[precision] * (2 if drawn else 1)
                or largest * dtype.itemsize > 1.2e9
            ):
                continue
            x = self.normal(batch, channels, size, size, dtype=dtype)
            w = self.normal(width, channels // groups, window, window, dtype=dtype)
            gradient = self.normal(batch, width, made, made, dtype=dtype)
            common = ([stride] * 2, [window // 2] * 2, [1, 1], False, [0, 0], groups)

            def forward(x: Tensor = x, w: Tensor = w, common: Any = common) -> object:
                return torch.ops.aten.convolution(x, w, None, *common)

            def backward(wanted: list[bool], args: Any = (gradient, x, w, None, *common)) -> object:
                return torch.ops.aten.convolution_backward(*args, wanted)

            row["forward"] = self.time(forward)
            row["backward"] = self.time(partial(backward, [True, True, False]))
            row["weight"] = None
            if self.random.random() < 0.3:
                row["weight"] = self.time(partial(backward, [False, True, False]))
            if drawn:
                row["input"] = self.time(partial(backward, [True, False, False]))
                row["weight"] = self.time(partial(backward, [False, True, False]))
                row["bytes"] = [
                    self.bytes(each)
                    for each in (
                        forward,
                        partial(backward, [True, False, False]),
                        partial(backward, [False, True, False]),
                    )
                ]
            yield row
            number -= 1

    def draw_convolution(self, precision: str) -> Row:
        """Sizes; some are depthwise."""
        draw = self.random
        batch, size = draw.choice(BATCHES), draw.choice(IMAGES)
        channels, width = draw.choice(CHANNELS_IN), draw.choice(CHANNELS_OUT)
        window, stride, groups = draw.choice([1, 1, 3, 3, 3, 5, 7]), draw.choice([1, 1, 1, 2]), 1
        if draw.random() < 0.08:
            width = groups = channels
            window = draw.choice([3, 5, 7])
        if window == 7 and draw.random() < 0.3:
            stride = 4
        made = (size + 2 * (window // 2) - window) // stride + 1
        return {
            "kind": "conv", "dtype": precision, "N": batch, "hw": size, "ho": made, "ci": channels,
            "co": width, "ks": window, "stride": stride, "groups": groups,
        }  # fmt: skip

    def draw_plain(self, precision: str) -> Row:
        """Windows of three at stride one, as all of VGG's."""
        draw = self.random
        size = draw.choice([14, 28, 32, 56, 64, 112, 224])
        channels = draw.choice([3, 64, 64, 128, 128, 256, 256, 512, 512])
        width = draw.choice([64, 128, 256, 512])
        return self.convolution(
            precision, draw.choice([4, 8, 16, 32, 64, 128]), size, channels, width, 3, 1, 1
        )

    def draw_depthwise(self, precision: str) -> Row:
        """A window for each channel, as of MobileNet, EfficientNet and ConvNeXt."""
        draw = self.random
        size, channels = draw.choice([7, 14, 28, 56, 112]), draw.choice(DEPTHWISE)
        window, stride = draw.choice([3, 3, 5, 7, 7]), draw.choice([1, 1, 2])
        batch = draw.choice([8, 16, 32, 64, 128])
        return self.convolution(
            precision, batch, size, channels, channels, window, stride, channels
        )

    def convolution(
        self, precision: str, batch: int, size: int, channels: int, width: int, window: int,
        stride: int, groups: int,
    ) -> Row:  # fmt: skip
        """A row without times."""
        made = (size + 2 * (window // 2) - window) // stride + 1
        return {
            "kind": "conv", "dtype": precision, "N": batch, "hw": size, "ho": made, "ci": channels,
            "co": width, "ks": window, "stride": stride, "groups": groups,
        }  # fmt: skip

    def attentions(
        self, precision: str, number: int, dropout: float, *, is_plain: bool = True
    ) -> Iterator[Row]:
        """Attention, plain, causal, and with a mask a sample or one for all; and where it is not
        plain, with fewer heads of keys, or a mask of each head that is learnt."""
        while number:
            case = draw_attention(self.random, precision, dropout, is_plain=is_plain)
            calls = None if case is None else make_calls(case, self.normal)
            if case is None or calls is None:
                continue
            more: Row = {}
            if not is_plain:
                taken = [self.bytes(calls.forward), self.bytes(calls.backward)]
                more = {"groups": case.groups, "choice": calls.choice, "bytes": taken}
            yield {
                "kind": "attention", "dtype": precision, "B": case.batch, "H": case.heads,
                "S": case.queries, "Sk": case.keys, "d": case.size, "how": case.how,
                "dropout": dropout, "forward": self.time(calls.forward),
                "backward": self.time(calls.backward), **more,
            }  # fmt: skip
            number -= 1

    def factors(
        self, batch: tuple[int, ...], m: int, n: int, k: int, layout: str, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Both matrices; a t at its place in the layout: stored transposed."""
        left = (
            self.normal(*batch, k, m, dtype=dtype).mT
            if layout[0] == "t"
            else self.normal(*batch, m, k, dtype=dtype)
        )
        right = (
            self.normal(*batch, n, k, dtype=dtype).mT
            if layout[1] == "t"
            else self.normal(*batch, k, n, dtype=dtype)
        )
        return left, right

    def width(self) -> int:
        """Mostly one of a common model."""
        if self.random.random() < 0.7:
            return self.random.choice(WIDTHS)
        return self.pick(16, 16384, self.random.choice([1, 8, 8, 64]))

    def pick(self, low: int, high: int, multiple: int) -> int:
        """Draw a size; see `draw_size`."""
        return draw_size(self.random, low, high, multiple)

    def normal(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Random numbers: products of equal ones draw less power and run faster."""
        return torch.randn(*shape, dtype=torch.float32, device=self.device).to(dtype)

    def bytes(self, run: Callable[[], object]) -> int | str:
        """What a run takes at its peak, its results among it."""
        try:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            made = run()
            torch.cuda.synchronize()
            del made
            return torch.cuda.max_memory_allocated() - before
        except Exception as error:
            torch.cuda.empty_cache()
            return str(error)[:100]

    def host(self, run: Callable[[], object]) -> float:
        """Seconds until the host has launched a run; the median of several."""
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return sorted(times)[3]

    def time(self, run: Callable[[], object]) -> float | str:
        """Seconds, or why there are none: one kernel that fails must not end a sweep."""
        try:
            return time_kernel(run, self.flush)
        except Exception as error:
            torch.cuda.empty_cache()
            return str(error)[:100]
