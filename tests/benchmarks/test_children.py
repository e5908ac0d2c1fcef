"""Processes are found below the one that started them, with their environment."""

import os
import subprocess
import sys

import pytest

from children import find_children


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux's /proc")
def test_a_child_is_found_while_it_runs() -> None:
    wait = [sys.executable, "-c", "print(1, flush=True); input()"]
    child = subprocess.Popen(
        wait, env={**os.environ, "KNOWN_BY": "this"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert dict(find_children(os.getpid()))[child.pid]["KNOWN_BY"] == "this"
    assert child.pid not in dict(find_children(child.pid))
    child.communicate(b"\n", timeout=60)
    assert child.pid not in dict(find_children(os.getpid()))
