"""Compiles the kernels of mappings. Knows only that a small problem uses all of them."""

import numpy as np

from meshwright.search.method.pipeline.map.assignment_walk import AssignmentWalk
from meshwright.search.method.pipeline.map.evaluate import with_rings
from meshwright.search.method.pipeline.map.problem import MappingProblem
from meshwright.search.method.pipeline.map.solve import solve_mapping


def compile_mapping() -> None:
    """Run every kernel once."""
    problem = MappingProblem(
        seconds=np.array([[1.0], [2.0]]),
        replicas_of_slot=np.array([3, 3]),
        wire_bytes=np.array([[0.0, 1.0], [1.0, 0.0]]),
        sync_bytes=np.ones(2),
        memory_bytes=np.zeros(2),
        type_of_device=np.zeros(8, np.int32),
        device_memory_bytes=np.ones(8),
        bandwidth=1.0 + np.add.outer(np.arange(8.0), np.arange(8.0)) % 5,
    )
    solve_mapping(problem)
    walk = AssignmentWalk(problem, 0)
    walk.begin(with_rings(problem, np.arange(6, dtype=np.int32)), 100.0)
    walk.run(100, 1.0, 1.0, 0.1, lambda: False)
    many = np.arange(14.0)
    loop = MappingProblem(
        seconds=np.ones((1, 1)),
        replicas_of_slot=np.array([14]),
        wire_bytes=np.zeros((1, 1)),
        sync_bytes=np.ones(1),
        memory_bytes=np.zeros(1),
        type_of_device=np.zeros(14, np.int32),
        device_memory_bytes=np.ones(14),
        bandwidth=1.0 + np.add.outer(many, many) % 5,
    )
    with_rings(loop, np.arange(14, dtype=np.int32))
