"""The public names: there, lazy, callable whatever was imported before, and typed."""

import inspect
import subprocess
import sys
from itertools import pairwise, permutations
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.api import load_graph
from meshwright.graph.graph import Graph
from meshwright.zoo.shipped import read_shipped
from quick import few

CALL = 'assert mw.cluster("dgx1-x4").num_devices == 32'
STATEMENTS = (
    "import meshwright as mw",
    "import meshwright.cluster.cluster",
    "from meshwright.cluster.cluster import Cluster",
    "import meshwright.cluster.catalogue as c; c.find_cluster('dgx1')",
)
MYPY_SAMPLE = """
import meshwright as mw
import meshwright.cluster.cluster
from meshwright.cluster.cluster import Cluster

cluster: Cluster = mw.cluster("dgx1-x4")
answer: mw.Answer = mw.plan("mlp", cluster, method="data", seed=1, budget_seconds=2)
timeline: mw.Timeline = mw.simulate("mlp", cluster, answer.plan, sharing="none")
peaks: tuple[float, ...] = timeline.peak_bytes
mw.cluster(3)
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_names_exist_and_are_sorted() -> None:
    assert sorted(mw.__all__) == mw.__all__
    for name in mw.__all__:
        assert getattr(mw, name) is not None
    assert set(mw.__all__) <= set(dir(mw))
    assert python("from meshwright import *; print(cluster('cpu-x1').num_devices)") == "1\n"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mw.nothing  # noqa: B018


@pytest.mark.parametrize("order", few(permutations(STATEMENTS, 2), *pairwise(STATEMENTS)))
def test_functions_survive_imports_of_the_packages_they_share_a_name_with(
    order: tuple[str, str],
) -> None:
    first, second = order
    python(f"{first}\n{second}\nimport meshwright as mw\n{CALL}\n{second}\n{CALL}")


def test_packages_stay_packages() -> None:
    code = (
        "import meshwright as mw; mw.cluster('cpu-x1'); import meshwright.plan.plan as p; "
        "import meshwright.simulate.simulate; from meshwright.cluster import build; "
        "assert mw.plan.plan is p; assert mw.simulate.simulate.simulate; "
        "assert mw.cluster is __import__('sys').modules['meshwright.cluster']"
    )
    python(code)


def test_signatures_are_those_of_the_functions() -> None:
    assert list(inspect.signature(mw.cluster).parameters) == ["source"]
    assert list(inspect.signature(mw.plan).parameters)[:5] == [
        "graph", "cluster", "method", "seed", "budget_seconds",
    ]  # fmt: skip


def test_types_need_no_numba() -> None:
    code = (
        "import sys, meshwright as mw; mw.Graph, mw.Plan, mw.Cluster; print('numba' in sys.modules)"
    )
    assert python(code) == "False\n"


@pytest.mark.slow
def test_mypy_accepts_the_public_calls(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(MYPY_SAMPLE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", f"{tmp_path}/cache"]
    done = subprocess.run(
        [*command, f"{tmp_path}/sample.py"], capture_output=True, text=True, cwd=tmp_path
    )
    complaints = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(complaints) == 1, done.stdout
    assert 'Argument 1 to "cluster" has incompatible type "int"' in complaints[0]


def test_plan_then_simulate() -> None:
    cluster = mw.cluster("v100-32-x2")
    answer = mw.plan("mlp", cluster, method="data", budget_seconds=1)
    assert answer.plan is not None
    timeline = mw.simulate("mlp", "v100-32-x2", answer.plan)
    assert timeline.step_seconds == answer.step_seconds
    assert timeline.peak_bytes == answer.peak_bytes
    assert answer.bound_seconds <= answer.step_seconds


def test_the_same_seed_gives_the_same_plan() -> None:
    plans = [
        mw.plan("mlp", "v100-32-x2", method="single", seed=7, budget_seconds=1).plan
        for _ in range(2)
    ]
    assert plans[0] == plans[1]


def test_no_plan_cannot_be_simulated() -> None:
    with pytest.raises(mw.InputError, match="there is none to simulate"):
        mw.simulate("mlp", "cpu-x1", None)


def test_graphs_by_object_path_and_name(tmp_path: Path) -> None:
    graph = read_shipped("mlp")
    graph.save(tmp_path / "mlp.json")
    assert load_graph(graph) is graph
    assert load_graph(str(tmp_path / "mlp.json")).num_ops == graph.num_ops
    assert load_graph(tmp_path / "mlp.json", 8).batch == 8
    assert load_graph(graph, 8).batch == load_graph("mlp", 8).batch == 8
    assert isinstance(mw.load_graph("mlp"), Graph)
    assert mw.load_graph is load_graph


def test_a_folder_does_not_hide_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp").mkdir()
    assert load_graph("mlp").name == "mlp"


@pytest.mark.parametrize("source", [3, None, ["mlp"]])
def test_other_things_are_no_graphs(source: object) -> None:
    with pytest.raises(mw.InputError, match="a graph must be a zoo name, a path or a Graph, got"):
        load_graph(source)  # type: ignore[arg-type]


def test_errors_form_a_tree() -> None:
    assert issubclass(mw.InputError, mw.MeshwrightError)
