"""`meshwright cluster` and `meshwright zoo`."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli_runner import refusal, run

from meshwright.cluster.catalogue import find_cluster, list_clusters
from meshwright.cluster.file import read_cluster
from meshwright.graph.graph import read_graph
from meshwright.zoo.shipped import shipped_names
from meshwright.zoo.table import zoo_models


def test_cluster_list_names_every_family() -> None:
    shown = run("cluster", "list")
    assert shown.code == 0
    patterns = {each["pattern"] for each in run("cluster", "list", "--json").json["clusters"]}
    for entry in list_clusters():
        assert entry.example in shown.out
        assert entry.pattern in patterns


def test_cluster_show_counts() -> None:
    document = run("cluster", "show", "dgx1-x4", "--json").json
    assert (document["devices"], document["hosts"]) == (32, 4)
    assert [each["devices"] for each in document["types"]] == [32]
    # Within a host NVLink, between hosts Ethernet at 1.4 GB/s: two levels, of 4 groups and of 1.
    assert [each["groups"] for each in document["levels"]] == [4, 1]
    assert document["bytes_per_second"][0] == 1.4e9
    text = run("cluster", "show", "dgx1-x4").out
    assert "4 hosts, 32 devices" in text
    assert "1.4 GB/s" in text


def test_cluster_show_of_one_device_has_no_pairs() -> None:
    assert "levels" not in run("cluster", "show", "h200-x1", "--json").json
    assert "pair" not in run("cluster", "show", "h200-x1").out


@pytest.mark.parametrize("name", ["c.yaml", "c.json", "c.json.gz"])
def test_cluster_save_can_be_loaded(tmp_path: Path, name: str) -> None:
    result = run("cluster", "save", "tag-testbed", tmp_path / name)
    assert (result.code, result.out) == (0, "")
    loaded, built = read_cluster(tmp_path / name), find_cluster("tag-testbed")
    assert (loaded.devices, loaded.links) == (built.devices, built.links)
    assert run("cluster", "show", tmp_path / name, "--json").json["devices"] == 16


def test_zoo_lists_every_model() -> None:
    text = run("zoo").out
    models = {each["name"]: each for each in run("zoo", "--json").json["models"]}
    assert list(models) == [model.name for model in zoo_models()]
    assert all(name in text for name in models)
    assert max(map(len, text.splitlines())) <= 100
    # 12 layers of 768 and the embeddings: the 110 million of Devlin et al. (2019), section 3.
    assert models["bert-base"]["parameters"] == pytest.approx(110e6, rel=0.01)
    assert (models["bert-base"]["batch"], models["bert-base"]["sequence"]) == (64, 128)
    assert all(models[name]["source"] == "shipped" for name in shipped_names())
    assert models["gpt-1t"]["source"] == "formula"


def test_zoo_save_writes_a_graph(tmp_path: Path) -> None:
    assert run("zoo", "save", "mlp", tmp_path / "g.json.gz", "--batch", 8).code == 0
    assert read_graph(tmp_path / "g.json.gz").batch == 8


def test_zoo_save_takes_a_step(tmp_path: Path) -> None:
    options = ("--batch", 2, "--sequence", 16, "--optimizer", "adam", "--precision", "fp32")
    result = run("zoo", "save", "bert-small", tmp_path / "g.json.gz", *options)
    if find_spec("transformers") is None or find_spec("torch") is None:
        assert (result.code, "needs PyTorch" in result.err) == (2, True)
    else:
        assert (result.code, read_graph(tmp_path / "g.json.gz").batch) == (0, 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", ["--sequence", 2000], "gpt2: sequence must be at most 1024, got 2000"),
        ("resnet50", ["--sequence", 8], "resnet50: has no sequence, got sequence = 8"),
        ("mlp", ["--precision", "bf16"], "mlp: precision must be fp32 or tf32, got 'bf16'"),
        ("gpt2", ["--optimizer", "lion"], "optimizer: must be one of sgd, momentum, adam, adamw"),
        ("gpt-2", [], "zoo: no model is called 'gpt-2'; did you mean gpt2"),
    ],
)
def test_zoo_save_refuses_in_one_line(
    tmp_path: Path, name: str, options: list[object], message: str
) -> None:
    assert message in refusal("zoo", "save", name, tmp_path / "g.json.gz", *options)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_no_fault() -> None:
    done = subprocess.run(
        f"{sys.executable} -m meshwright zoo | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["zoo"], ["zoo", "--json"], ["--help"]])
@pytest.mark.parametrize("buffering", [[], ["-u"]])
def test_a_pipe_closed_at_once_is_no_fault(arguments: list[str], buffering: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, *buffering, "-m", "meshwright", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_ascii_output_is_no_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "zoo"],
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_listing_needs_neither_numba_nor_torch() -> None:
    code = (
        "import sys; from meshwright.cli import main; main(['zoo', '--json']); "
        "main(['cluster', 'list', '--json']); sys.exit(bool({'numba', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(json.loads(line) for line in done.stdout.splitlines())
