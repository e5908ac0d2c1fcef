"""What a first plan compiles on a second core."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from meshwright.search.warm import small_cluster, small_step


def test_the_small_step_is_large_enough_for_several_levels() -> None:
    graph = small_step()
    assert graph.num_ops == 96  # 32 layers of forward, backward and update
    assert small_cluster().num_devices == 2


_COMPILE = """
import os, sys
os.nice = lambda _: 0  # a busy machine would not get to it
from numba.core import event, types

class Listener(event.Listener):
    def on_start(self, event):
        kernel = event.data["dispatcher"].py_func
        arrays = (str(each) for each in event.data["args"] if not isinstance(each, types.Number))
        print(kernel.__module__, kernel.__qualname__, *arrays, sep="|")

    def on_end(self, event):
        pass

event.register("numba:compile", Listener())
from meshwright.search.warm import main
main(sys.argv[1:])
"""
"""Says what is compiled: kernels and the types of their arguments, without numbers."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program compiles: one line each time."""
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", _COMPILE, "placement", "pipeline", "later"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    kept = {path.name.split("-")[0] for path in cache.rglob("*.nbi")}
    assert "move.anneal" in kept
    return [line for line in done.stdout.splitlines() if line.startswith("meshwright.")]


@pytest.mark.slow  # compiles for about 20 s
def test_the_program_compiles_the_searches_kernels(compiled: list[str]) -> None:
    kernels = {".".join(line.split("|")[:2]).removeprefix("meshwright.") for line in compiled}
    assert {
        "search.method.placement.move.anneal",
        "search.order.decode.decode",
        "search.bound.window_solve._solve_window",
        "search.order.heft._place_all",
        "search.method.pipeline.stage.grow.advance",
        "search.method.pipeline.map.probe.probe",
        "graph.coarsen.parmesan._cluster",
    } <= kernels


@pytest.mark.slow  # see above
def test_no_kernel_is_compiled_twice_for_the_same_arrays(compiled: list[str]) -> None:
    assert [line[:100] for line, count in Counter(compiled).items() if count > 1] == []
