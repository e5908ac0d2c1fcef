"""Local search over strategies: never worse than its starts, and what it must find."""

from itertools import product

import numpy as np
import pytest
from deploy_cases import chain, hosts
from hypothesis import given, settings
from hypothesis import strategies as st

from counted import counted_clock
from meshwright.search.clock import Clock
from meshwright.search.judge import try_plan
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.option import GroupOption, Strategy
from meshwright.search.method.deploy.polish.load import Loads, level_samples
from meshwright.search.method.deploy.polish.polish import Polished, polish


def run(evaluator: Evaluator, *starts: Strategy, evaluations: int = 80, seed: int = 0) -> Polished:
    return polish(evaluator, starts, clock=Clock(), seed=seed, max_evaluations=evaluations)


def draw_strategy(analysis: Analysis, seed: int) -> Strategy:
    rng = np.random.default_rng(seed)
    return tuple(analysis.actions[int(rng.choice(np.flatnonzero(row)))] for row in analysis.allowed)


@pytest.fixture(scope="module")
def mixed() -> Evaluator:
    graph = chain([8.0, 4.0, 2.0, 6.0], [1.0, 4.0, 30.0, 2.0], activation=2.0, batch=12.0)
    return Evaluator(analyse(graph, hosts([("fast", 2), ("slow", 2), ("slow", 1)])))


@pytest.mark.parametrize("seed", range(3))
def test_no_start_is_better_than_the_answer(mixed: Evaluator, seed: int) -> None:
    starts = [draw_strategy(mixed.analysis, 10 * seed + k) for k in range(3)]
    found = run(mixed, *starts, evaluations=40, seed=seed)
    assert found.evaluation.rank <= min(mixed.rank(start) for start in starts)
    simulated = mixed.rank(found.strategy, found.duplicated, found.bundles)
    assert found.evaluation.rank == simulated <= mixed.rank(found.strategy)


def test_without_starts_it_is_no_worse_than_data_parallelism(mixed: Evaluator) -> None:
    assert run(mixed).evaluation.rank <= mixed.rank(mixed.data_parallel)


def test_the_plan_takes_as_long_as_the_evaluation_says(mixed: Evaluator) -> None:
    found = run(mixed, evaluations=60)
    analysis = mixed.analysis
    verdict = try_plan(analysis.graph, analysis.cluster, found.plan)
    assert verdict.step_seconds == found.evaluation.step_seconds
    assert verdict.fits


def test_the_same_seed_gives_the_same_strategy() -> None:
    def once() -> Polished:
        graph = chain([8.0, 4.0, 2.0], [1.0, 4.0, 30.0], activation=2.0, batch=12.0)
        return run(Evaluator(analyse(graph, hosts([("fast", 2), ("slow", 2)]))), seed=3)

    first, second = once(), once()
    assert first.strategy == second.strategy
    assert first.bundles == second.bundles
    assert first.num_evaluations == second.num_evaluations


def test_it_ends_in_time(mixed: Evaluator) -> None:
    with counted_clock() as clock:
        budget = Clock(50 * clock.tick_seconds)
        polish(mixed, (), clock=budget)
    assert 50 <= clock.looks <= 60
    assert not budget.is_interrupted


def test_no_more_is_simulated_than_allowed() -> None:
    evaluator = Evaluator(analyse(chain([8.0, 4.0], [1.0, 4.0]), hosts([("fast", 2), ("slow", 2)])))
    assert run(evaluator, evaluations=50).num_evaluations <= 55  # the last look may be several


@pytest.mark.parametrize(
    ("flops", "gradients", "activation"),
    [
        pytest.param([8.0, 4.0], [0.5, 0.5], 0.1, marks=pytest.mark.slow),
        ([8.0, 1.0], [0.5, 40.0], 1.0),
        pytest.param([4.0, 4.0, 0.5], [1.0, 1.0, 60.0], 0.5, marks=pytest.mark.slow),
        pytest.param([2.0, 6.0, 2.0], [20.0, 0.1, 20.0], 2.0, marks=pytest.mark.slow),
    ],
)
def test_what_is_best_on_the_menu_is_found(
    flops: list[float], gradients: list[float], activation: float
) -> None:
    graph = chain(flops, gradients, activation=activation, batch=6.0)
    analysis = analyse(graph, hosts([("fast", 1), ("slow", 2)]))
    evaluator = Evaluator(analysis)
    choices = [[analysis.actions[k] for k in np.flatnonzero(row)] for row in analysis.allowed]
    best = min(evaluator.rank(each) for each in product(*choices))
    found = run(evaluator, evaluations=150 * len(flops)).evaluation.rank
    assert found <= (best[0], best[1] * (1 + 1e-9))


def test_only_the_fully_connected_layer_leaves_data_parallelism() -> None:
    # Three layers of much compute and few gradient bytes, one of little compute and 400 bytes,
    # which would take 400 s to add up over the slow network; its rows are 2 bytes.
    graph = chain([64.0, 64.0, 64.0, 0.4], [0.1, 0.1, 0.1, 400.0], activation=2.0, batch=8.0)
    evaluator = Evaluator(analyse(graph, hosts([("fast", 1), ("fast", 1)])))
    found = run(evaluator, evaluations=100)
    heavy = int(np.argmax(evaluator.analysis.gradient_bytes))
    action = found.strategy[heavy]
    is_exchanged = len(action.devices) == 2 and action.option is not GroupOption.DUPLICATE
    assert not is_exchanged or heavy in found.duplicated
    light = [each for group, each in enumerate(found.strategy) if group != heavy]
    assert all(each.devices == (0, 1) for each in light)
    # Computing takes 3 x 64 x 3 / 2 / 2 = 144 s on two devices of 2 a second.
    assert found.evaluation.step_seconds < 160.0 < evaluator.reference_seconds


def test_where_no_start_fits_one_is_found_that_does() -> None:
    # Four layers of 10 bytes of state, three devices of 25: no device holds all of them.
    graph = chain([4.0] * 4, [1.0] * 4, activation=0.5, state=10.0)
    cluster = hosts([("fast", 2), ("slow", 1)], memory_bytes=25.0)
    evaluator = Evaluator(analyse(graph, cluster))
    assert not evaluator.evaluate(evaluator.data_parallel).fits
    found = run(evaluator, evaluator.data_parallel)
    assert try_plan(graph, cluster, found.plan).fits


def test_where_nothing_can_fit_what_lacks_least_is_the_answer() -> None:
    graph = chain([4.0] * 2, [1.0] * 2, state=100.0)
    evaluator = Evaluator(analyse(graph, hosts([("fast", 2)], memory_bytes=50.0)))
    found = run(evaluator, evaluations=60)
    # A device has 50 of 100 bytes a layer: what lacks least holds one layer on each, not both.
    assert found.evaluation.missing_bytes < evaluator.rank(evaluator.data_parallel)[0]
    assert found.evaluation.missing_bytes > 0


def test_gradients_travel_apart_where_that_overlaps() -> None:
    # Together gradients wait for the last of them, apart the first goes while the second is made.
    graph = chain([8.0, 8.0], [4.0, 4.0], batch=8.0)
    evaluator = Evaluator(analyse(graph, hosts([("fast", 1), ("fast", 1)])))
    together = evaluator.rank(evaluator.data_parallel)
    apart = evaluator.rank(evaluator.data_parallel, (), (0, 1))
    assert apart < together
    assert run(evaluator, evaluations=60).evaluation.rank <= apart


def test_an_interrupt_ends_it_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain([8.0, 4.0, 2.0], [1.0, 4.0, 30.0], activation=2.0, batch=12.0)
    evaluator = Evaluator(analyse(graph, hosts([("fast", 2), ("slow", 2)])))
    seen: list[tuple[float, float]] = []
    simulate = evaluator.rank

    def stop(*arguments: object) -> tuple[float, float]:
        if len(seen) == 20:
            raise KeyboardInterrupt
        seen.append(simulate(*arguments))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(evaluator, "rank", stop)
    clock = Clock()
    found = polish(evaluator, (), clock=clock, max_evaluations=10**6)
    assert clock.is_interrupted
    assert found.evaluation.rank == min(seen)


@settings(max_examples=50, deadline=None)
@given(
    lines=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=3
    ),
    samples=st.integers(1, 6),
)
def test_levelled_samples_finish_as_early_as_any(
    lines: list[tuple[int, int, int]], samples: int
) -> None:
    # Of each device: what it does besides, the fixed part and the slope of its line.
    finish = np.array(
        [
            [busy + (fixed + slope * count if count else 0) for count in range(samples + 1)]
            for busy, fixed, slope in lines
        ],
        dtype=np.float64,
    )
    rows = np.arange(len(lines))
    found = level_samples(finish, samples)
    assert found.sum() == samples
    best = min(
        finish[rows, list(counts)].max()
        for counts in product(range(samples + 1), repeat=len(lines))
        if sum(counts) == samples
    )
    assert finish[rows, found].max() == pytest.approx(best)


def test_sums_are_never_above_the_simulated_step(mixed: Evaluator) -> None:
    loads = Loads(mixed.analysis)
    for seed in range(30):
        strategy = draw_strategy(mixed.analysis, seed)
        if all(action.option is not GroupOption.MODEL for action in strategy):
            assert loads.floor_seconds(strategy) <= mixed.rank(strategy)[1] * (1 + 1e-6)
