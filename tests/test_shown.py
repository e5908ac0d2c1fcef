"""What objects look like in an interpreter, in a notebook and as pandas frames."""

import pydoc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import meshwright as mw
from meshwright.plan.answer import RunnerUp
from meshwright.plan.plan import Part, Plan

HOSTILE = '<script>alert("x")</script>\x1b[31m'
PLAIN = getattr(pydoc, "plaintext")  # noqa: B009 (which its types do not know)
LINES, COLUMNS = 24, 400
"""Of a terminal, and of one line of facts, which it wraps."""


@pytest.fixture(scope="module")
def cluster() -> mw.Cluster:
    return mw.cluster("tag-testbed")


@pytest.fixture(scope="module")
def graph() -> mw.Graph:
    return mw.load_graph("inception-v3")


@pytest.fixture(scope="module")
def answer(graph: mw.Graph, cluster: mw.Cluster) -> mw.Answer:
    found = mw.plan(graph, cluster, method="data", budget_seconds=1)
    assert found.plan is not None
    second = RunnerUp(plan=found.plan, step_seconds=2 * found.step_seconds, description="another")
    return replace(found, runner_ups=(second,), notes=("a note",))


def test_reprs_are_one_short_line_of_what_matters(
    graph: mw.Graph, cluster: mw.Cluster, answer: mw.Answer
) -> None:
    assert answer.plan is not None
    timeline = mw.simulate(graph, cluster, answer.plan)
    shown = {
        "Graph('inception-v3', batch 32, 1,218 ops": graph,
        "Cluster('tag-testbed', 16 devices (4 v100-32, 8 1080ti, 4 p100), 7 hosts, ": cluster,
        "Plan(tensor 1, pipeline 1, data 16, gpipe x 1; 1,218 ops on 16 devices)": answer.plan,
        "Answer(data: step ": answer,
        "Timeline(step ": timeline,
        "Part(part of 1,218 ops on 'v100-host0.0": answer.plan.parts[0],
    }
    for beginning, value in shown.items():
        assert repr(value).startswith(beginning)
        assert len(repr(value)) < 300
        assert "\n" not in repr(value)


def test_an_answer_fits_a_screen(answer: mw.Answer) -> None:
    many = replace(answer, notes=("word " * 1000,) * 50)
    for text in (str(answer), str(many)):
        assert len(text.splitlines()) <= LINES
        assert max(map(len, text.splitlines())) <= COLUMNS
    assert "step    " in str(answer)
    assert "notes   a note" in str(answer)


def test_an_answer_without_a_plan_says_why(answer: mw.Answer) -> None:
    none = replace(answer, plan=None, step_seconds=float("inf"), binding="no room", runner_ups=())
    assert repr(none) == "Answer(data: no plan fits; no room)"
    assert "binding  no room" in str(none)
    assert list(none.to_pandas()["step_seconds"]) == [float("inf")]


def test_notebooks_get_tables_in_which_nothing_is_html(
    graph: mw.Graph, cluster: mw.Cluster, answer: mw.Answer
) -> None:
    hostile = replace(cluster, name=HOSTILE)
    timeline = mw.simulate(replace(graph, name=HOSTILE), cluster, answer.plan)
    part = Part(ops=(HOSTILE,), devices=(HOSTILE,))
    plan = Plan(parts=(part, replace(part, ops=("b",), devices=("second",))))
    named = replace(graph, name=HOSTILE)
    for value in (hostile, replace(answer, notes=(HOSTILE,)), timeline, plan, named):
        html = value._repr_html_()
        assert html.startswith("<table>")
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert "\x1b" not in html
        assert html.count("<tr>") == len(value.facts)


def test_frames_have_a_row_for_each_plan_device_and_instruction(
    graph: mw.Graph, cluster: mw.Cluster, answer: mw.Answer
) -> None:
    plans = answer.to_pandas()
    assert list(plans["step_seconds"]) == [answer.step_seconds, 2 * answer.step_seconds]
    assert list(plans["plan"])[1] == "another"
    devices = cluster.to_pandas()
    assert list(devices["name"]) == [device.name for device in cluster.devices]
    timeline = mw.simulate(graph, cluster, answer.plan)
    steps = timeline.to_pandas()
    assert len(steps) == timeline.program.num_instructions
    assert steps["finish_seconds"].max() == timeline.device_seconds
    assert steps["start_seconds"].is_monotonic_increasing
    assert set(steps["device"]) == set(devices["name"])


def test_frames_have_a_row_for_each_op_and_each_device_of_a_part(
    graph: mw.Graph, answer: mw.Answer
) -> None:
    ops = graph.to_pandas()
    assert list(ops["op"]) == list(graph.op_names)
    assert ops["flops"].sum() == graph.flops.sum()
    assert set(ops["phase"]) == {"forward", "backward", "update"}
    assert answer.plan is not None
    (part,) = answer.plan.parts
    rows = answer.plan.to_pandas()
    assert list(rows["device"]) == list(part.devices)
    assert set(rows["what"]) == {"1,218 ops"}
    assert set(rows["num_replicas"]) == {16}


def test_a_plan_of_many_parts_fits_a_screen() -> None:
    many = Plan(parts=tuple(Part(ops=(f"op{k}",), devices=(f"d{k}",)) for k in range(100)))
    assert len(many.facts) < LINES
    assert many.facts["part 16"] == "1 op on d15"
    assert many.facts["..."] == "84 parts more"


@contextmanager
def without(module: str) -> Iterator[None]:
    """Within this, a module cannot be imported."""
    kept = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if kept is not None:
            sys.modules[module] = kept


def test_without_pandas_an_error_says_so(cluster: mw.Cluster) -> None:
    with without("pandas"), pytest.raises(mw.InputError, match="pandas must be installed"):
        cluster.to_pandas()


@pytest.mark.parametrize("name", ["plan", "simulate", "cluster", "capture"])
def test_help_shows_the_function_of_a_callable_package(name: str) -> None:
    text = pydoc.render_doc(getattr(mw, name), renderer=PLAIN)
    function = getattr(__import__("meshwright.api").api, name)
    assert f"    {name}(\n" in text
    for line in function.__doc__.splitlines():
        assert line.strip() in text


def test_help_keeps_what_is_by_keyword_only() -> None:
    text = pydoc.render_doc(mw.simulate, renderer=PLAIN)
    assert "plan: meshwright.plan.plan.Plan | None,\n        *,\n        sharing: str" in text


def test_dir_has_public_names_only() -> None:
    assert dir(mw) == sorted(mw.__all__)


WRONG: tuple[Any, ...] = (
    3,
    -1,
    2.5,
    "nope",
    None,
    b"x",
    [],
    {},
    object(),
    True,
    float("nan"),
    float("-inf"),
)
PLAN = Plan(parts=(Part(ops=("a",), devices=("d",)),))
CALLS: dict[str, tuple[object, ...]] = {
    "graph": (3, -1, 2.5, "nope", None, b"x", [], {}, object(), True),
    "cluster": (3, -1, 2.5, "nope", None, b"x", [], {}, object(), True),
    "method": (3, "nope", None, b"x", [], {}, object(), True),
    "seed": (-1, 2.5, "nope", None, b"x", [], {}, object(), float("nan"), 2**70 + 0.5),
    "budget_seconds": (0, -1, "x", None, b"x", [], {}, object(), True, float("nan")),
    "sharing": (3, "nope", None, [], object()),
    "microbatches": (3, "nope", None, [0], [2.5], ["x"], [-1], object(), [2**70]),
    "scope": (3, "nope", [], object()),
    "engine": (3, "local", [], object()),
    "progress": (3, "nope", [], object()),
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in CALLS.items() for v in vs])
def test_wrong_arguments_of_plan_are_input_errors(name: str, value: object) -> None:
    given = {"graph": "mlp", "cluster": "cpu-x1", "method": "single", name: value}
    with pytest.raises(mw.InputError) as caught:
        mw.plan(**given)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("graph", each) for each in CALLS["graph"]),
        *(("cluster", each) for each in CALLS["cluster"]),
        *(("plan", each) for each in (*WRONG, "plan.json")),
        *(("sharing", each) for each in CALLS["sharing"]),
        *(("granularity", each) for each in (3, "nope", b"x", [], object())),
    ],
)
def test_wrong_arguments_of_simulate_are_input_errors(name: str, value: object) -> None:
    given = {"graph": "mlp", "cluster": "cpu-x1", "plan": PLAN, name: value}
    with pytest.raises(mw.InputError):
        mw.simulate(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", WRONG)
def test_wrong_arguments_of_the_others_are_input_errors(value: object) -> None:
    calls: tuple[Callable[[Any], object], ...] = (
        mw.cluster,
        mw.load_graph,
        mw.open_engine,
        mw.read_profile,
        mw.Plan.load,
        mw.Graph.load,
        mw.Cluster.load,
        lambda each: mw.Plan(parts=each),
        lambda each: mw.Plan(parts=(each,)),
        lambda each: mw.training(each, "cpu-x1", None).__enter__(),
    )
    for call in calls:
        with pytest.raises(mw.InputError):
            call(value)


@pytest.mark.parametrize("name", ["tensor", "context", "expert", "zero", "microbatches", "pods"])
@pytest.mark.parametrize("value", [3, "nope", None, (0,), (2.5,), ("x",), (-1,), object()])
def test_wrong_limits_of_a_scope_are_input_errors(name: str, value: object) -> None:
    if name == "zero" and value == (0,):
        return
    with pytest.raises(mw.InputError, match=f"scope: {name}"):
        mw.Scope(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [0, -1, "x", float("nan"), float("inf"), [], object()])
def test_a_wrong_batch_is_an_input_error(batch: object) -> None:
    with pytest.raises(mw.InputError):
        mw.load_graph("mlp", batch)  # type: ignore[arg-type]
