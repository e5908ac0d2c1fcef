"""Parts in layers: what they stand for, how they are spelt and written, what is refused."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cluster.build import hierarchical
from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from small import dag

NAMES = ("embedding", *"123456", "head")
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@cache
def model() -> Graph:
    return gpt(
        hidden=64, heads=4, layers=6, sequence=32, vocabulary=128, batch=8, untie=True,
        precision="bf16", name="small",
    )  # fmt: skip


@cache
def cluster() -> mw.Cluster:
    return hierarchical(
        devices_per_host=2, branching=[2], device_bytes_per_second=3e11, host_bytes_per_second=1e10
    )


def two_stages(first: Any, second: Any) -> Plan:
    names = tuple(device.name for device in cluster().devices)
    return Plan(
        parts=(Part(layers=first, devices=names[:2]), Part(layers=second, devices=names[2:])),
        schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2),
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("embedding-2", "3-head"),
        ("embedding, 1 - 2", "3-6,head"),
        (["embedding", 1, 2], [3, 4, "5-6", "head"]),
        (range(3), range(3, 8)),
        ("0,1-2", "3-7"),
    ],
)
def test_layers_are_the_stages_of_degrees(first: Any, second: Any) -> None:
    # Degrees count the embedding and the head: three layers and five.
    degrees: dict[str, Any] = {"pipeline": 2, "data": 2, "microbatches": 2, "layers": (3, 5)}
    expected = Plan.from_degrees(model(), cluster(), **degrees)
    plan = two_stages(first, second)
    assert plan.in_ops(model()) == expected
    assert plan.degrees(model(), cluster()) == mw.Degrees(**degrees)
    seconds = mw.simulate(model(), cluster(), expected).step_seconds
    assert mw.simulate(model(), cluster(), plan).step_seconds == seconds
    assert expected.in_layers(model()) == two_stages("embedding-2", "3-head")


def test_a_placement_may_name_layers_and_ops() -> None:
    # Without a schedule: layers on two devices, and the head by its ops.
    names = tuple(device.name for device in cluster().devices)
    whole = two_stages("embedding-6", "head").in_ops(model())
    plan = Plan(
        parts=(
            Part(layers="embedding-6", devices=names[:1]),
            Part(ops=whole.parts[1].ops, devices=names[1:2]),
        )
    )
    assert [part.ops for part in plan.in_ops(model()).parts] == [p.ops for p in whole.parts]
    assert mw.simulate(model(), cluster(), plan).step_seconds > 0


@st.composite
def cuts(draw: st.DrawFn) -> list[list[int]]:
    """Every layer in one of a few parts, in any order."""
    order = draw(st.permutations(range(len(NAMES))))
    bounds = sorted(draw(st.sets(st.integers(1, len(NAMES) - 1), max_size=3)))
    ends = zip([0, *bounds], [*bounds, len(NAMES)], strict=True)
    return [order[first:after] for first, after in ends]


@in_one_folder
@given(parts=cuts(), suffix=st.sampled_from([".json", ".yaml", ".json.gz"]), data=st.data())
def test_layers_and_ops_say_the_same(
    tmp_path: Path, parts: list[list[int]], suffix: str, data: st.DataObject
) -> None:
    """By numbers or names, over a file: the same ops, and back the same layers."""
    texts = [
        [data.draw(st.sampled_from([layer, NAMES[layer]])) for layer in layers] for layers in parts
    ]
    plan = Plan(
        parts=tuple(Part(layers=each, devices=(f"d{i}",)) for i, each in enumerate(texts))  # type: ignore[arg-type]
    )
    plan.save(tmp_path / f"plan{suffix}")
    read = Plan.load(tmp_path / f"plan{suffix}")
    assert read == plan
    in_ops = read.in_ops(model())
    assert sorted(op for part in in_ops.parts for op in part.ops) == sorted(model().op_names)
    assert in_ops.in_layers(model()).in_ops(model()) == in_ops
    for part, layers in zip(in_ops.in_layers(model()).parts, parts, strict=True):
        # Layers in a row are one span: a new one begins where the next number does not follow.
        follows = sum(after == before + 1 for before, after in pairwise(layers))
        assert part.layers.count(",") + 1 == len(layers) - follows


def test_what_layers_cannot_say_stays_as_it_is() -> None:
    whole = two_stages("embedding-3", "4-head").in_ops(model())
    first = whole.parts[0]
    for part in (
        replace(first, ops=first.ops[1:]),  # a layer without one op
        replace(first, ops=first.ops[::-1]),  # another order
        replace(first, priorities=tuple(map(float, range(len(first.ops))))),
        replace(first, ops=("of another graph",)),
    ):
        plan = replace(whole, parts=(part, whole.parts[1]))
        assert plan.in_layers(model()).parts == (
            part,
            replace(whole.parts[1], ops=(), layers="4-head"),
        )
    plain = dag([1.0], {})
    plan = Plan(parts=(Part(ops=plain.op_names, devices=("d0",)),))
    assert plan.in_layers(plain) == plan == plan.in_ops(plain)


BAD_LAYERS: list[tuple[Any, Any, str]] = [
    ("embedding-3", "4-9", "part 1: layer 9 is not in graph small, whose layers are embedding to "
     "head"),
    ("stem,1-3", "4-head", "part 0: layer stem is not in graph small, whose layers are embedding "
     "to head"),
    ("embedding-3", "head-4", "part 1: layers must be named first to last, got head-4"),
    ("embedding-3", "3-head", "layer 3: must be in exactly one part, stands in part 0 and 1"),
    ("embedding-3,2", "4-head", "layer 2: must be in exactly one part, stands twice in part 0"),
    ("1-3", "4-6", "layer embedding: must be in exactly one part, is in none (as are 2 layers in "
     "all)"),
    ("embedding-3", "4-6", "layer head: must be in exactly one part, is in none"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "message"), BAD_LAYERS)
def test_layers_that_a_graph_has_not_are_refused(first: Any, second: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        mw.simulate(model(), cluster(), two_stages(first, second))
    assert str(caught.value) == message


def test_a_graph_without_layers_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        two_stages("1-3", "4-head").in_ops(dag([1.0], {}))
    assert str(caught.value).startswith("part 0: layers 1-3 need a graph that has layers: graph ")
