"""Shells complete commands, options and names."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import refusal, run

from meshwright.cli.completion.complete import complete
from meshwright.cli.parser import make_parser
from meshwright.search.method.name import METHODS


def completed(line: str) -> list[str]:
    """What the last word of a line may become."""
    return complete(make_parser(), line.split(" "))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("si", ["simulate"]),
        ("cluster d", ["detect"]),
        ("cluster s", ["show", "save", "schema"]),
        ("cluster sh", ["show"]),
        ("plan bert-b", ["bert-base"]),
        ("plan bert-base --cl", ["--cluster"]),
        ("plan bert-base --cluster dgx1-", ["dgx1-x4"]),
        ("plan bert-base --method pi", ["pipedream", "pipeline"]),
        ("plan --method hybrid bert-b", ["bert-base"]),
        ("plan --method=hybrid bert-b", ["bert-base"]),
        ("plan --json bert-b", ["bert-base"]),
        ("plan bert-base --sharing ", ["none", "fair"]),
        ("plan bert-base --microbatches 2 4 --see", ["--seed"]),
        ("plan bert-base --budget ", []),
        ("plan bert-base more", []),
        ("zoo save resnet5", ["resnet50"]),
        ("testbed up --name r", []),
        ("run out --model gpt2-x", ["gpt2-xl"]),
        ("fly me", []),
        ("completion f", ["fish"]),
    ],
)
def test_what_comes_next(line: str, found: list[str]) -> None:
    assert completed(line) == found


def test_every_command_and_method_is_offered() -> None:
    assert {"plan", "simulate", "run", "compare", "zoo", "completion"} <= set(completed(""))
    assert tuple(completed("plan x --method ")) == METHODS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_ask_this_program(shell: str) -> None:
    script = run("completion", shell).out
    assert f"meshwright completion {shell} " in script
    assert run("completion", shell, "meshwright", "cluster", "l").out == "list\n"
    assert run("completion", shell, "meshwright", "plan", "x", "--bud").out == "--budget\n"


def test_unknown_shells_are_refused() -> None:
    assert "invalid choice: 'ksh'" in refusal("completion", "ksh")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    program = tmp_path / "meshwright"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m meshwright "$@"\n')
    program.chmod(0o755)
    code = (
        f'PATH="{tmp_path}:$PATH"; source <(meshwright completion bash)\n'
        "COMP_WORDS=(meshwright plan x --method pi); COMP_CWORD=4\n"
        '_meshwright; printf "%s\\n" "${COMPREPLY[@]}"; complete -p meshwright'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[:2] == ["pipedream", "pipeline"], done.stderr
    assert "-F _meshwright meshwright" in done.stdout
