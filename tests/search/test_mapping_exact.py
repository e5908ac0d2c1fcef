"""The exact search of mappings equals trying all of them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from mapping_strategies import best_by_trying, chain_problem, small_problems

from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.map.problem import MappingProblem
from meshwright.search.method.pipeline.map.solve import compile_mapping, solve_mapping


@given(small_problems())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_optimum_is_that_of_trying_all(problem: MappingProblem) -> None:
    answer = solve_mapping(problem)
    best = best_by_trying(problem)
    if np.isinf(best):
        assert answer.stop is Stop.INFEASIBLE
        assert answer.reason
    else:
        assert answer.stop is Stop.PROVED
        assert answer.seconds == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert answer.gap == 0.0


@pytest.mark.slow
@given(small_problems(most_places=8, most_devices=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_optimum_on_eight_devices_is_that_of_trying_all(problem: MappingProblem) -> None:
    answer = solve_mapping(problem)
    best = best_by_trying(problem)
    assert answer.seconds == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert answer.stop is (Stop.INFEASIBLE if np.isinf(best) else Stop.PROVED)


@pytest.mark.slow
def test_sixteen_devices_in_four_hosts_are_proved_at_once() -> None:
    problem = chain_problem(
        find_cluster("titan-v-4x4").bandwidth / 1e9, stages=8, replicas=2, seed=4
    )
    compile_mapping()
    answer = solve_mapping(problem, budget_seconds=5.0)
    assert answer.stop is Stop.PROVED
    assert answer.statistics["steps"] == 0.0  # no local search was needed
