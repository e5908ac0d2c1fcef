"""Exports of plans: files, the page beside them, and what cannot be exported."""

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.export.page import PAGE_FILE
from meshwright.export.write import export_plan
from meshwright.plan.plan import place_ops
from meshwright.plan.request import Request

MODEL = "llama:hidden=64,heads=8,layers=4,sequence=64,intermediate=128,vocabulary=512,batch=16"


def request_of(cluster: str = "h100-x4") -> Request:
    return Request(graph=mw.load_graph(MODEL), cluster=mw.cluster(cluster))


def test_an_answer_is_exported_with_a_page(tmp_path: Path) -> None:
    answer = mw.plan(MODEL, "h100-x4", method="data", budget_seconds=1)
    exported = mw.export(answer, "deepspeed", tmp_path / "out")
    assert exported.left_out == ()
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        PAGE_FILE, "deepspeed.json",
    ]  # fmt: skip
    page = (tmp_path / "out" / PAGE_FILE).read_text()
    assert "Everything that the plan says is in these files." in page
    assert max(map(len, page.splitlines())) <= 100


def test_the_page_prices_what_is_left_out() -> None:
    request = request_of()
    words = {"pipeline": 2, "microbatches": 4, "layers": (2, 4), "schedule": "gpipe"}
    plan = mw.Plan.from_degrees(request.graph, request.cluster, **words)
    exported = export_plan(request, plan, "deepspeed")
    assert exported.left_out == (
        "schedule gpipe: stages run 1f1b",
        "layers by stage, 1, 3: 2, 2, as many in each",
    )
    assert exported.plan is not None
    assert exported.plan.degrees(request.graph, request.cluster).layers == ()  # type: ignore[union-attr]


def test_unlike_stages_get_the_fastest_degrees_of_one_of_them() -> None:
    request = request_of()
    plan = mw.Plan.from_degrees(request.graph, request.cluster, pipeline=2, microbatches=2)
    full = mw.Plan.from_degrees(
        request.graph, request.cluster, pipeline=2, microbatches=2, recompute="full"
    )
    mixed = mw.Plan(parts=(full.parts[0], plan.parts[1]), schedule=plan.schedule)
    exported = export_plan(request, mixed, "megatron")
    assert exported.left_out == ("stages that differ in recompute: all have recompute none",)
    assert exported.plan is not None
    assert exported.plan.parts == plan.parts  # what is not computed again is faster, and fits


def test_placements_cannot_be_exported() -> None:
    request = request_of()
    names = request.graph.op_names
    plan = place_ops(names, [0] * (len(names) - 1) + [1], ["host0.0", "host0.1"])
    with pytest.raises(InputError, match="places single ops or unequal replicas"):
        export_plan(request, plan, "megatron")


def test_gpipe_of_several_stages_a_device_ends_under_runtimes_that_wait() -> None:
    request = request_of()
    plan = mw.Plan.from_degrees(
        request.graph, request.cluster, pipeline=2, chunks=2, microbatches=4, schedule="gpipe"
    )
    steps = [
        mw.simulate(request.graph, request.cluster, plan, runtime=runtime).step_seconds
        for runtime in ("meshwright", "torchtitan")
    ]
    assert steps[1] >= steps[0] > 0
