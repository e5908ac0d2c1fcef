"""What a moment of a step may be spent on, and which of these an instruction is."""

from enum import StrEnum

import numpy as np

from meshwright.array import Longs
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
_CAUSES = tuple(Cause)
_CODES = {cause: code for code, cause in enumerate(_CAUSES)}


def find_causes(program: Program, plan: Plan) -> list[Cause]:
    """What the time of each instruction counts as."""
    return [_CAUSES[code] for code in cause_codes(program, plan).tolist()]


def cause_codes(program: Program, plan: Plan) -> Longs:
    """The same as places in `Cause`."""
    rows, lanes = program.instructions, find_lanes(program)
    kind, op, group = rows["kind"], rows["op"], rows["group"]
    part = np.append(program.part_of_op, -1)[op]
    codes = np.full(len(rows), _CODES[Cause.TRANSFER], dtype=np.int64)
    codes[(group < 0) & (rows["tensor"] < 0)] = _CODES[Cause.GRADIENTS]
    codes[np.isin(kind, JOINS)] = _CODES[Cause.JOIN]
    computes = kind == Kind.COMPUTE
    phases = np.array([_CODES[_PHASES[each]] for each in Phase])
    codes[computes] = np.where(
        program.is_again[op[computes]],
        _CODES[Cause.RECOMPUTATION],
        phases[program.graph.phase[op[computes]]],
    )
    calls = (group >= 0) & ~computes & ~np.isin(kind, JOINS)
    beside = calls & (lanes != Lane.TEAM)
    zero = np.array([*(each.zero for each in plan.parts), 0])[part]
    is_scatter = (kind == Kind.REDUCE_SCATTER) & ((rows["stream"] < 0) | (zero >= 2))
    of_weights = np.where(is_scatter, _CODES[Cause.SCATTERS], _CODES[Cause.GRADIENTS])
    of_weights[kind == Kind.ALL_GATHER] = _CODES[Cause.GATHERS]
    codes[beside] = of_weights[beside]
    within = np.flatnonzero(calls & ~beside)
    keys = np.column_stack((kind[within], group[within], part[within]))
    if len(keys):
        known, which = np.unique(keys, axis=0, return_inverse=True)
        found = [_CODES[_of_team(program, plan, *key)] for key in known.tolist()]
        codes[within] = np.array(found)[which.ravel()]
    return codes


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
