"""Writes reports: one HTML file, and the figures of each plan as files of their own."""

from collections.abc import Callable, Sequence
from pathlib import Path

from meshwright.files import write_bytes
from meshwright.page.document import page_document
from meshwright.page.entry import PageEntry
from meshwright.page.html import make_page
from meshwright.page.pack import Blobs

Report = Callable[[str], None]


def write_page(
    entries: Sequence[PageEntry], path: str | Path, progress: Report = lambda _: None
) -> None:
    """Write the report of some plans."""
    progress("drawing the report")
    text = draw_page(entries)
    progress("writing the report")
    write_bytes(path, text.encode("utf-8"))


def draw_page(entries: Sequence[PageEntry]) -> str:
    """The report of some plans as one HTML text."""
    blobs = Blobs()
    document = page_document(entries, blobs)
    return make_page(document, blobs.texts)
