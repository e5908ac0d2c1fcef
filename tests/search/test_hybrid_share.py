"""Samples of a microbatch among replicas on devices of several types."""

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from counted import TICK_SECONDS
from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.architecture.gpt import gpt
from meshwright.plan.check import resolve
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.share import level_samples
from meshwright.search.portfolio import search_by


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 4), st.integers(0, 5))
def test_no_other_whole_samples_make_the_slowest_replica_faster(
    speeds: Any, each: Any, fixed: Any
) -> None:
    types, total = [(f"type{speed}",) for speed in speeds], each * len(speeds)

    def seconds(names: Any, samples: Any) -> Any:
        return fixed + samples / int(names[0][4:])

    samples = level_samples(types, total, seconds)
    assert sum(samples) == total
    assert min(samples) >= 1

    def slowest(counts: Any) -> Any:
        return max(seconds(kind, own) for kind, own in zip(types, counts, strict=True))

    every = product(range(1, total + 1), repeat=len(types))
    least = min(slowest(counts) for counts in every if sum(counts) == total)
    assert slowest(samples) <= least * (1 + 1e-12)


def test_replicas_on_faster_devices_get_more_of_the_batch() -> None:
    graph = gpt(hidden=1024, heads=16, layers=4, sequence=512, vocabulary=1024, batch=64)
    cluster = find_cluster("tag-testbed")
    scope = Scope(
        tensor=(1,), context=(1,), pipeline=(1,), data=(16,), zero=(0,), microbatches=(1,),
        recompute=(Recompute.NONE,), schedules=(ScheduleKind.ONE_F_ONE_B,),
    )  # fmt: skip
    seconds = 64 * TICK_SECONDS
    answer = search_by("hybrid", graph, cluster, scope=scope, budget_seconds=seconds)
    assert answer.plan is not None
    resolve(graph, cluster, answer.plan)
    (part,) = answer.plan.parts
    share_of: dict[str, float] = {}
    for name, share in zip(part.devices, part.shares, strict=True):
        share_of.setdefault(cluster.devices[cluster.index[name]].type, share)
        assert (share * 64).is_integer()
    assert share_of["v100-32"] > share_of["1080ti"]
    even = mw.Plan.from_degrees(graph, cluster, data=16)
    assert answer.step_seconds < 0.95 * mw.simulate(graph, cluster, even).step_seconds
