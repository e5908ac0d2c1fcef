"""An object's facts as a small table: text for a terminal, HTML for a notebook, a pandas frame."""

from collections.abc import Mapping
from html import escape
from importlib import import_module
from typing import Any

from meshwright.errors import InputError, one_line

MAX_FACT = 300
"""Characters of one fact."""

Facts = Mapping[str, str]
"""What is said of an object, by a word for it."""


def as_text(facts: Facts) -> str:
    """A line for each fact."""
    width = max(map(len, facts), default=0)
    return "\n".join(f"{name:<{width}}  {one_line(text, MAX_FACT)}" for name, text in facts.items())


def as_html(title: str, facts: Facts) -> str:
    """A row for each fact, under a title; nothing in them is taken for HTML."""
    rows = (
        f'<tr><th style="text-align:left">{escape(one_line(name))}</th>'
        f'<td style="text-align:left">{escape(one_line(text, MAX_FACT))}</td></tr>'
        for name, text in facts.items()
    )
    caption = escape(one_line(title, MAX_FACT))
    return f"<table><caption>{caption}</caption><tbody>{''.join(rows)}</tbody></table>"


def as_frame(columns: Mapping[str, Any]) -> Any:
    """A pandas.DataFrame of these columns."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise InputError(
            "to_pandas: pandas must be installed (`pip install pandas`), but cannot be imported"
        ) from None
    return pandas.DataFrame(columns)
