"""Fills a template: keeps the lines whose conditions hold, and puts values for `$name`.

A line `#: if NAME` (or `#: if not NAME`) begins lines that stay where the flag NAME holds,
`#: else` those that stay where it does not, `#: end` ends them. Knows nothing of what is written.
"""

from collections.abc import Collection, Iterator, Mapping
from string import Template

_MARK = "#:"


def fill_template(text: str, flags: Collection[str], values: Mapping[str, str]) -> str:
    """The template's text with these flags and values."""
    return Template("\n".join(_kept(text.splitlines(), flags))).substitute(values) + "\n"


def _kept(lines: list[str], flags: Collection[str]) -> Iterator[str]:
    holds: list[bool] = []
    for line in lines:
        if not line.startswith(_MARK):
            if all(holds):
                yield line
            continue
        word, *rest = line.removeprefix(_MARK).split()
        if word == "if":
            holds.append((rest[-1] in flags) != (rest[0] == "not"))
        elif word == "else":
            holds[-1] = not holds[-1]
        else:
            assert word == "end", line
            holds.pop()
    assert not holds, "a condition has no end"
