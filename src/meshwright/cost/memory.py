"""How much of a device's memory a plan may fill, and what is in it beside the allocator's peak.

Knows groups and pairs of devices that talk, no plans. The figures are those of CUDA, NCCL and
PyTorch; devices whose libraries keep nothing (`library_bytes` 0: CPUs, TPUs, types of round
figures) and graphs that were not captured have none of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.units import GIB, MIB

MEMORY_MARGIN = 0.05
"""Part of a device's memory that plans of captured graphs leave free, at the least."""

PEAK_ERROR = 0.03
"""Part of a device's memory by which a peak may be above its prediction.

Of 57 steps measured on an H200 (benchmarks/results) the predicted peak was 3.0% below the
allocator's at most, 0.5% off on average.
"""

SMALLEST_BYTES = 4.0 * GIB
"""A device that is said to have less is an example's, whose memory is the allocator's alone: no
accelerator of the catalogue has less than 7.8 GiB."""

CONTEXT_BYTES = 400e6
"""A CUDA context with the kernels that a step loads and the handles of libraries: around 400 MB
since CUDA 11.7 loads kernels when they are first used (github.com/pytorch/pytorch/issues/109888).
Workspaces of cuBLAS and cuDNN are the allocator's, and in its peak."""

PAIR_COMMUNICATOR_BYTES, COMMUNICATOR_BYTES = 544.0 * MIB, 688.0 * MIB
"""Buffers of a NCCL communicator of two devices, and of more: measured among four A100 with NVLink
(github.com/NVIDIA/nccl/issues/964). They grow with the channels, of which slower links have fewer,
and no more beyond two hosts (issue 986): an upper estimate elsewhere."""

PEER_BYTES = 3.28e9 / 7
"""Connections by which a device sends to a peer of its host and receives from it: the first
all-to-all among eight H100 took 3.28 GB on each (github.com/NVIDIA/nccl/issues/1685)."""

NETWORK_BYTES = 512.0 * MIB
"""The buffer that sends to all peers in other hosts share (github.com/NVIDIA/nccl/issues/1450), as
NCCL 2.28 allocates it (issue 2363)."""

RESERVE = 0.106
"""What PyTorch's allocator has reserved beyond its peak, as a part of the peak: the median of the
277 steps measured on an H200; a tenth is above 27%, and all above 30% have peaks below 10 GB. It
gives back what it does not use before it fails, so that it never takes more than there is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Footprint:
    """Memory in use on each device, in bytes; the four add up to what nvidia-smi shows."""

    peak_bytes: Floats
    """The most bytes that PyTorch's allocator has handed out at once."""
    context_bytes: Floats
    collective_bytes: Floats
    """The buffers that NCCL keeps for its communicators."""
    reserve_bytes: Floats
    """What the allocator has reserved and does not use."""
    usable_bytes: Floats
    """What the peak may be."""

    @property
    def shown_bytes(self) -> Floats:
        """As nvidia-smi shows it."""
        held = self.peak_bytes + self.context_bytes
        return held + self.collective_bytes + self.reserve_bytes


def find_footprint(
    graph: Graph, cluster: Cluster, peak_bytes: Sequence[float], collective: Floats
) -> Footprint:
    """What devices hold whose allocators have these peaks, and NCCL so much on each."""
    peak, driver = np.array(peak_bytes), context_bytes(graph, cluster)
    context = np.where(peak > 0, driver, 0.0)
    left = np.maximum(cluster.memory_bytes - peak - context - collective, 0.0)
    return Footprint(
        peak_bytes=peak,
        context_bytes=context,
        collective_bytes=collective,
        reserve_bytes=np.where(driver > 0, np.minimum(RESERVE * peak, left), 0.0),
        usable_bytes=usable_bytes(graph, cluster, collective),
    )


def usable_bytes(graph: Graph, cluster: Cluster, collective: Floats | float = 0.0) -> Floats:
    """What the allocator's peak may be on each device; all of it for graphs of round figures."""
    memory = cluster.memory_bytes
    if not graph.calls.any():
        return memory
    beside = context_bytes(graph, cluster) + collective
    return np.maximum(memory - kept_bytes(memory, beside), 0.0)


def kept_bytes(memory: Floats | float, beside: Floats | float) -> Floats:
    """What is kept free of a memory: the margin, or what may be `beside` a peak that is higher than
    predicted, if that is more. The reserve is not, since the allocator gives it back."""
    return np.maximum(MEMORY_MARGIN * memory, PEAK_ERROR * memory + beside)


def context_bytes(graph: Graph, cluster: Cluster) -> Floats:
    """What the driver and libraries take on each device that is used at all."""
    has_driver = [
        cluster.types[device.type].library_bytes > 0 and device.memory_bytes >= SMALLEST_BYTES
        for device in cluster.devices
    ]
    return np.where(has_driver, CONTEXT_BYTES * float(graph.calls.any()), 0.0)


def collective_bytes(
    graph: Graph,
    cluster: Cluster,
    groups: Iterable[tuple[int, ...]],
    pairs: Iterable[tuple[int, int]],
) -> Floats:
    """NCCL's buffers on each device: of every group's communicator, of every peer in its host that
    it sends to or receives from (`pairs`), and once of peers in other hosts."""
    held, reaches = np.zeros(cluster.num_devices), np.zeros(cluster.num_devices, dtype=np.bool_)
    for group in {tuple(sorted(each)) for each in groups if len(each) > 1}:
        held[list(group)] += communicator_bytes(len(group))
    hosts = cluster.host_of
    for one, other in {(min(each), max(each)) for each in pairs if each[0] != each[1]}:
        if hosts[one] == hosts[other]:
            held[[one, other]] += PEER_BYTES
        else:
            reaches[[one, other]] = True
    has_driver = context_bytes(graph, cluster) > 0
    return np.where(has_driver, held + NETWORK_BYTES * reaches, 0.0)


def communicator_bytes(members: int) -> float:
    """NCCL's buffers of one communicator on each member."""
    if members < 2:
        return 0.0
    return PAIR_COMMUNICATOR_BYTES if members == 2 else COMMUNICATOR_BYTES
