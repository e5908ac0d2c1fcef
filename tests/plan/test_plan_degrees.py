"""Plans by degrees: which devices and layers they have, where layers are cut, what is refused."""

from dataclasses import asdict
from functools import cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cluster.build import hierarchical
from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.stack.find import find_layers
from meshwright.plan.degrees import Degrees, cut_layers, word_degrees
from meshwright.plan.part import Keys, Recompute, ScheduleKind
from meshwright.plan.plan import Part, Plan, Schedule
from small import dag


@cache
def model(layers: int = 6, batch: int = 8, untie: bool = False) -> Any:
    return gpt(
        hidden=64, heads=4, layers=layers, sequence=32, vocabulary=128, batch=batch, untie=untie,
        precision="bf16", name="small",
    )  # fmt: skip


@cache
def cluster(hosts: int = 4) -> Any:
    return hierarchical(
        devices_per_host=2, branching=[hosts], device_bytes_per_second=3e11,
        host_bytes_per_second=1e10,
    )  # fmt: skip


def plan_of(**degrees: Any) -> Plan:
    return Plan.from_degrees(model(), cluster(), **degrees)


def devices_of(plan: Plan) -> list[tuple[int, ...]]:
    return [tuple(cluster().index[name] for name in part.devices) for part in plan.parts]


def num_layers_of(plan: Plan) -> list[int]:
    layer_of_op = find_layers(model()).layer_of_op
    return [len({int(layer_of_op[model().index[op]]) for op in p.ops}) for p in plan.parts]


def test_tensor_is_innermost_and_pipeline_outermost() -> None:
    # Teams of two next to each other, two replicas of each stage, then the next stage.
    plan = plan_of(tensor=2, pipeline=2, data=2, microbatches=2)
    assert devices_of(plan) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert plan.parts[0].teams() == (plan.parts[0].devices[:2], plan.parts[0].devices[2:])
    assert plan.schedule == Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2)


def test_pods_put_stages_next_to_each_other() -> None:
    plan = plan_of(tensor=2, pipeline=2, pods=2)
    assert devices_of(plan) == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_chunks_go_round_the_runs_of_devices() -> None:
    plan = plan_of(tensor=2, pipeline=2, chunks=2, microbatches=2)
    assert devices_of(plan) == [(0, 1, 2, 3), (4, 5, 6, 7)] * 2
    assert plan.schedule == Schedule(kind=ScheduleKind.INTERLEAVED, microbatches=2)


def test_data_is_what_is_left_over() -> None:
    assert plan_of(tensor=2, pipeline=2, microbatches=2).parts[0].num_replicas == 2
    assert plan_of(context=2).parts[0].num_replicas == 4


def test_every_word_reaches_the_parts() -> None:
    plan = plan_of(
        tensor=2, sequence_parallel=True, context=2, keys="ring", pipeline=2, zero=3,
        recompute="selective", microbatches=4, schedule="gpipe",
    )  # fmt: skip
    part = plan.parts[0]
    assert (part.tensor, part.sequence, part.context, part.keys) == (2, True, 2, Keys.RING)
    assert (part.zero, part.recompute) == (3, Recompute.SELECTIVE)
    assert plan.schedule == Schedule(kind=ScheduleKind.GPIPE, microbatches=4)


def test_zero_is_none_where_nothing_is_divided() -> None:
    assert plan_of(tensor=4, pipeline=2, zero=1, microbatches=8).parts[0].zero == 0
    assert plan_of(tensor=2, pipeline=2, zero=1).parts[0].zero == 1


def test_layers_are_as_they_are_named() -> None:
    # An embedding, six layers and a head.
    assert num_layers_of(plan_of(tensor=2, pipeline=2, layers=[3, 5])) == [3, 5]
    assert sum(num_layers_of(plan_of(tensor=2, pipeline=4))) == 8


def test_a_model_without_layers_may_be_replicated() -> None:
    graph = dag([1.0], {}).at_batch(8)
    plan = Plan.from_degrees(graph, cluster(), data=8)
    assert [len(part.ops) for part in plan.parts] == [graph.num_ops]
    assert plan.parts[0].num_replicas == 8


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7),
    st.integers(1, 7),
)
def test_cuts_equal_brute_force(pairs: list[tuple[int, int]], num_stages: int) -> None:
    """Of all cuts the least largest stage, then the most even stages, then the first."""
    seconds = np.array(pairs, dtype=np.float64).T
    # So that the whole is a million: the weights are then the numbers themselves.
    seconds = np.pad(seconds, ((0, 0), (0, 1)))
    seconds[0, -1] = 1_000_000 - seconds.sum()
    count = seconds.shape[1]
    if num_stages > count:
        return

    def cost(bounds: tuple[int, ...]) -> tuple[float, float, tuple[int, ...]]:
        loads = [float(seconds[:, a:b].sum(axis=1).max()) for a, b in pairwise(bounds)]
        return max(loads), sum(each * each for each in loads), bounds

    cuts = combinations(range(1, count), num_stages - 1)
    *_, bounds = min(cost((0, *cut, count)) for cut in cuts)
    assert cut_layers(seconds, num_stages) == tuple(b - a for a, b in pairwise(bounds))


def test_equal_layers_are_cut_evenly_and_first_stages_are_short() -> None:
    assert cut_layers(np.ones((2, 10)), 4) == (2, 2, 3, 3)


WORDS: list[dict[str, Any]] = [
    {"tensor": 2, "pipeline": 2},
    {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "chunks": 2, "microbatches": 4},
    {"context": 2, "keys": "ring", "zero": 3, "recompute": "full"},
    {"pipeline": 2, "pods": 2, "zero": 2, "layers": [2, 6], "schedule": "zero-bubble"},
    {"pipeline": 4, "chunks": 2, "schedule": "gpipe", "recompute": "selective"},
    {},
]


@pytest.mark.parametrize("words", WORDS)
def test_a_plan_says_its_degrees(words: dict[str, Any]) -> None:
    plan = plan_of(**words)
    degrees = plan.degrees(model(), cluster())
    assert degrees is not None
    assert plan_of(**asdict(degrees)) == plan
    told = word_degrees(degrees)
    assert plan_of(**told) == plan
    assert {name: told.get(name) for name in words} == words


def test_unlike_stages_have_no_degrees() -> None:
    first, *others = plan_of(tensor=2, pipeline=2, recompute="full").parts
    made = {name: getattr(first, name) for name in ("ops", "devices", "tensor")}
    plan = Plan(
        parts=(Part(**made), *others),
        schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=1),
    )
    assert plan.degrees(model(), cluster()) is None
    assert Plan(parts=plan.parts).degrees(model(), cluster()) is None


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor": 0}, "tensor: must be a whole number from 1, got 0"),
        ({"data": 1.5}, "data: must be a whole number from 0, got 1.5"),
        ({"pipeline": True}, "pipeline: must be a whole number from 1, got True"),
        ({"zero": 4}, "zero: must be 0, 1, 2 or 3, got 4"),
        ({"recompute": "some"}, "recompute: must be one of none, selective, full, got 'some'"),
        ({"sequence_parallel": True}, "sequence_parallel: needs tensor above 1, got 1"),
        ({"keys": "ring"}, "keys: ring needs context above 1, got 1"),
        ({"chunks": 2}, "chunks: needs pipeline above 1, got 2 chunks of 1"),
        (
            {"pipeline": 2, "chunks": 2, "schedule": "1f1b"},
            "chunks: above 1 needs schedule interleaved-1f1b or gpipe, got 1f1b",
        ),
        (
            {"pipeline": 2, "schedule": "interleaved-1f1b"},
            "schedule: interleaved-1f1b needs chunks above 1, got 1",
        ),
        (
            {"pipeline": 4, "chunks": 2, "microbatches": 9},
            "microbatches: interleaved-1f1b takes them through pipeline 4 in 2 equal rounds, which "
            "must divide them, got 9",
        ),
        (
            {"pipeline": 2, "layers": [8]},
            "layers: must be one number for each of pipeline x chunks (2 x 1) stages, got 1",
        ),
        (
            {"pipeline": 2, "layers": [8, 0]},
            "layers: each stage must have at least one, got 0",
        ),
        (
            {"tensor": 2, "pipeline": 2, "layers": [3, 4]},
            "layers: must add up to the 8 of graph small (embedding and head counted), got 7",
        ),
        (
            {"tensor": 3},
            "tensor x context x data x pipeline: must be the 8 devices of cluster "
            "hierarchical, got 3 x 1 x 2 x 1 = 6",
        ),
        (
            {"tensor": 2, "data": 3},
            "tensor x context x data x pipeline: must be the 8 devices of cluster "
            "hierarchical, got 2 x 1 x 3 x 1 = 6",
        ),
        ({"tensor": 8}, "tensor must divide heads of layer 1 (4), got 8"),
        ({"expert": 2}, "expert must be 1 in a model without experts, got 2"),
        ({"expert": 3}, "expert: must divide data (8), got 3"),
        ({"pipeline": 2, "pods": 3}, "pods: must divide data (4), got 3"),
        (
            {"data": 8, "microbatches": 2},
            "data x microbatches: must divide the batch (8 samples) of graph small, got 8 x 2 = 16",
        ),
        (
            {"pipeline": 4, "chunks": 3, "recompute": "full"},
            "pipeline x chunks: must be at most the 8 layers of graph small, got 4 x 3 = 12",
        ),
        (
            {"pipeline": 2},
            "pipeline: must be 1, because layers of graph small share weights, which stages have "
            "copies of only with tensor, context or expert above 1, ZeRO or recomputation, got 2; "
            "or untie them",
        ),
    ],
)
def test_what_is_refused_names_degree_rule_and_value(degrees: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(**degrees)
    assert str(caught.value) == message


def test_untied_layers_may_be_plain_stages() -> None:
    plan = Plan.from_degrees(model(untie=True), cluster(), pipeline=2)
    assert len(plan.parts) == 2


def test_a_model_without_layers_has_no_stages() -> None:
    with pytest.raises(InputError, match=r"^degrees other than data need a model of layers: "):
        Plan.from_degrees(dag([1.0], {}).at_batch(8), cluster(), tensor=2)


def test_degrees_are_public() -> None:
    degrees = mw.Degrees(tensor=2, pipeline=2)
    assert isinstance(degrees, Degrees)
    assert mw.Plan.from_degrees(model(), cluster(), **asdict(degrees)) == plan_of(
        tensor=2, pipeline=2
    )


def test_what_is_no_graph_cluster_or_list_is_refused() -> None:
    with pytest.raises(InputError, match=r"^graph: must be a Graph, .* got 'gpt2'$"):
        Plan.from_degrees("gpt2", cluster(), tensor=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^cluster: must be a Cluster, .* got 'h100-x8'$"):
        Plan.from_degrees(model(), "h100-x8", tensor=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^layers: must be a list of whole numbers, got 5$"):
        plan_of(layers=5)
    with pytest.raises(InputError, match=r"^part: devices: must be names, got one of type int$"):
        Part(ops=("a",), devices=(5,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^schema: must be one of answer, .* got \['answer'\]$"):
        mw.schema(["answer"])  # type: ignore[arg-type]
