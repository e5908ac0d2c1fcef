"""Drafts are simulated while there is time for them: what each takes is known before."""

from dataclasses import replace

from counted import counted_clock
from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.stage import Frame
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.compare import Comparison
from meshwright.search.method.hybrid.draft import Pool
from meshwright.search.method.hybrid.propose import find_drafts
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import make_space
from meshwright.search.method.hybrid.trial import HybridTrials, TrialScene
from meshwright.search.pool.process import Processes
from meshwright.search.warm import small_step


def make_comparison(seconds: float) -> tuple[Comparison, Pool]:
    graph, cluster = small_step(), find_cluster("v100-32-x4")
    space = make_space(graph, cluster, Scope())
    pool = Pool()
    find_drafts(space, pool, Clock())
    scene = TrialScene(
        graph=graph, cluster=cluster, tiers=space.prices.tiers, sharing="fair",
        runtime="meshwright",
    )  # fmt: skip
    return Comparison(space, HybridTrials(scene, Processes(1), ()), Clock(seconds)), pool


def test_what_takes_longer_than_is_left_is_not_simulated() -> None:
    with counted_clock(0.0):
        comparison, pool = make_comparison(10.0)
        first = pool.drafts()[0]
        comparison.spent_seconds, comparison.spent_passes = 1.0, 1000.0  # a millisecond a pass
        heavy = replace(first, frame=replace(first.frame, microbatches=1 << 20))
        assert comparison._affordable([heavy, first]) == [first]
        assert comparison.clock.is_cut


def test_passes_are_microbatches_times_teams() -> None:
    _, pool = make_comparison(1.0)
    draft = pool.drafts()[0]
    teams = sum(stage.size // stage.option.team.num_devices for stage in draft.stages)
    for pods, microbatches in ((1, 1), (2, 7), (8, 64)):
        frame = Frame(pods=pods, microbatches=microbatches)
        assert replace(draft, frame=frame).num_passes == microbatches * pods * teams
