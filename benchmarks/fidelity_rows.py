"""The rows of `fidelity.py`: a model of the zoo or of `fidelity_models.py`, its size and precision.

A row is NAME/BATCH/SEQUENCE/PRECISION, with "-" for models without a sequence. Precision: fp32,
without TF32 anywhere; tf32: products and convolutions in it; bf16; mixed: fp32 weights under
autocast to bf16.
"""

import contextlib
from collections.abc import Iterator

import torch

from fidelity_models import MODELS, NORMS, build_model
from meshwright.capture.workload import Workload
from meshwright.capture.zoo import build

ROWS = tuple(
    f"{name}/{size}/{precision}"
    for name, size in (
        ("llama-1b", "2/2048"), ("mixtral-s", "4/1024"), ("t5-base", "16/512"), ("gpt2", "8/1024"),
        ("bert-base", "32/256"), ("resnet18", "128/-"), ("resnet50", "64/-"), ("vgg16", "32/-"),
        ("alexnet", "128/-"), ("inception-v3", "32/-"), ("mobilenet-v2", "64/-"),
        ("convnext-t", "32/-"), ("swin-t", "32/-"), ("vit-b", "32/-"),
    )
    for precision in ("fp32", "tf32", "bf16", "mixed")
) + tuple(f"norms-{width}/4/2048/bf16" for width in (1024, 4096, 6144, 12288, 25600))  # fmt: skip
"""What constants are fitted to, with the files of 2026-11-15."""
HELD_OUT = tuple(
    f"{name}/{batch}/{sequence}/{precision}"
    for name, batches, sequence in (
        ("qwen-0.5b", (1, 8), "512"), ("llama-3b", (1, 4), "1024"), ("mistral-s", (2, 8), "1024"),
        ("mixtral-m", (2, 8), "1024"), ("neox-410m", (4, 16), "512"),
        ("roberta-base", (16, 64), "128"), ("t5-large", (4, 16), "256"),
        ("bart-base", (8, 32), "256"), ("resnet34", (16, 128), "-"), ("resnet101", (16, 64), "-"),
        ("vgg19", (16, 64), "-"), ("mobilenet-v1", (32, 128), "-"), ("convnext-s", (16, 64), "-"),
        ("swin-s", (16, 64), "-"), ("deit-s", (32, 128), "-"),
    )
    for batch in batches
    for precision in ("fp32", "tf32", "bf16", "mixed")
)  # fmt: skip
"""What predictions are held against after the last fit."""
LASTING = tuple(
    f"{name}/{size}/{precision}"
    for name, size in (
        ("gpt-2048", "8/2048"), ("gpt-2304", "4/4096"), ("gpt-4096", "4/2048"),
        ("gpt-5120", "4/2048"), ("gpt-7168", "4/2048"), ("gpt-8192", "2/2048"),
        ("llama-4096", "2/4096"), ("llama-8192", "2/4096"),
    )
    for precision in ("bf16", "mixed")
) + tuple(
    f"{name}/{precision}"
    for name in (
        "gpt2/8/1024", "bert-base/64/256", "llama-3b/4/1024", "vit-b/64/-", "resnet50/128/-",
        "t5-base/16/512", "mixtral-s/8/1024",
    )
    for precision in ("tf32", "bf16")
)  # fmt: skip
"""What is trained for longer, to see what the power limit leaves."""
LAUNCHES = tuple(
    f"{name}/1/{'32' if name in ('llama-1b', 'mixtral-s', 't5-base', 'gpt2', 'bert-base') else '-'}"
    f"/{precision}"
    for name in (
        "llama-1b", "mixtral-s", "t5-base", "gpt2", "bert-base", "resnet18", "resnet50", "vgg16",
        "inception-v3", "mobilenet-v2", "convnext-t", "swin-t", "vit-b",
    )
    for precision in ("fp32", "bf16", "mixed")
)  # fmt: skip
"""So few samples that the device waits for its host: what `launch.py` fits."""
FOREACH = "torch.optim.AdamW, foreach"
"""What PyTorch gives on CUDA unasked; files without this word have its fused AdamW."""


def build_row(row: str, device: str = "meta") -> tuple[Workload, torch.dtype | None]:
    """A row's workload, and what it autocasts to."""
    name, batch, sequence, precision = row.split("/")
    length = None if sequence == "-" else int(sequence)
    weights = "bf16" if precision == "bf16" else "fp32"
    if name in MODELS or name.startswith(NORMS):
        dtype = torch.bfloat16 if weights == "bf16" else torch.float32
        workload = build_model(name, int(batch), length or 0, dtype, device)
    else:
        workload = build(name, int(batch), length, weights, device=device)
    return workload, torch.bfloat16 if precision in ("mixed", "amp") else None


@contextlib.contextmanager
def tf32_of(row: str, settings: dict[str, bool] | None = None) -> Iterator[None]:
    """Torch's settings of TF32 as a row, or a file's header, has them."""
    is_tf32 = row.endswith("/tf32")
    chosen = settings or {"matmul": is_tf32, "cudnn": is_tf32}
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = chosen["matmul"], chosen["cudnn"]
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
