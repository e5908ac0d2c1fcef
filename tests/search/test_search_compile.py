"""What a search needs is compiled once a process."""

from typing import Any

import pytest

from meshwright.search import compile as compiling
from meshwright.search.compile import compile_methods
from meshwright.search.method.table import METHODS


def test_a_method_is_run_on_a_small_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    broken = ["heft"]

    def method(name: str) -> Any:
        def run(problem: Any, _: Any) -> None:
            ran.append(name)
            if name in broken:
                broken.remove(name)
                problem.clock.interrupt()

        return run

    monkeypatch.setattr(compiling, "METHODS", {name: method(name) for name in METHODS})
    compiling._compile.cache_clear()
    try:
        for _ in range(2):
            compile_methods(["metis", "placement"], allocates=False)
        assert ran == ["metis", "placement"]
        with pytest.raises(KeyboardInterrupt):  # what was interrupted has not compiled all
            compile_methods(["metis", "heft"], allocates=False)
        for _ in range(2):
            compile_methods(["metis", "heft"], allocates=False)
        assert ran == ["metis", "placement", "heft", "heft"]
    finally:
        compiling._compile.cache_clear()
