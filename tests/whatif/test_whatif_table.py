"""The table asks for each resource, ranks by gain, and lets all rows profit from every plan."""

import json
import math
from dataclasses import replace

import pytest

import meshwright as mw
from json_schema import is_valid
from meshwright.change.apply import change_request
from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.request import Request
from meshwright.source import load_graph
from meshwright.whatif import ask
from meshwright.whatif.ask import Inquiry, ask_all, possible, share_plans
from meshwright.whatif.outcome import Outcome, Question, Step
from meshwright.whatif.table import list_questions
from meshwright.whatif.whatif import NOW, answer_whatif


def names(cluster: str, model: str = "mlp") -> list[str]:
    request = Request(graph=load_graph(model), cluster=find_cluster(cluster))
    return [question.name for question in list_questions(request)]


def test_the_table_has_every_resource_of_a_pod() -> None:
    assert names("h100-x4x2") == [
        *(f"{what} {way}" for what in (
            "links inside hosts", "links of hosts to the network", "links of level 3", "latency",
            "h100 FLOP/s", "h100 memory bandwidth", "h100 memory",
        ) for way in ("x2", "/2")),
        "b200 for h100", "one host more", "one host fewer", "batch x2", "batch /2",
    ]  # fmt: skip


def test_nvlink_is_asked_for_where_pcie_is_beside_it() -> None:
    found = names("v100-32-x8")  # a cube mesh, and PCIe to the host
    assert {"links inside hosts x2", "NVLink x2", "NVLink /2"} <= {*found}
    assert "one host fewer" not in found


def test_hosts_that_differ_are_asked_for_by_their_makes() -> None:
    found = names("tag-testbed")
    assert {
        f"one host more like {each}" for each in ("v100-host0", "1080ti-host3", "p100-host1")
    } <= {*found}
    assert "rtx3090 for 1080ti" in found
    assert "latency x2" not in found  # it has none


def test_a_mesh_is_asked_for_all_links_at_once() -> None:
    assert names("mesh2d-2x2")[:2] == ["all links x2", "all links /2"]


def test_every_question_of_every_cluster_is_answered_or_explained() -> None:
    for cluster in ("h100-x4x2", "cpu-x2", "mesh2d-2x2", "tag-testbed", "dgx1", "uniform-4"):
        request = Request(graph=load_graph("mlp"), cluster=find_cluster(cluster))
        questions = list_questions(request)
        kept, notes = possible(request, questions)
        assert len(kept) + len(notes) == len(questions)
        for question in kept:
            changed = change_request(request, question.changes)
            assert changed.cluster is not request.cluster or changed.graph is not request.graph
        for note in notes:
            assert note.startswith(("one host more: hosts: a copy of", "one host"))


@pytest.fixture(scope="module")
def answer() -> Answer:
    return mw.plan("mlp", "v100-32-x2", method="data", budget_seconds=1)


def test_the_table_is_ranked_by_gain(answer: Answer) -> None:
    found = mw.whatif(answer, workers=1, budget_seconds=30, prices=["v100-32=2/h"])
    assert found.now.name == NOW
    assert found.now.kept is not None
    assert found.now.kept.seconds == answer.step_seconds
    gains = [found.gain_of(each) for each in found.outcomes]
    assert gains == sorted(gains, reverse=True)
    by_name = {each.name: each for each in found.outcomes}
    twice = by_name["batch x2"]
    # Two devices at 2 an hour; a step of so many samples.
    assert twice.cost_per_step == pytest.approx(4 / 3600 * twice.best.seconds)
    assert twice.cost_per_sample == pytest.approx(twice.cost_per_step / twice.batch)
    assert math.isnan(by_name["a100-80 for v100-32"].cost_per_step)
    assert any(note.startswith("one host more: hosts: a copy of 'host0'") for note in found.notes)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    schema = mw.schema("whatif")
    assert is_valid(document, schema, schema)
    assert document["outcomes"][0]["gain"] == pytest.approx(gains[0])
    assert str(found).splitlines()[0].startswith(NOW)


def test_changes_are_made_together_and_alone(answer: Answer) -> None:
    found = mw.whatif(answer, workers=1, speed="2x", memory_rate="2x", each=True)
    assert {each.name for each in found.outcomes} == {
        "speed 2x, memory rate 2x", "speed 2x", "memory rate 2x",
    }  # fmt: skip
    assert found.outcomes[0].name == "speed 2x, memory rate 2x"
    alone = mw.whatif(answer, workers=1, speed="2x")
    assert [each.name for each in alone.outcomes] == ["speed 2x"]


def test_a_plan_that_does_not_apply_or_does_not_fit_says_so(answer: Answer) -> None:
    assert answer.request is not None
    two = mw.plan("mlp", "dgx1-x2", method="data", budget_seconds=1)
    fewer = mw.whatif(two, workers=1, without="host0")
    kept = fewer.outcomes[0].kept
    assert kept is not None
    assert kept.seconds == math.inf
    assert "host0.0" in kept.obstacle
    tight = mw.whatif(answer, workers=1, memory="600MB").outcomes[0]
    assert tight.kept is not None
    assert not tight.kept.fits
    assert not tight.planned.fits
    assert tight.planned.obstacle
    assert tight.stop is Stop.INFEASIBLE
    assert tight.samples_per_second == 0


def test_wrong_changes_are_refused_before_anything_is_searched(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ask, "find_outcome", never)
    with pytest.raises(InputError, match=r"^memory: no device of type 'h100' in the cluster"):
        mw.whatif(answer, memory="h100=2x")
    with pytest.raises(InputError, match=r"^price: no type of device"):
        mw.whatif(answer, prices=["h10=2"])
    with pytest.raises(InputError, match=r"^unknown change 'bandwidth'"):
        mw.whatif(answer, bandwidth="2x")
    with pytest.raises(InputError, match=r"^answer: must be one of `meshwright.plan`"):
        mw.whatif(replace(answer, request=None), batch="2x")
    with pytest.raises(InputError, match="no such plan"):
        mw.whatif("nowhere", batch="2x")


def outcome(name: str, seconds: float, stop: Stop = Stop.ENDED) -> Outcome:
    return Outcome(
        name=name, cluster="c", num_devices=1, batch=1.0, kept=None,
        planned=Step(seconds=seconds, headroom=0.5), bound_seconds=0.0, stop=stop,
        price_per_hour=math.nan,
    )  # fmt: skip


def test_an_interrupted_search_keeps_the_rows_before_it(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the third question: by an exception, or by an answer that says so."""
    assert answer.request is not None
    questions = [Question(name=str(number)) for number in range(5)]
    inquiry = Inquiry(request=answer.request, plan=answer.plan)
    assert pressed_at_two(monkeypatch, inquiry, questions, raises=True) == ["0", "1"]
    assert pressed_at_two(monkeypatch, inquiry, questions, raises=False) == ["0", "1"]


def pressed_at_two(
    monkeypatch: pytest.MonkeyPatch,
    inquiry: Inquiry,
    questions: list[Question],
    *,
    raises: bool,
) -> list[str]:
    def answer_one(_: object, __: object, question: Question, **___: object) -> Outcome:
        if question.name == "2" and raises:
            raise KeyboardInterrupt
        stop = Stop.INTERRUPTED if question.name == "2" else Stop.ENDED
        return outcome(question.name, 1.0, stop)

    monkeypatch.setattr(ask, "find_outcome", answer_one)
    return [each.name for each in ask_all(inquiry, questions, workers=1)]


def test_every_row_profits_from_the_plans_of_the_others(answer: Answer) -> None:
    """A search that found a slow plan gets the fast one of another row."""
    request, fast = answer.request, answer.plan
    assert request is not None
    assert fast is not None
    slow = mw.plan("mlp", "v100-32-x2", method="single", budget_seconds=1).plan
    assert slow is not None
    steps = {}
    for name, plan in (("slow", slow), ("fast", fast)):
        seconds = mw.simulate(request.graph, request.cluster, plan).step_seconds
        steps[name] = Step(seconds=seconds, headroom=0.5, plan=plan)
    best = min(step.seconds for step in steps.values())
    assert best < max(step.seconds for step in steps.values())
    outcomes = [replace(outcome(name, 0.0), planned=step) for name, step in steps.items()]
    questions = [Question(name=each.name) for each in outcomes]
    inquiry = Inquiry(request=request, plan=fast)
    shared = share_plans(inquiry, questions, outcomes, workers=1)
    assert [each.best.seconds for each in shared] == [best, best]
    assert [each.planned for each in shared] == [each.planned for each in outcomes]


def test_rows_of_other_processes_are_those_of_this_one(answer: Answer) -> None:
    assert answer.request is not None
    one = mw.whatif(answer, workers=1, speed="2x")
    two = mw.whatif(answer, workers=2, speed="2x")
    assert [each.planned.seconds for each in one.outcomes] == [
        each.planned.seconds for each in two.outcomes
    ]


def test_a_budget_is_shared_over_rows(answer: Answer) -> None:
    assert answer.request is not None
    found = answer_whatif(answer.request, answer.plan, [], budget_seconds=17.0, workers=1)
    assert found.budget_seconds == pytest.approx(17.0 / (1 + len(found.outcomes)))
