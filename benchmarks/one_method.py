"""Runs one method as it is, for comparisons of methods and for tests of single ones."""

from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.search.answer import answer_attempt
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Incumbent
from meshwright.search.portfolio import run_method
from meshwright.search.problem import Problem


def search_by(
    method: str, graph: Graph, cluster: Cluster, *, budget_seconds: float = 30.0, **given: Any
) -> Answer:
    """The plan of one method, run as it is: nothing is checked, compiled or left out before.

    What is `given` are fields of the problem and options of the
    method's function.
    """
    fields = {key: given.pop(key) for key in list(given) if key in Problem.__dataclass_fields__}
    problem = Problem(graph=graph, cluster=cluster, clock=Clock(budget_seconds), **fields)
    incumbent = Incumbent(problem.clock)
    run_method(method, problem, incumbent, **given)
    if not incumbent.attempts:
        raise KeyboardInterrupt
    return answer_attempt(problem, incumbent.attempts[method])
