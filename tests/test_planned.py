"""What `meshwright plan -o` has written is read back: the request and the plan, if there is one."""

import json
import sys
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cluster.catalogue import load_cluster
from meshwright.errors import InputError
from meshwright.plan.part import Recompute
from meshwright.plan.request import Request
from meshwright.planned import ANSWER_FILE, read_planned
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.pipeline.scope import PipelineScope

sys.path.insert(0, str(Path(__file__).parent / "cli"))
from cli_runner import run


def fields(request: Request) -> dict[str, object]:
    names = (name for name in Request.__dataclass_fields__ if name not in ("graph", "cluster"))
    return {name: getattr(request, name) for name in names}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--method", "data", "--seed", 3], {"method": "data", "seed": 3}),
        (
            ["--method", "hybrid", "--tensor", "1", "--recompute", "full,none", "--zero", "1"],
            {
                "method": "hybrid",
                "scope": Scope(tensor=(1,), recompute=(Recompute.FULL, Recompute.NONE), zero=(1,)),
            },
        ),
        (
            ["--method", "pipeline", "--stages", "2", "--microbatches", "2,4"],
            {
                "method": "pipeline",
                "scope": PipelineScope(stages=(2,)),
                "microbatches": (2, 4),
            },
        ),
    ],
)
def test_the_request_is_read_as_it_was_asked(
    tmp_path: Path, options: list[object], expected: dict[str, object]
) -> None:
    result = run("plan", "gpt2", "--cluster", "v100-32-x2", "--budget", 1, *options, "-o", tmp_path)
    assert result.code == 0, result.err
    found = read_planned(tmp_path)
    defaults = fields(Request(graph=found.request.graph, cluster=found.request.cluster))
    assert fields(found.request) == {**defaults, "budget_seconds": 1.0, **expected}
    assert found.request.cluster.name == "v100-32-x2"
    assert found.plan is not None
    document = json.loads((tmp_path / ANSWER_FILE).read_text())
    again = mw.simulate(found.request.graph, found.request.cluster, found.plan)
    assert again.step_seconds == document["step_seconds"]


def test_an_answer_has_its_request() -> None:
    cluster = load_cluster("v100-32-x2")
    answer = mw.plan("mlp", cluster, method="data", seed=7, budget_seconds=1)
    assert answer.request is not None
    assert answer.request.cluster is cluster
    assert (answer.request.method, answer.request.seed) == ("data", 7)
    assert answer.to_dict()["request"]["seed"] == 7


def test_a_search_without_a_plan_is_kept_too(tmp_path: Path) -> None:
    words = ["plan", "llama-3-70b", "--cluster", "v100-32-x2", "--budget", 1, "-o", tmp_path]
    assert run(*words).code == 3
    found = read_planned(tmp_path)
    assert found.plan is None
    assert found.request.method == "auto"


def test_a_search_without_a_plan_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    small = ["plan", "mlp", "--cluster", "v100-32-x2", "--method", "data", "--budget", 1]
    assert run(*small, "-o", tmp_path).code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    large = run("plan", "llama-3-70b", "--cluster", "v100-32-x2", "--budget", 1, "-o", tmp_path)
    assert large.code == 3
    assert f"{tmp_path} keeps the plan that it had" in large.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_from_before_requests_were_kept_are_read(tmp_path: Path) -> None:
    run("plan", "mlp", "--cluster", "v100-32-x2", "--budget", 1, "--method", "data", "-o", tmp_path)
    document = json.loads((tmp_path / ANSWER_FILE).read_text())
    del document["request"]
    (tmp_path / ANSWER_FILE).write_text(json.dumps(document))
    assert read_planned(tmp_path).request.method == "data"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method": "magic"}, "method"),
        ({"scope": {"tensor": [0]}, "method": "hybrid"}, "scope: tensor"),
        ({"scope": {"tensors": [1]}, "method": "hybrid"}, "request.scope"),
        ({"scope": {"tensor": [1]}, "method": "data"}, "request.scope"),
        ({"budget_seconds": -1}, "budget_seconds"),
    ],
)
def test_a_damaged_request_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], text: str
) -> None:
    run("plan", "mlp", "--cluster", "v100-32-x2", "--budget", 1, "--method", "data", "-o", tmp_path)
    document = json.loads((tmp_path / ANSWER_FILE).read_text())
    document["request"] |= changes
    (tmp_path / ANSWER_FILE).write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"{ANSWER_FILE}.*{text}"):
        read_planned(tmp_path)
