"""Compiles what methods of a search need, by running them on a small step, so that compilation is
not searching."""

from collections.abc import Sequence
from functools import cache

from meshwright.cluster.cluster import Cluster
from meshwright.compiled import announced_compilation
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
    """Compile what the methods of these names need, and allocations where `allocates`, unless this
    process has done so before."""
    with announced_compilation(warm.__name__, *names):
        _compile_simulation()
        for name in names:
            if name != "placement":
                _compile(name)
        if "deploy" in names:
            _compile("heft")  # which it may come to later
    if "placement" in names:
        with announced_compilation():  # of what is left: the process beside compiles it last
            _compile("placement")
    if allocates:
        with announced_compilation():
            _compile_allocation()


@cache
def _compile_simulation() -> None:
    """What programs are lowered and simulated by: the rest is compiled beside it."""
    graph, cluster = small_step(), small_cluster()
    place = [cluster.devices[0].name]
    simulate(graph, cluster, place_ops(graph.op_names, [0] * graph.num_ops, place))


@cache
def _compile(name: str) -> None:
    _run(METHODS[name], small_cluster())


@cache
def _compile_allocation() -> None:
    _run(ALLOCATING["placement"], small_rails())


def _run(method: Method, cluster: Cluster) -> None:
    problem = Problem(graph=small_step(), cluster=cluster, clock=Clock(0.01))
    method(problem, Incumbent(problem.clock).begin("small", Claim.UNDIVIDED))
    if problem.clock.is_interrupted:
        raise KeyboardInterrupt
