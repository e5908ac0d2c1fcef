"""Captured graphs on disk, found again by everything that they depend on.

A key has the step that was asked for, the versions of the packages that trace it and a digest of
the sources that turn a trace into a graph: another version of any of them is another file, never a
stale one. Files may be deleted at any time.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from meshwright.errors import os_errors
from meshwright.graph.graph import Graph, read_graph
from meshwright.zoo.model import Choice

PACKAGE = Path(__file__).resolve().parents[1]
CODE = ("capture", "graph")
"""The folders whose code decides what a captured graph holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCache:
    """A folder of captured graphs, for one state of the code."""

    folder: Path
    code: str
    """A digest of the sources."""
    versions: Mapping[str, str | None]
    """Of the packages; None: not installed."""

    def path(self, choice: Choice) -> Path:
        """Where the graph of a step is, or will be."""
        used = {name: self.versions.get(name) for name in _packages(choice)}
        step = {**asdict(choice), "model": choice.model.name}
        text = msgspec.json.encode([step, self.code, used], order="sorted")
        return self.folder / f"{choice.model.name}-{hashlib.sha256(text).hexdigest()[:32]}.json.gz"

    def has(self, choice: Choice) -> bool:
        """Whether there is a file for a step; a path that cannot be is one that is not there."""
        return os.path.exists(self.path(choice))

    def read(self, choice: Choice) -> Graph | None:
        """The graph of a step; None where there is none. A damaged one is an `InputError`."""
        return read_graph(self.path(choice)) if self.has(choice) else None

    def write(self, choice: Choice, graph: Graph) -> None:
        """Keep a graph, whole or not at all."""
        with os_errors(f"{self.folder}: cannot be made"):
            self.folder.mkdir(parents=True, exist_ok=True)
        graph.save(self.path(choice))


def open_cache(folder: Path) -> GraphCache:
    """The cache in a folder, which need not exist, for the code as it is now."""
    sources = (path for name in CODE for path in (PACKAGE / name).rglob("*.py"))
    names = ("meshwright", "torch", "transformers")
    return GraphCache(
        folder=folder,
        code=digest_files(PACKAGE, sources),
        versions={name: _version(name) for name in names},
    )


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """$MESHWRIGHT_CACHE, else meshwright in the user's folder for caches; None: there is none."""
    chosen = environment.get("MESHWRIGHT_CACHE")
    if chosen:
        return Path(chosen)
    shared = Path(environment.get("XDG_CACHE_HOME") or "")
    if shared.is_absolute():  # others are to be ignored (XDG base directory specification)
        return shared / "meshwright"
    home = environment.get("HOME") or environment.get("USERPROFILE")
    return Path(home) / ".cache" / "meshwright" if home else None


def digest_files(root: Path, paths: Iterable[Path]) -> str:
    """A digest of files, of their names below `root` and what they hold."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _packages(choice: Choice) -> tuple[str, ...]:
    others = ("transformers",) if choice.model.source == "transformers" else ()
    return ("meshwright", "torch", *others)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
