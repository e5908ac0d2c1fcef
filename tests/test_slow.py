"""`slow.txt` names tests that are there: a renamed one would come back to `scripts/test` unseen."""

import ast
from pathlib import Path

from conftest import SLOW


def test_every_slow_case_is_of_a_test_that_is_there() -> None:
    folder = Path(__file__).parent
    for entry in SLOW:
        file, _, rest = entry.partition("::")
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert rest.partition("[")[0] in names, entry
