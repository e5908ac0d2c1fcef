"""Modules that nobody should import: each writes its name down when it is run."""

import subprocess
import sys
from functools import cache
from pathlib import Path

PACKAGES = (
    "llvmlite", "meshwright", "msgspec", "networkx", "numba", "numpy", "ortools", "pymetis", "ray",
    "rich", "safetensors", "scipy", "sympy", "torch", "transformers", "yaml",
)  # fmt: skip
"""What Meshwright is and needs, and what they import where it is installed."""


@cache
def _names() -> tuple[str, ...]:
    """The packages and all of the standard library but what `python -m` itself imports first."""
    show = "import runpy, sys; print(*sys.modules)"
    command = [sys.executable, "-I", "-c", show]
    own = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    library = sorted(sys.stdlib_module_names - {each.partition(".")[0] for each in own})
    return (*PACKAGES, *library)


def plant(folder: Path, *, spared: tuple[str, ...] = ()) -> Path:
    """Put a module of every name but the spared ones into a folder; the file that they write."""
    log = folder / "canaries.log"
    for name in _names():
        if name not in spared:
            text = f"open({str(log)!r}, 'a').write({name!r} + chr(10))\n"
            (folder / f"{name}.py").write_text(text)
    return log


def heard(log: Path) -> list[str]:
    """The names of the modules that were run."""
    return sorted(set(log.read_text().split())) if log.exists() else []
