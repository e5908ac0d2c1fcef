"""Stages, replicas, microbatches and the mapping of `pipeline`, fixed by its scope."""

from functools import partial
from itertools import product

import pytest
from search_strategies import make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.answer import Answer, Stop
from meshwright.search.method.pipeline.scope import PipelineScope, StageMapping
from meshwright.search.portfolio import search_by

pipeline = partial(search_by, "pipeline")


def chain(count: int, batch: float = 16) -> Graph:
    """So many layers of a second forward and two backward, with a parameter each."""
    builder = GraphBuilder("chain", batch)
    for number in range(count):
        builder.add_op(f"f{number}", seconds={"any": 1.0}, parameter_bytes=8.0)
        if number:
            builder.add_tensor(number - 1, 8.0, [number])
    for number in range(count - 1, -1, -1):
        op = builder.add_op(
            f"b{number}", phase=Phase.BACKWARD, partner=number, seconds={"any": 2.0}
        )
        if number < count - 1:
            builder.add_tensor(op - 1, 8.0, [op])
    return builder.finish()


def homes(answer: Answer, cluster: Cluster) -> list[list[int]]:
    assert answer.plan is not None, answer.binding
    number = {device.name: place for place, device in enumerate(cluster.devices)}
    return [[number[each] for each in part.devices] for part in answer.plan.parts]


@pytest.mark.parametrize(
    ("stages", "replicas", "microbatches"), [(4, 2, 4), (2, 4, 2), (8, 1, 8), (1, 8, 1), (3, 2, 4)]
)
def test_stages_replicas_and_microbatches_are_as_fixed(
    stages: int, replicas: int, microbatches: int
) -> None:
    cluster = make_cluster(["fast"] * 8, rate=1e9)
    scope = PipelineScope(stages=(stages,), replicas=(replicas,))
    answer = pipeline(chain(9), cluster, microbatches=(microbatches,), scope=scope, num_workers=0)
    found = homes(answer, cluster)
    assert [len(each) for each in found] == [replicas] * stages
    assert len({device for each in found for device in each}) == stages * replicas
    assert answer.plan is not None
    assert answer.plan.schedule is not None
    assert answer.plan.schedule.microbatches == microbatches


def test_lists_leave_the_choice() -> None:
    cluster = make_cluster(["fast"] * 4, rate=1e9)
    for scope in (PipelineScope(stages=(2, 4)), PipelineScope(replicas=(2,))):
        found = homes(pipeline(chain(6), cluster, scope=scope, num_workers=0), cluster)
        assert not scope.stages or len(found) in scope.stages
        assert not scope.replicas or {len(each) for each in found} == {2}


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        # Stage s has its replicas side by side, or replica r its stages.
        ("consecutive", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("p2p-first", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ],
)
def test_the_usual_mappings_by_hand(mapping: str, expected: list[list[int]]) -> None:
    cluster = find_cluster("dgx1-x1")
    scope = PipelineScope(stages=(4,), replicas=(2,), mapping=StageMapping(mapping))
    answer = pipeline(chain(8), cluster, microbatches=(4,), scope=scope, num_workers=0)
    assert homes(answer, cluster) == expected


def test_parmesans_searches_each_see_one_term() -> None:
    # Two hosts of two devices, fast inside: all-reduce alone keeps the replicas of a stage on a
    # host, transfers alone the stages of a replica; the ensemble is one of the two.
    cluster = find_cluster("nvlink50-eth20-x2")
    found = {}
    for mapping in (
        StageMapping.P2P_ONLY, StageMapping.ALL_REDUCE_ONLY, StageMapping.ENSEMBLE,
    ):  # fmt: skip
        scope = PipelineScope(stages=(2,), replicas=(2,), mapping=mapping)
        answer = pipeline(chain(4), cluster, microbatches=(2,), scope=scope, num_workers=0)
        hosts = [device.host for device in cluster.devices]
        found[mapping] = [[hosts[each] for each in home] for home in homes(answer, cluster)]
    assert all(one == other for one, other in found[StageMapping.ALL_REDUCE_ONLY])
    first, second = found[StageMapping.P2P_ONLY]
    assert first == second
    assert first[0] != first[1]
    assert found[StageMapping.ENSEMBLE] in (
        found[StageMapping.P2P_ONLY], found[StageMapping.ALL_REDUCE_ONLY],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "microbatches", "binding"),
    [
        (
            PipelineScope(stages=(3,), replicas=(2,)),
            (),
            "3 stages of 2 replicas need 6 devices; 4 can",
        ),
        (PipelineScope(stages=(4,)), (), "the step can be cut into 3 stages, not into 4"),
        (
            PipelineScope(replicas=(4,)),
            (8,),
            "8 microbatches of 4 replicas leave less than a sample",
        ),
    ],
)
def test_what_cannot_be_is_an_answer(
    scope: PipelineScope, microbatches: tuple[int, ...], binding: str
) -> None:
    answer = pipeline(
        chain(3), make_cluster(["fast"] * 4), microbatches=microbatches,
        scope=scope, num_workers=0,
    )  # fmt: skip
    assert answer.stop is Stop.INFEASIBLE
    assert answer.binding.startswith(binding)


def test_a_scope_checks_itself() -> None:
    assert PipelineScope(mapping="ensemble").mapping is StageMapping.ENSEMBLE  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^scope: stages: must be a whole positive number, got 0"):
        PipelineScope(stages=(0,))
    with pytest.raises(InputError, match=r"^scope: mapping: must be one of searched, consecutive"):
        PipelineScope(mapping="any")  # type: ignore[arg-type]


def test_what_wraps_around_is_no_stage() -> None:
    scope = PipelineScope(stages=(2,), replicas=(1,))
    allowed = [each for each in product(((0,), (1,)), repeat=3) if scope.allows(each)]
    assert allowed == [((0,), (1,), (0,)), ((1,), (0,), (1,))]
    assert scope.allows(((0,), (1,)))
    assert not scope.allows(((0, 2), (1,)))
