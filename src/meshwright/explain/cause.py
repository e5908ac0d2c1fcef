"""What a moment of a step may be spent on, and which of these an instruction is."""

from enum import StrEnum

import numpy as np

from meshwright.graph.graph import Phase
from meshwright.plan.plan import Plan
from meshwright.program.collective import Lane, find_lanes
from meshwright.program.program import JOINS, Kind, Program


class Cause(StrEnum):
    """What a moment of a step is spent on."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTATION = "recomputation"
    UPDATE = "optimiser update"
    JOIN = "joining tensors"
    TRANSFER = "transfers"
    """What one device sends to another: activations, their gradients, rows of tensors."""
    GRADIENTS = "gradient sync"
    """Replicas add up gradients, or scatter the sums (ZeRO 1)."""
    SCATTERS = "ZeRO scatters"
    """ZeRO 2 and 3 scatter gradients in every backward."""
    GATHERS = "ZeRO gathers"
    TENSOR = "tensor-parallel collectives"
    CONTEXT = "context-parallel collectives"
    EXPERT = "experts' all-to-all"
    FILL = "pipeline fill"
    """The busiest device has nothing to do until its first backward."""
    DRAIN = "pipeline drain"
    """The busiest device has nothing to do after its last forward."""
    STALL = "pipeline stall"
    """The busiest device waits for other stages in between."""
    LAUNCH = "kernel launches"
    """Hosts take longer to launch the step than devices to run it."""
    IDLE = "idle"
    """Nothing that is awaited is under way."""


COMPUTE = (Cause.FORWARD, Cause.BACKWARD, Cause.RECOMPUTATION, Cause.UPDATE, Cause.JOIN)
_PHASES = {
    Phase.FORWARD: Cause.FORWARD,
    Phase.BACKWARD: Cause.BACKWARD,
    Phase.UPDATE: Cause.UPDATE,
}


def find_causes(program: Program, plan: Plan) -> list[Cause]:
    """What the time of each instruction counts as."""
    rows, graph, lanes = program.instructions, program.graph, find_lanes(program)
    fields = (rows[name].tolist() for name in ("kind", "op", "tensor", "group", "stream"))
    known: dict[tuple[int, ...], Cause] = {}
    found = []
    for kind, op, tensor, group, stream, lane in zip(*fields, lanes.tolist(), strict=True):
        if kind == Kind.COMPUTE:
            is_again = bool(program.is_again[op])
            phase = Phase(int(graph.phase[op]))
            found.append(Cause.RECOMPUTATION if is_again else _PHASES[phase])
        elif kind in JOINS:
            found.append(Cause.JOIN)
        elif group < 0:
            found.append(Cause.TRANSFER if tensor >= 0 else Cause.GRADIENTS)
        elif lane != Lane.TEAM:
            zero = plan.parts[int(program.part_of_op[op])].zero if op >= 0 else 0
            found.append(_of_weights(Kind(kind), every_microbatch=stream < 0 or zero >= 2))
        else:
            key = kind, group, int(program.part_of_op[op]) if op >= 0 else -1
            if key not in known:
                known[key] = _of_team(program, plan, *key)
            found.append(known[key])
    return found


def _of_weights(kind: Kind, *, every_microbatch: bool) -> Cause:
    """Of a collective among those that hold the same weights."""
    if kind == Kind.ALL_GATHER:
        return Cause.GATHERS
    is_scatter = kind == Kind.REDUCE_SCATTER and every_microbatch
    return Cause.SCATTERS if is_scatter else Cause.GRADIENTS


def _of_team(program: Program, plan: Plan, kind: int, group: int, part: int) -> Cause:
    """Of a collective among members of a team, by who they are: those of a tensor team stand next
    to each other among the devices of their part."""
    if kind == Kind.ALL_TO_ALL:
        return Cause.EXPERT
    own = plan.parts[part]
    if kind == Kind.SHIFT or own.tensor == 1:
        return Cause.CONTEXT
    place = {name: number for number, name in enumerate(own.devices)}
    names = [program.device_names[device] for device in program.groups[group][:2]]
    first, second = (place[name] for name in names)
    return Cause.TENSOR if abs(second - first) < own.tensor else Cause.CONTEXT


def first_rows(program: Program) -> list[int]:
    """By task its first instruction."""
    tasks = program.instructions["task"]
    count = int(tasks.max()) + 1 if len(tasks) else 0
    first = np.full(count, -1, dtype=np.int64)
    first[tasks[::-1]] = np.arange(len(tasks))[::-1]
    return first.tolist()
