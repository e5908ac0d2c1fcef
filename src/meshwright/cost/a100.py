"""How an A100's kernels multiply matrices and attend: data from published kernels, no code.

The share of the peak that 16-bit products reach alone, 0.812, is the mean over five products of a
layer and its head that EleutherAI's cookbook lists for an A100 (`benchmarks/sizing/sample_results`,
2024: 235 to 255 TFLOP/s), each divided by what whole waves of tiles and the start of a tile leave
of it. The best of all shapes that Bekman's search tried (`stas00/ml-engineering`, torch 2.6: 271
TFLOP/s at 1024 x 10240 x 5120) would make it 0.885: it is not used, because it is a maximum. The
peak is at 1410 MHz; under sustained load the power limit leaves 1305 MHz, by which NVIDIA counts
the peak of HPL runs (glennklockwood.com/garden/peak-FLOPS). Training is such a load: vTrain's steps
(Bang et al., MICRO 2024) say 0.7456 for the 0.7515 that this comes to. How much longer products
take where rows start at any even address was fitted, on 2026-11-15, to half of vTrain's steps on
one node (`benchmarks/vtrain_fit.py`). Rounding, prologue, the smaller tile and memory are round
figures that hardly move the error; all other curves are the H200's.

Fused attention makes a score's exponential 16 to a clock and multiprocessor on both chips, other
arithmetic in fp32 64 to a clock for the H200's 128, random bits 64 on both, and products half as
fast (CUDA C++ Programming Guide, throughput of native arithmetic instructions). So a score costs
less in terms of products: with 4 such instructions beside the exponential forward (2 / 16 clocks of
2048 FLOPs for 3 / 32 of 4096) two thirds, with 7 backward 0.73. FlashAttention-2 reaches 73% of the
peak forward and 63% backward at best (Dao 2023, section 4.1); at the full clock this comes to 75
and 67%.
"""

from dataclasses import replace

from meshwright.cost.curve import AttentionCurve, Grid, Math, MatmulCurve, Roof
from meshwright.cost.h200 import H200

_CLOCK = 1305 / 1410
"""What is left of the clock under sustained load."""
_HALF = MatmulCurve(
    grid=Grid(
        tiles=((256, 128), (128, 128)),
        shares=(0.812 * _CLOCK, 0.675 * _CLOCK),
        rounding=1.0,
        prologue=32.0,
        split_bytes=8.0,
    ),
    roof=Roof(memory=1.25, sharpness=4.0, launch_seconds=5e-6),
    misaligned=(1.635, 1.501, 2.823),
)
_FORWARD_SCORES, _BACKWARD_SCORES, _RANDOM_BITS = 2 / 3, 0.73, 0.5
"""What a score and its random number cost in terms of products, over what they cost an H200."""


def _attention(curve: AttentionCurve, kind: Math) -> AttentionCurve:
    scores = _FORWARD_SCORES if kind <= Math.MASKED_ATTENTION else _BACKWARD_SCORES
    return replace(
        curve,
        share=curve.share * _CLOCK,
        score_terms=curve.score_terms * scores,
        dropout_terms=curve.dropout_terms * _RANDOM_BITS,
    )


A100 = replace(
    H200,
    multiprocessors=108,
    matmul={**H200.matmul, ("bf16", False): _HALF, ("bf16", True): _HALF},
    attention={
        key: _attention(curve, key[1]) if key[0] == "bf16" else curve
        for key, curve in H200.attention.items()
    },
)
