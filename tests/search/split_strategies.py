"""Random problems of splitting, and their optima by enumeration."""

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from meshwright.search.method.pipeline.stage.problem import (
    DeviceKind,
    SplitProblem,
    device_loads,
    make_problem,
)


@st.composite
def problems(draw: st.DrawFn, max_nodes: int = 6, with_flights: bool = True) -> SplitProblem:
    """Small: kinds of one or two pools, replicas, tight memory, wires of several pins."""
    count = draw(st.integers(1, max_nodes))
    pairs = list(itertools.combinations(range(count), 2))
    edges = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    times = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.5])
    pins = st.sets(st.integers(0, count - 1), min_size=1, max_size=3)
    wires = draw(st.lists(st.tuples(pins, st.sampled_from([0.25, 1.0, 2.0])), max_size=6))
    sizes = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0]), min_size=count, max_size=count))
    saved = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
    memory = draw(st.sampled_from([math.inf, 3.0, 5.0]))
    devices = draw(st.integers(1, 3))
    first = draw(st.lists(times, min_size=count, max_size=count))
    kinds = [
        DeviceKind(
            name="a", count=devices, seconds=np.array(first), memory_bytes=memory, pool="main"
        )
    ]
    if draw(st.booleans()):
        kinds.append(
            DeviceKind(
                name="two",
                count=devices,
                seconds=np.array(first) / 2 + 0.25,
                memory_bytes=memory,
                wire_share=0.5,
                width=2,
                pool="main",
            )
        )
    if draw(st.booleans()):
        slow = draw(
            st.lists(st.sampled_from([0.0, 1.0, 9.0, math.inf]), min_size=count, max_size=count)
        )
        kinds.append(DeviceKind(name="cpu", count=1, seconds=np.array(slow), wire_share=0.0))
    flights = draw(st.sampled_from([(), (3, 2, 1)[-devices:]])) if with_flights else ()
    if len(kinds) > 1:  # the number of a stage is that of its device only where all are one wide
        flights = ()
    return make_problem(
        kinds=kinds,
        num_bytes=sizes,
        saved_bytes=saved,
        in_flight=flights,
        edges=edges,
        wires=wires,
    )


def best_contiguous(problem: SplitProblem) -> float:
    """The optimum: all monotone numberings of nodes by stages and all kinds of stages."""
    best = math.inf
    for num_stages in range(1, problem.num_devices + 1):
        for kinds in itertools.product(range(len(problem.kinds)), repeat=num_stages):
            if not _are_there(problem, kinds):
                continue
            for stages in itertools.product(range(num_stages), repeat=problem.num_nodes):
                edges = zip(problem.edge_source, problem.edge_target, strict=True)
                if all(stages[u] <= stages[v] for u, v in edges) and _fits(problem, stages, kinds):
                    best = min(best, float(device_loads(problem, stages, kinds).max()))
    return best


def _are_there(problem: SplitProblem, kinds: tuple[int, ...]) -> bool:
    used: dict[str, int] = {}
    for each in kinds:
        kind = problem.kinds[each]
        name = kind.pool or kind.name
        used[name] = used.get(name, 0) + kind.width
        if used[name] > kind.count:
            return False
    return True


def _fits(problem: SplitProblem, stages: tuple[int, ...], kinds: tuple[int, ...]) -> bool:
    for stage, kind in enumerate(kinds):
        members = [node for node, each in enumerate(stages) if each == stage]
        held = sum(problem.bytes[node] for node in members)
        if problem.in_flight:
            flights = problem.in_flight[len(problem.in_flight) - len(kinds) + stage]
            held += flights * sum(problem.saved_bytes[node] for node in members)
        if held > problem.kinds[kind].memory_bytes:
            return False
    return True
