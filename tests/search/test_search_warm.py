"""What a first plan compiles on a second core."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.search.warm import small_cluster, small_step


def test_the_small_step_is_large_enough_for_several_levels() -> None:
    graph = small_step()
    assert graph.num_ops == 96  # 32 layers of forward, backward and update
    assert small_cluster().num_devices == 2


@pytest.mark.slow  # compiles for about 20 s
def test_the_program_leaves_the_searches_kernels_in_the_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    methods = ["placement", "pipeline", "later"]
    command = [sys.executable, "-m", "meshwright.search.warm", *methods]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    kernels = {path.name.split("-")[0] for path in tmp_path.rglob("*.nbi")}
    assert {
        "move.walk",
        "decode.decode",
        "window_solve._solve_window",
        "heft._place_all",
        "grow.advance",
        "probe.probe",
        "parmesan._cluster",
    } <= kernels
