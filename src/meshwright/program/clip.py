"""Makes updates wait until all devices have added up the squares of their gradients.

Clipping the norm of all gradients needs that norm before the first update, so that every device
takes part in one all-reduce of a number, after all gradients that it updates with and before any of
its updates. It costs the overlap of updates with the rest of backward, which the simulation sees.
"""

from dataclasses import replace

import numpy as np

from meshwright.graph.graph import Phase
from meshwright.program.collective import Lane
from meshwright.program.program import PAIR, Kind, Program, blank_rows

_BYTES = 8.0
"""One number of double precision."""


def with_norm(program: Program) -> Program:
    """The program with that all-reduce; see this module's docstring."""
    rows, count = program.instructions, program.num_instructions
    is_update = _find_updates(program)
    devices = np.unique(rows["device"][is_update])
    norms = blank_rows(len(devices))
    norms["kind"], norms["device"], norms["bytes"] = Kind.ALL_REDUCE, devices, _BYTES
    norms["group"], norms["task"] = len(program.groups), rows["task"].max(initial=-1) + 1
    norms["stream"] = Lane.SYNC * program.num_devices + devices
    norms["microbatch"] = program.microbatches - 1
    norms["priority"] = rows["priority"].min(initial=0.0) - 1.0
    norms["rows_to"] = 1.0
    norm_of = np.full(program.num_devices, -1, dtype=np.int32)
    norm_of[devices] = count + np.arange(len(devices))
    more = None
    if program.call_seconds is not None:
        more = np.append(program.call_seconds, np.zeros(len(devices)))
    return replace(
        program,
        instructions=np.concatenate([rows, norms]),
        orders=np.concatenate([program.orders, _order(program, is_update, norm_of)]),
        groups=(*program.groups, tuple(devices.tolist())),
        group_algorithm=(*program.group_algorithm, ""),
        beside=(*program.beside, ()) if program.beside else (),
        call_seconds=more,
    )


def _find_updates(program: Program) -> np.ndarray:
    """By instruction: whether it updates a parameter."""
    rows, graph = program.instructions, program.graph
    is_fused = np.array([kind.startswith("_fused_") for kind in graph.kind], dtype=np.bool_)
    updates = is_fused & (graph.phase == Phase.UPDATE)
    found: np.ndarray = (rows["kind"] == Kind.COMPUTE) & updates[rows["op"]]
    return found


def _order(program: Program, is_update: np.ndarray, norm_of: np.ndarray) -> np.ndarray:
    """What comes before the norm, which is what updates wait for, and that updates come after."""
    device = program.instructions["device"]
    reads, orders = program.reads, program.orders
    writers = program.buffers["writer"][reads["second"]]
    first = np.concatenate([writers, orders["first"]])
    second = np.concatenate([reads["first"], orders["second"]])
    chosen = is_update[second] & ~is_update[first] & (device[first] == device[second])
    before = np.unique(first[chosen])
    updates = np.flatnonzero(is_update)
    made = np.zeros(len(before) + len(updates), dtype=PAIR)
    made["first"] = np.concatenate([before, norm_of[device[updates]]])
    made["second"] = np.concatenate([norm_of[device[before]], updates])
    return made
