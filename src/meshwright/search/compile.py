"""Compiles what methods of a search need, by running them on a small step, so that compilation is
not searching."""

from collections.abc import Sequence

from meshwright.cluster.cluster import Cluster
from meshwright.compiled import announced_compilation
from meshwright.graph.graph import Graph
from meshwright.plan.plan import place_ops
from meshwright.search import warm
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Incumbent
from meshwright.search.method.table import ALLOCATING, METHODS, Method
from meshwright.search.problem import Problem
from meshwright.search.warm import small_cluster, small_rails, small_step
from meshwright.simulate.simulate import simulate


def compile_methods(names: Sequence[str], *, allocates: bool) -> None:
    """Compile what the methods of these names need, and allocations where `allocates`."""
    graph, cluster = small_step(), small_cluster()
    with announced_compilation(warm.__name__, *names):
        # What programs are lowered and simulated by first: the others are compiled beside it.
        place = [cluster.devices[0].name]
        simulate(graph, cluster, place_ops(graph.op_names, [0] * graph.num_ops, place))
        for name in names:
            if name != "placement":
                _compile(METHODS[name], graph, cluster)
        if "deploy" in names and "heft" not in names:
            _compile(METHODS["heft"], graph, cluster)  # which it may come to later
    if "placement" in names:
        with announced_compilation():  # of what is left: the process beside compiles it last
            _compile(METHODS["placement"], graph, cluster)
    if allocates:
        with announced_compilation():
            _compile(ALLOCATING["placement"], graph, small_rails())


def _compile(method: Method, graph: Graph, cluster: Cluster) -> None:
    problem = Problem(graph=graph, cluster=cluster, clock=Clock(0.01))
    method(problem, Incumbent(problem.clock).begin("small", Claim.UNDIVIDED))
    if problem.clock.is_interrupted:
        raise KeyboardInterrupt
