"""Counts in messages are written alike: with commas between thousands, by `format_count`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "meshwright"
NOUN = re.compile(
    " (such |of the |of its )?(ops|devices|tensors|instructions|samples|hosts|links|layers|values|"
    "bytes|characters|entries|calls|nodes|replicas|stages|ranks|microbatches)\\b"
)


COUNT = re.compile(r"len\(|(.*\.)?num_\w+$")


def text_of(part: ast.AST | None) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else ""


def bare_counts(tree: ast.AST) -> Iterator[ast.FormattedValue]:
    """Counts in no format: what stands before the name of what is counted, or after "got"."""
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        for before, value, after in zip(
            [None, *text.values], text.values, [*text.values[1:], None], strict=False
        ):
            if not isinstance(value, ast.FormattedValue) or value.format_spec is not None:
                continue
            shown = ast.unparse(value.value)
            is_got = text_of(before).endswith("got ") and COUNT.match(shown)
            is_count = NOUN.match(text_of(after)) or is_got
            if is_count and not shown.startswith("format_"):
                yield value


def test_a_bare_count_is_found() -> None:
    found = list(bare_counts(ast.parse("f'{a} ops, {b:,} hosts, {c} such devices, got {len(d)}'")))
    assert [ast.unparse(each.value) for each in found] == ["a", "c", "len(d)"]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.stem)
def test_counts_in_messages_have_commas(path: Path) -> None:
    found = bare_counts(ast.parse(path.read_text()))
    assert [f"line {each.lineno}: {ast.unparse(each.value)}" for each in found] == []
