"""Plans of graphs whose ops are merged as a compiler does are run in the ops of the step."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import BATCH, captured, make_workload  # noqa: E402
from small_trainer import OPTIMIZER  # noqa: E402

from meshwright.cluster.build import fully_connected  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.settings import Settings  # noqa: E402
from meshwright.execute.unmerge import unmerge  # noqa: E402
from meshwright.graph.fuse import fuse_elementwise, may_be_fused  # noqa: E402
from meshwright.plan.plan import Part, Plan  # noqa: E402
from meshwright.simulate.simulate import simulate  # noqa: E402

CLUSTER = fully_connected(num_devices=2, device_type="h100", bytes_per_second=1e11)
SETTINGS = Settings(optimizer=OPTIMIZER)
NAMES = ["heads", "gated", "tied", "residual"]


def halves(graph: Any) -> Plan:
    """Forward and backward of the first modules on one device, the rest on another."""
    names = list(dict.fromkeys(graph.module))
    first = set(names[: len(names) // 2])
    parts: list[list[str]] = [[], []]
    for op, module in zip(graph.op_names, graph.module, strict=True):
        parts[module not in first].append(op)
    devices = [each.name for each in CLUSTER.devices]
    return Plan(
        parts=tuple(
            Part(ops=tuple(ops), devices=(device,), priorities=tuple(range(len(ops))))
            for ops, device in zip(parts, devices, strict=True)
        )
    )


@pytest.mark.parametrize("name", NAMES)
def test_ops_go_where_the_merged_one_was_and_take_its_time(name: str) -> None:
    graph = captured(name)
    merged = fuse_elementwise(graph)
    assert merged.num_ops < graph.num_ops
    assert may_be_fused(merged)
    assert not may_be_fused(graph)
    plan = halves(merged)
    whole, own, settings, _ = unmerge(merged, CLUSTER, plan, make_workload(name), SETTINGS)
    assert whole.op_names == graph.op_names
    assert settings.compiles
    for part, old in zip(own.parts, plan.parts, strict=True):
        assert set(old.ops) <= set(part.ops)
        assert len(part.priorities) == len(part.ops)
    assert sorted(op for part in own.parts for op in part.ops) == sorted(graph.op_names)
    alone = Plan(parts=(Part(ops=merged.op_names, devices=(CLUSTER.devices[0].name,)),))
    one, two, *_ = unmerge(merged, CLUSTER, alone, make_workload(name), SETTINGS)
    expected = simulate(merged, CLUSTER, alone).step_seconds
    assert simulate(one, CLUSTER, two).step_seconds == pytest.approx(expected, rel=1e-6)


def test_what_is_not_merged_stays_as_it_is() -> None:
    graph = captured("perceptron")  # without a view, so that nothing tells
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(CLUSTER.devices[0].name,)),))
    found = unmerge(graph, CLUSTER, plan, make_workload("perceptron"), SETTINGS)
    assert found[0] is graph
    assert found[1] is plan
    assert found[2] is SETTINGS


def test_who_says_not_to_compile_is_heard() -> None:
    merged = fuse_elementwise(captured("heads"))
    given = replace(SETTINGS, compiles=False)
    assert unmerge(merged, CLUSTER, halves(merged), make_workload("heads"), given)[2] is given


def test_merged_ops_of_another_model_are_refused() -> None:
    merged = fuse_elementwise(captured("gated").at_batch(BATCH))
    with pytest.raises(InputError, match="must be those of the model's step"):
        unmerge(merged, CLUSTER, halves(merged), make_workload("heads"), SETTINGS)
