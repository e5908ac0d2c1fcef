"""What the documentation shows is what runs, and every link in it leads somewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import meshwright
from documented import read_blocks, read_commands, run_page
from meshwright.cli.parser import make_parser

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(each for each in DOCS.rglob("*.md") if "design" not in each.parts)
NAMES = [str(each.relative_to(DOCS)) for each in PAGES]
MADE = ("reference/commands.md", "reference/python.md", "design/index.md")
"""Pages that scripts/site_pages.py makes."""
FOREIGN = {
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port",
    "--rdzv-backend", "--max-restarts", "--models", "--clusters",
}  # fmt: skip
"""Options of torchrun and of `python -m meshwright.learn`, which pages name, too."""


def site_pages() -> ModuleType:
    """The module that makes pages; it lies with the scripts, as mkdocs wants it."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def runs_code(name: str) -> bool:
    """Whether a page has a block that is run."""
    blocks = read_blocks(read(name))
    return any(each.language in ("sh", "python") and not each.title for each in blocks)


def test_the_menu_has_every_page() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = re.findall(r"[\w/-]+\.md", str(menu))
    there = {str(each.relative_to(DOCS)) for each in DOCS.rglob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) == there | set(MADE)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    folder = (DOCS / name).parent
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", read(name)):
        if not target.startswith("https://"):
            path = Path(os.path.normpath(folder / target))
            assert path.is_file() or str(path.relative_to(DOCS)) in MADE, target


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_understood(name: str) -> None:
    blocks = [each for each in read_blocks(read(name)) if not each.title]
    for block in [each for each in blocks if each.language in ("sh", "bash")]:
        for command in read_commands(block):
            program, *words = command.words
            assert program in ("meshwright", "python", "torchrun"), program
            if program == "meshwright":
                make_parser().parse_args(words)


def known_options(parser: ArgumentParser) -> set[str]:
    parsers = [parser, *site_pages().all_commands(parser)]
    return {name for each in parsers for name in each._option_string_actions}


@pytest.mark.parametrize("name", NAMES)
def test_options_in_the_text_exist(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", read(name), flags=re.MULTILINE | re.DOTALL)
    named = {
        each for code in re.findall(r"`([^`]+)`", text) for each in re.findall(r"--[a-z-]+", code)
    }
    assert named <= known_options(make_parser()) | FOREIGN


@pytest.mark.parametrize("name", NAMES)
def test_results_and_programs_that_pages_name_are_there(name: str) -> None:
    for path in re.findall(r"\b(?:benchmarks|examples|scripts|tests|src)/[\w/.-]*\w", read(name)):
        assert (ROOT / path).exists(), path


def test_the_reference_has_every_command_and_public_name() -> None:
    pages = site_pages()
    commands = pages.command_page(make_parser())
    assert {"## meshwright plan", "### meshwright cluster show"} <= set(commands.splitlines())
    headings = set(pages.python_page(meshwright).splitlines())
    public = [name for name in meshwright.__all__ if not name.startswith("_")]
    assert {f"### mw.{name}" for name in public} <= headings


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site needs the docs extra")
    pytest.importorskip("material", reason="the site needs the docs extra")
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's advertisement
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=quiet
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "WARNING" not in done.stderr
    built = [each.read_text(encoding="utf-8") for each in tmp_path.rglob("*.html")]
    assert len(built) > len(PAGES)
    for text in built:  # links may lead to other places; nothing is loaded from there
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', text)
        assert not re.search(
            r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//', text
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in NAMES if runs_code(each)])
def test_the_code_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "import torch" in read(name):
        pytest.importorskip("torch", reason="the page needs the torch extra")
    cache = tmp_path / "cache"  # so that nothing here is measured for the user's own plans
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(cache))
    folder = tmp_path / "page"
    folder.mkdir()
    run_page(folder, read(name))
