"""Who runs a plan: what overlaps, what blocks, and what a host does for each call.

A plan is predicted for a runtime. Each is described as it runs by default; what its users can
switch on is not looked at. Data only: stage costs, lowering and the search's prices read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How a framework runs a plan of stages, teams and replicas."""

    name: str
    blocks_on_transfers: bool = False
    """Whether a stage waits while it sends, and a transfer until its receiver has come to it. Holds
    for schedules with one stage a device; interleaved and zero-bubble ones send meanwhile."""
    overlaps_gradients: bool = True
    """Whether gradients travel bucket by bucket while the last backward runs, or all after it."""
    overlaps_team_gradients: bool = True
    """Whether a tensor team adds up the gradient of a product's input while that of its weight is
    computed, or after it. This program's own executor runs ops in the order they were traced in,
    and overlaps where that allows it."""
    adds_tied_in_one: bool = False
    """Whether one stage adds up the gradients of weights that it shares with another and sends the
    sum back, or both send theirs meanwhile."""
    gathered_ahead: int = 1
    """For how many layers ZeRO 3 gathers weights ahead of the one that computes."""
    has_fp32_gradients: bool = False
    """Whether gradients of 16-bit weights are added up and travel in fp32."""
    overlap_slowdown: float = 0.0
    """What compute loses of each second in which weights or gradients travel beside it."""
    collective_host_seconds: float = 0.0
    """What a host does for one collective of a team, beyond what it does for a kernel."""
    transfer_host_seconds: float = 0.0
    """Likewise for one transfer to or from a neighbouring stage."""
    shard_host_seconds: float = 0.0
    """Likewise for one layer whose weights ZeRO gathers, or whose gradients it scatters."""


MESHWRIGHT = Runtime(name="meshwright", adds_tied_in_one=True)
"""This program's own executor: everything overlaps, and hosts do nothing that kernels do not."""

_OVERLAP_SLOWDOWN = 0.189
"""The mean over GPT and Llama models under FSDP and pipelines on four A100s, H100s, MI210s and
MI250s: "Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning",
arXiv 2507.03114, abstract."""

# What hosts do for calls is measured in launches of a kernel (`benchmarks/wrappers.py`, torch 2.13,
# CPU time of two runs on a busy machine, which differ by a third; benchmarks/results/2026-11-18-*)
# and given here at the 18 us that a launch takes an H200's host.
_COLLECTIVE_HOST_SECONDS = 53e-6
"""One collective of torch.distributed: 3 launches."""
_TRANSFER_HOST_SECONDS = 53e-6
"""One of a send and a receive that are batched: 3 launches."""
_SHARD_HOST_SECONDS = 0.64e-3
"""Hooks, copies and the collective of fully_shard: 106 launches a layer for two gathers and a
scatter. A user reports 1 ms for a pre-forward on a Xeon (pytorch/pytorch, issue 173680)."""
_DTENSOR_HOST_SECONDS = 0.54e-3
"""A layer of DTensors takes 299 launches more, for ten collectives where rows are divided, too."""

# PyTorch's "FSDP Notes": the next all-gather always overlaps with compute, the first
# never; reduce_dtype of MixedPrecisionPolicy is the weights' unless given. Stages are
# torch.distributed.pipelining's, whose 1F1B waits for each batch of sends and receives.
_FSDP2 = Runtime(
    name="fsdp2",
    blocks_on_transfers=True,
    overlaps_team_gradients=False,
    overlap_slowdown=_OVERLAP_SLOWDOWN,
    collective_host_seconds=_DTENSOR_HOST_SECONDS,
    transfer_host_seconds=_TRANSFER_HOST_SECONDS,
    shard_host_seconds=_SHARD_HOST_SECONDS,
)
RUNTIMES: Mapping[str, Runtime] = MappingProxyType(
    {
        each.name: each
        for each in (
            MESHWRIGHT,
            # NVIDIA/Megatron-LM, megatron/training/arguments.py: plain 1F1B sets overlap_p2p_comm
            # to False, and p2p_communication.py then waits for its batch and synchronises the host;
            # --overlap-grad-reduce is off unless given; with bf16 gradients are accumulated and
            # reduced in fp32. Its FSDP gathers one successor ahead (SchedulePolicy). Teams add up
            # gradients of inputs while those of weights are computed
            # (megatron/core/tensor_parallel/layers.py, async_op=True).
            Runtime(
                name="megatron",
                blocks_on_transfers=True,
                overlaps_gradients=False,
                has_fp32_gradients=True,
                collective_host_seconds=_COLLECTIVE_HOST_SECONDS,
                transfer_host_seconds=_TRANSFER_HOST_SECONDS,
            ),
            # deepspeedai/DeepSpeed, deepspeed/runtime/zero/config.py: overlap_comm is off but for
            # ZeRO 3 (overlap_comm_valid), which also prefetches 5e7 parameters, about a layer
            # (prefetch_bucket_size); runtime/pipe/p2p.py sends with blocking calls. Gradients keep
            # the type of the weights (runtime/engine.py, get_data_types: grad_accum_dtype is None).
            # Its tensor teams (module_inject/layers.py) add up gradients of inputs in autograd
            # functions of their own and wait for them, as GPT-NeoX's do.
            Runtime(
                name="deepspeed",
                blocks_on_transfers=True,
                overlaps_gradients=False,
                overlaps_team_gradients=False,
                collective_host_seconds=_COLLECTIVE_HOST_SECONDS,
                transfer_host_seconds=_TRANSFER_HOST_SECONDS,
            ),
            _FSDP2,
            # pytorch/torchtitan runs FSDP2 and torch.distributed.pipelining; its config reduces
            # gradients in float32 (torchtitan/config/configs.py, mixed_precision_reduce) and leaves
            # enable_async_tensor_parallel off; torchtitan/distributed/fsdp.py prefetches one block.
            replace(_FSDP2, name="torchtitan", has_fp32_gradients=True),
        )
    }
)
"""Those that a plan can be predicted for, by name."""
