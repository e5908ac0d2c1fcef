"""How an A100's kernels multiply matrices, fitted to measured steps: data, no code.

Two figures are fitted, on 2026-11-15, to half of vTrain's steps on one node (Bang et al., MICRO
2024) by `python benchmarks/vtrain_fit.py measured_single_node.csv`: the share of the peak that
16-bit products reach, and how much longer they take where rows start at any even address. Steps say
no more about single kernels than that: rounding, prologue, the smaller tile and memory are round
figures that hardly move the error (by 0.1 points), all other curves the H200's.
"""

from dataclasses import replace

from meshwright.cost.curve import Grid, MatmulCurve, Roof
from meshwright.cost.h200 import H200

_HALF = MatmulCurve(
    grid=Grid(
        tiles=((256, 128), (128, 128)),
        shares=(0.7456, 0.62),
        rounding=1.0,
        prologue=32.0,
        split_bytes=8.0,
    ),
    roof=Roof(memory=1.25, sharpness=4.0, launch_seconds=5e-6),
    misaligned=(1.635, 1.501, 2.823),
)

A100 = replace(
    H200,
    multiprocessors=108,
    matmul={**H200.matmul, ("bf16", False): _HALF, ("bf16", True): _HALF},
)
