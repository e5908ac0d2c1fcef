"""Folds ops that cannot matter into a neighbour, and maps splits back. Exact: no split is lost that
is better than all that are kept.

An op folds when it takes no time anywhere and has one neighbour in all (a weight that one op reads,
an output that nobody does), and either shares its neighbour's class, so that it is on the same
device anyway, or is alone in its class and holds no bytes, so that it may be. Wherever the
neighbour runs, having the op beside it adds no time, moves nothing and closes no cycle.
"""

import numpy as np

from solver.latency.problem import Ints, Problem, make_problem


def fold_free_ops(problem: Problem) -> tuple[Problem, Ints]:
    """The smaller problem, and by op of the larger the op that it is part of."""
    place: Ints = np.arange(problem.num_ops, dtype=np.int32)
    while True:
        smaller, part_of = _fold_once(problem)
        place = part_of[place]
        if smaller.num_ops == problem.num_ops:
            return smaller, place
        problem = smaller


def _fold_once(problem: Problem) -> tuple[Problem, Ints]:
    into = list(range(problem.num_ops))
    members = problem.classes()
    keeps = [False] * problem.num_ops  # has taken another op in: stays until the next round
    for op in range(problem.num_ops):
        neighbours = problem.sources(op) + problem.readers(op)
        if problem.cpu_ms[op] > 0 or problem.accelerator_ms[op] > 0 or len(neighbours) != 1:
            continue
        near = neighbours[0]
        is_alike = problem.class_of[op] == problem.class_of[near]
        is_free = problem.bytes[op] == 0 and len(members[problem.class_of[op]]) == 1
        if (is_alike or is_free) and not keeps[op] and into[near] == near:
            into[op] = near
            keeps[near] = True
    return _contract(problem, into)


def _contract(problem: Problem, into: list[int]) -> tuple[Problem, Ints]:
    kept = [op for op in range(problem.num_ops) if into[op] == op]
    number = {op: i for i, op in enumerate(kept)}
    part_of = np.array([number[into[op]] for op in range(problem.num_ops)], dtype=np.int32)
    edges = [
        (int(part_of[u]), int(part_of[v]))
        for u in range(problem.num_ops)
        for v in problem.readers(u)
        if part_of[u] != part_of[v]
    ]
    smaller = make_problem(
        ids=list(range(len(kept))),
        cpu_ms=problem.cpu_ms[kept].tolist(),
        accelerator_ms=problem.accelerator_ms[kept].tolist(),
        cost_ms=problem.cost_ms[kept].tolist(),
        num_bytes=np.bincount(part_of, weights=problem.bytes, minlength=len(kept)).tolist(),
        class_of=problem.class_of[kept].tolist(),
        edges=edges,
        num_devices=problem.num_devices,
        memory_bytes=problem.memory_bytes,
    )
    place = np.empty(len(kept), dtype=np.int32)  # making a problem sorts its ops
    place[np.array(smaller.ids, dtype=np.int64)] = np.arange(len(kept))
    return smaller, place[part_of]
