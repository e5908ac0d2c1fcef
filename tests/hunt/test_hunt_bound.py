"""No plan is faster than a bound says, whatever the step, the cluster and the plan."""

import pytest
from hunt_bounds import Pair, hunt_steps, hunt_teams


def check_pairs(seeds: range, team_seeds: range, least: int) -> None:
    pairs: list[Pair] = []
    for seed in seeds:
        pairs += hunt_steps(seed)
    for seed in team_seeds:
        pairs += hunt_teams(seed)
    assert [pair for pair in pairs if not pair.holds] == []
    assert len(pairs) >= least


def test_hundreds_of_bounds_hold() -> None:
    check_pairs(range(8), range(3), 250)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand_bounds_hold(part: int) -> None:
    first = 1_000 * (part + 1)
    check_pairs(range(first, first + 350), range(first, first + 40), 10_000)
