"""A report as a value: text that notebooks show within a frame, and that can be kept as a file."""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from meshwright.files import write_bytes

_HEIGHT = 800
"""Pixels of the frame: what most screens have room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSheet:
    """One HTML file that has not been written."""

    html: str = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write it as a file, which opens without a network."""
        write_bytes(path, self.html.encode("utf-8"))

    def _repr_html_(self) -> str:
        """Called by notebooks. The frame has an origin of its own: the page's scripts reach nothing
        of the notebook."""
        style = f"width:100%;height:{_HEIGHT}px;border:0"
        return (
            f'<iframe title="Meshwright report" sandbox="allow-scripts" style="{style}" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )
