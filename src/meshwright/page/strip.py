"""Which part of a plan runs which stretch of the model: strips along its ops, or its layers, in
their order. Knows nothing of time."""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Ints, Longs
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers, has_layers
from meshwright.plan.plan import Plan

MAX_STRETCHES = 3000
"""Stretches of a strip; with more of them, equal ones stand for what they begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Ops in a row that one part has."""

    part: int
    first: int
    """The place of its first op in the strip."""
    count: int
    where: str
    """The module, or the layers, that it is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The ops of one phase, in the order of the graph."""

    phase: str
    num_ops: int
    stretches: tuple[Stretch, ...]
    is_whole: bool
    """Whether every change of the part is shown."""


def draw_strips(graph: Graph, plan: Plan) -> tuple[Strip, ...]:
    """A strip for each phase of the step; the plan's parts hold ops."""
    part_of_op = np.full(graph.num_ops, -1, dtype=np.int64)
    for number, part in enumerate(plan.parts):
        part_of_op[[graph.index[name] for name in part.ops]] = number
    names = _places(graph, part_of_op)
    strips = []
    for phase in Phase:
        ops = np.flatnonzero(graph.phase == phase)
        if len(ops):
            strips.append(_draw_strip(phase.name.lower(), part_of_op[ops], [names[k] for k in ops]))
    return tuple(strips)


def _places(graph: Graph, part_of_op: Longs) -> list[str]:
    """By op the layer that it is of, where the plan divides no layer; else its module or name."""
    if has_layers(graph):
        stack = find_layers(graph)
        layer = stack.layer_of_op
        pairs = np.unique(np.stack((layer, part_of_op)), axis=1)
        if len(pairs[0]) == len(np.unique(layer)):
            known = [stack.layer_name(each) for each in range(stack.num_layers)]
            named = [f"layer {each}" if each.isdecimal() else each for each in known]
            return [named[each] for each in layer.tolist()]
    own = zip(graph.module, graph.op_names, strict=True)
    return [module or name for module, name in own]


def _draw_strip(phase: str, parts: Longs | Ints, names: list[str]) -> Strip:
    first = np.flatnonzero(np.append(True, parts[1:] != parts[:-1]))
    is_whole = len(first) <= MAX_STRETCHES
    if not is_whole:  # what each of as many equal stretches begins with
        first = np.unique(np.linspace(0, len(parts) - 1, MAX_STRETCHES).astype(np.int64))
    ends = np.append(first[1:], len(parts))
    stretches = []
    for begin, end in zip(first.tolist(), ends.tolist(), strict=True):
        low, high = names[begin], names[end - 1]
        stretches.append(
            Stretch(
                part=int(parts[begin]),
                first=begin,
                count=end - begin,
                where=low if low == high else f"{low} to {high}",
            )
        )
    return Strip(phase=phase, num_ops=len(parts), stretches=tuple(stretches), is_whole=is_whole)
