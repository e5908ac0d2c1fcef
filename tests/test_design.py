"""The worked example of DESIGN.md is what the program says."""

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_step_that_the_design_follows_is_what_the_program_says() -> None:
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    example = doctest.DocTestParser().get_doctest(lines, {}, "DESIGN.md", None, None)
    assert len(example.examples) > 10
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert result.failed == 0, "".join(said)


def test_every_page_of_the_design_is_named_and_there() -> None:
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    named = {Path(each).name for each in re.findall(r"\((docs/design/\w+\.md)\)", text)}
    assert named == {path.name for path in (ROOT / "docs" / "design").glob("*.md")}
