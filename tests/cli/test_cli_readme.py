"""What the README shows is what runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import run

from canary import heard, plant
from documented import read_blocks, read_commands
from meshwright.cli.parser import make_parser
from meshwright.cli.zoo import zoo_documents
from meshwright.cluster.file import read_cluster

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = {each.stem: each.read_text(encoding="utf-8") for each in (ROOT / "docs/guide").iterdir()}
"""The pages of the guide, by their names; `tests/docs` runs their code."""
DESIGN = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
MOST_LINES = 150
"""Lines of a README that one reads in two minutes."""


def blocks(language: str, page: str = README) -> list[str]:
    """The texts of the blocks of a language, but for those that say more than its name."""
    return [each.text for each in read_blocks(page, language) if not each.info]


def commands(language: str = "sh", page: str = README) -> list[list[str]]:
    """The commands of all shell blocks.

    Blocks of "sh" are run, those of "bash" need a GPU and are only parsed.
    """
    found = [each for block in read_blocks(page, language) for each in read_commands(block)]
    return [each.words for each in found]


def demo_command() -> list[str]:
    """The command that scripts/demo ends with, without its folder of programs."""
    last = (ROOT / "scripts" / "demo").read_text().strip().splitlines()[-1]
    return shlex.split(last.removeprefix(".venv/bin/"))


def run_in(folder: Path, words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_is_known() -> None:
    known = {"scripts/demo", "scripts/test", "meshwright"}
    assert {words[0] for words in commands()} <= known
    assert ["scripts/demo"] in commands()
    assert ["scripts/test"] in commands()


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES


def test_links_and_pictures_lead_somewhere() -> None:
    found = [each for each in re.findall(r"\]\(([^)]+)\)", README) if "://" not in each]
    assert "docs/img/report.png" in found
    for target in found:
        assert (ROOT / target).is_file(), target


def test_the_clusters_shown_are_read(tmp_path: Path) -> None:
    (own,) = blocks("yaml")
    (tmp_path / "own.yaml").write_text(own)
    assert read_cluster(tmp_path / "own.yaml").num_devices == 48
    (text,) = (block for block in blocks("yaml", GUIDE["commands"]) if "racks:" in block)
    (tmp_path / "ours.yaml").write_text(text)
    cluster = read_cluster(tmp_path / "ours.yaml")
    assert (len(cluster.hosts), cluster.num_devices) == (67, 4 * 16 * 8 + 2 * 8 + 6)


def test_the_plan_of_the_guide_is_simulated(tmp_path: Path) -> None:
    (text,) = (block for block in blocks("json", GUIDE["searches"]) if "meshwright.plan" in block)
    (tmp_path / "plan.json").write_text(text)
    words = ("llama-2-7b", "--cluster", "h100-x8x2", "--granularity", "layer", "--json")
    found = run("simulate", *words, "--plan", tmp_path / "plan.json").json
    assert found["fits"]


def test_commands_that_need_a_gpu_are_understood() -> None:
    assert any("cuda" in words for words in commands("bash", GUIDE["models"]))
    for program, *words in commands("bash"):
        assert program == "meshwright"
        make_parser().parse_args(words)


def test_the_models_are_counted() -> None:
    for page in (README, GUIDE["commands"]):
        assert f"# {len(zoo_documents())} models that need no file" in page


@pytest.mark.slow
def test_commands_run_in_order(tmp_path: Path) -> None:
    ours = [words for words in commands() if words[0] == "meshwright"]
    assert ours
    log = plant(tmp_path, spared=("meshwright",))  # which Python itself would run
    for words in ours:
        assert run_in(tmp_path, words)
        assert heard(log) == [], words


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    (shown,) = blocks("text")
    out = run_in(tmp_path, demo_command())
    # Times of the search depend on the machine, and with them the plan that it ends with, and with
    # that the widths of columns, and which of them stand below.
    assert out.splitlines()[0] == shown.splitlines()[0]
    assert _facts(shown)[:2] == ["step", "plan"]
    # Plans by layer say what binds them, too.
    one, other = ([each for each in _facts(text) if each != "binding"] for text in (out, shown))
    assert one == other
    assert {"busy", "peak", "GiB", "runs"} <= _heads(shown) & _heads(out)


def _facts(text: str) -> list[str]:
    """What stands at the left of the panel."""
    return re.findall(r"^│ (\w+)  ", text, flags=re.MULTILINE)


def _heads(text: str) -> set[str]:
    """The words of the heads of the table of devices."""
    heads = [
        line.split() for line in text.splitlines() if line.endswith("runs") or "runs  " in line
    ]
    return {word for head in heads for word in head}


@pytest.mark.slow
def test_python_example_runs(tmp_path: Path) -> None:
    (example,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_folder_of_the_source_is_mapped() -> None:
    package = ROOT / "src" / "meshwright"
    for path in sorted(package.iterdir()):
        if path.is_dir() and any(path.glob("*.py")):
            assert f"`{path.name}/`" in DESIGN, f"DESIGN.md does not map {path.name}/"
