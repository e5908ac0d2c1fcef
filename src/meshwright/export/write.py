"""Writes the export of a plan into a folder, with a page that says what it could not say and what
that costs. Knows no target's files."""

from dataclasses import replace
from pathlib import Path

from meshwright.argument import need_one_of
from meshwright.errors import InputError
from meshwright.export.exported import Exported, text_writer
from meshwright.export.page import PAGE_FILE, write_page
from meshwright.export.target import WRITERS
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request

NEEDS_TORCH = frozenset({"pytorch"})
"""Targets whose files depend on the modules of the model itself."""


def export_plan(request: Request, plan: Plan, target: str) -> Exported:
    """The files of a target for a plan, with the page."""
    need_one_of(target, tuple(WRITERS), "target")
    exported = WRITERS[target](request, plan)
    page = write_page(target, request, plan, exported)
    return replace(exported, files={**exported.files, PAGE_FILE: text_writer(page)})


def write_files(exported: Exported, folder: Path) -> list[Path]:
    """Write all files into a folder, which may exist or not; their paths."""
    paths = []
    for name, write in exported.files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
        write(path)
        paths.append(path)
    return paths
