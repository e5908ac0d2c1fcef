"""What the most memory that a device holds at once is made of, op by op. Knows no plan."""

import numpy as np

from meshwright.array import Ints
from meshwright.graph.graph import Phase
from meshwright.program.collective import Lane
from meshwright.program.program import Program
from meshwright.simulate.timeline import Timeline


def peak_items(timeline: Timeline, device: int, library_bytes: float) -> dict[str, float]:
    """By what it is, the bytes that a device holds at its peak; libraries keep so many of them."""
    *found, workspace = timeline.peak_parts(device, sort_buffers(timeline.program)).tolist()
    gradients, gathered, others = [*found, 0.0, 0.0, 0.0][:3]
    rows, held = timeline.program.instructions, float(timeline.program.state_bytes[device])
    ops = np.unique(rows["op"][(rows["device"] == device) & (rows["op"] >= 0)])
    parameters = float(timeline.program.graph.parameter_bytes[ops].sum())
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimiser": max(0.0, held - parameters - library_bytes),
        "buffers": gathered,
        "workspace": workspace,
        "libraries": library_bytes,
        "activations": others,
    }


def sort_buffers(program: Program) -> Ints:
    """Of each buffer: 0 a gradient of weights, 1 weights that were gathered, 2 anything else."""
    graph, buffers = program.graph, program.buffers
    if not graph.num_tensors:
        return np.full(len(buffers), 2, dtype=np.int32)
    tensor = buffers["tensor"]
    source = graph.tensor_source[tensor]
    is_gradient = graph.tensor_partial[tensor] & (graph.phase[source] == Phase.BACKWARD)
    lane = program.instructions["stream"][buffers["writer"]] // program.num_devices
    sort = np.where(lane == Lane.GATHER, 1, np.where(is_gradient & (tensor >= 0), 0, 2))
    sort[lane == Lane.SYNC] = 0
    return sort.astype(np.int32)
