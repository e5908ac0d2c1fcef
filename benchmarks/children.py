"""What runs below a process, as Linux tells it in /proc: for benchmarks that kill ranks."""

from collections.abc import Iterator
from pathlib import Path


def find_children(parent: int) -> Iterator[tuple[int, dict[str, str]]]:
    """The number and the environment of each process that this one has started and that runs."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            is_child = f"PPid:\t{parent}\n" in (folder / "status").read_text()
        except OSError:  # it has ended
            continue
        if is_child:
            yield int(folder.name), dict(pair.split("=", 1) for pair in pairs if "=" in pair)
