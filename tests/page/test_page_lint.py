"""The scripts of reports pass ESLint, whose rules find what they are there for."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from meshwright.page.html import SCRIPTS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "src/meshwright/page/static/script"
OWN = shutil.which("eslint", path=str(ROOT / "node_modules" / ".bin"))
ESLINT = OWN or shutil.which("eslint")
needs_eslint = pytest.mark.skipif(
    ESLINT is None, reason="needs ESLint 9 (npm install --global eslint@9)"
)


def lint(*words: str, text: str | None = None) -> list[dict[str, Any]]:
    """What ESLint says, a record for each file."""
    assert ESLINT is not None
    done = subprocess.run(
        [ESLINT, "--format", "json", *words], capture_output=True, text=True, cwd=ROOT, input=text
    )
    assert done.returncode in (0, 1), done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_script_is_in_the_page() -> None:
    there = {f"script/{path.name}" for path in (ROOT / SCRIPT).glob("*.js")}
    assert there == {name for name in SCRIPTS if name.startswith("script/")}


@needs_eslint
def test_the_scripts_pass() -> None:
    records = lint(SCRIPT)
    assert len(records) == len([*(ROOT / SCRIPT).glob("*.js")])
    said = [
        f"{Path(record['filePath']).name}:{each['line']}: {each['message']} ({each['ruleId']})"
        for record in records
        for each in record["messages"]
    ]
    assert said == []


@needs_eslint
@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("no-restricted-properties", "document.body.innerHTML = name;"),
        ("no-restricted-properties", "document.write(name);"),
        ("no-eval", "eval(name);"),
        ("no-new-func", "new Function(name)();"),
        ("no-undef", "nobody(name);"),
        ("no-var", "var other = name; make(other);"),
        ("eqeqeq", "if (name == 1) make(name);"),
        ("no-unused-vars", "const other = name;"),
    ],
)
def test_what_the_rules_are_for_is_found(rule: str, code: str) -> None:
    text = f'"use strict";\n\nfunction own(name) {{\n  {code}\n}}\n'
    (record,) = lint("--stdin", "--stdin-filename", f"{SCRIPT}/own.js", text=text)
    assert rule in {each["ruleId"] for each in record["messages"]}
