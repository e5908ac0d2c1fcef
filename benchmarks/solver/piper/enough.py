"""Where no plan fits: why, and how much memory would do."""

import math
from dataclasses import replace
from time import perf_counter

from meshwright.search.method.pipeline.stage.lattice import Lattice
from solver.piper.chain import Chains, OutOfTimeError, find_upsets
from solver.piper.problem import Problem, microbatches_in_flight, stage_bytes

_MOST_UPSETS = 2000
_NEAR = 1e-3
"""Relative: so well the least memory is looked for."""
_GIB = 2**30


def explain_misfit(problem: Problem, *, budget_seconds: float = 10.0) -> str:
    """One line on a problem without a plan: what is in the way and the nearest change that fits."""
    resources = problem.resources
    for node in problem.nodes:
        fewest = min(node.ways, default=math.inf)
        if fewest > resources.num_devices:
            needs = f", it needs {fewest}" if fewest < math.inf else ""
            return (
                f"devices: node {node.name} has no way to run on {resources.num_devices} or "
                f"fewer{needs}"
            )
    enough = find_enough_memory(problem, budget_seconds=budget_seconds)
    if enough == math.inf:
        return f"devices: the nodes' widths need more than {resources.num_devices} of any memory"
    text = (
        f"memory: no plan fits {resources.num_devices:,} devices of "
        f"{resources.memory_bytes / _GIB:.4g} GiB"
    )
    return f"{text}, {math.ceil(enough / _GIB * 1e3) / 1e3:.3f} GiB would do" if enough else text


def find_enough_memory(problem: Problem, *, budget_seconds: float = 10.0) -> float | None:
    """Bytes a device with which there is a plan, about the least; infinity where none is enough,
    no answer where the upsets are many or the time is up."""
    lattice = find_upsets(problem, _MOST_UPSETS)
    if lattice is None:
        return None
    until = perf_counter() + budget_seconds
    low = problem.resources.memory_bytes
    high = _find_held(problem, max(low, _bytes_of_all(problem)), lattice, until)
    while high is not None and low * (1 + _NEAR) < high < math.inf:
        middle = min(2 * low, (low + high) / 2)
        held = _find_held(problem, middle, lattice, until)
        if held == math.inf:
            low = middle
        else:
            high = held
    return high


def _find_held(
    problem: Problem, memory_bytes: float, lattice: Lattice, until: float
) -> float | None:
    """The most that a device holds under some plan that fits; infinity where there is none."""
    resources = replace(problem.resources, memory_bytes=memory_bytes)
    try:
        plan = Chains(replace(problem, resources=resources), lattice, until).find(math.inf)
    except OutOfTimeError:
        return None
    return max(map(stage_bytes, plan, microbatches_in_flight(plan))) if plan else math.inf


def _bytes_of_all(problem: Problem) -> float:
    """Enough for every plan: all nodes in the largest of their ways, with all in flight."""
    most = min(problem.resources.num_microbatches, problem.resources.num_devices)
    return sum(
        max(
            way.flight_bytes * most + way.fixed_bytes for ways in node.ways.values() for way in ways
        )
        for node in problem.nodes
    )
