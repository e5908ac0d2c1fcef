"""What the machine refuses (memory, disk space, open streams) is one line and never our fault."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_runner import refusal, run

from meshwright.cli import entry
from meshwright.cli.exit_code import ExitCode
from meshwright.cluster.catalogue import find_cluster

ZOO = [sys.executable, "-m", "meshwright", "zoo"]


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


def _numpy_error() -> Exception:
    try:
        np.empty(1 << 62, np.uint8)
    except MemoryError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        _numpy_error(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("can't start new thread"),
        ImportError("libx.so: failed to map segment from shared object"),
    ],
)
def test_no_memory_is_a_line_and_a_code_of_its_own(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: object) -> int:
        raise error

    monkeypatch.setattr(entry, "_run", fail)
    result = run("zoo")
    assert (result.code, int(ExitCode.REFUSED)) == (4, 4)
    assert result.err.startswith("meshwright: error: out of memory (")
    assert result.err.count("\n") == 1
    assert "a fault of" not in result.err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "standard output or a pipe: No space"),
        (OSError(errno.EMFILE, "Too many open files", "/tmp/x"), "'/tmp/x': Too many open files"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory"), "No usable temporary"),
    ],
)
def test_what_the_system_refuses_is_a_line(
    error: OSError, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: object) -> int:
        raise error

    monkeypatch.setattr(entry, "_run", fail)
    monkeypatch.setattr(entry, "_drop_output", lambda: None)
    result = run("zoo")
    assert result.code == ExitCode.REFUSED
    assert message in result.err
    assert result.err.count("\n") == 1


def test_our_own_faults_are_one_line_that_asks_to_be_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recurse(arguments: object) -> int:
        return recurse(arguments)

    monkeypatch.setattr(entry, "_run", recurse)
    result = run("zoo")
    assert result.code == ExitCode.FAULT
    assert "RecursionError" in result.err
    assert "fault of Meshwright, please report it" in result.err
    assert result.err.count("\n") == 1
    assert all(line.isprintable() for line in run("zoo", "--traceback").err.splitlines())


def test_a_limit_on_memory_is_met_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    with path.open("wb") as file:
        file.truncate(400 << 20)  # takes no space on the disk
    code = f"""
import resource, sys
from meshwright.api import load_graph
from meshwright.cli import main
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(main(["plan", {str(path)!r}, "--cluster", "cpu-x1"]))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == ExitCode.REFUSED, done.stderr
    assert done.stderr.startswith("meshwright: error: out of memory")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["graph.json"]


PLAN = ["plan", "mlp", "--cluster", "cpu-x1", "--method", "single", "--quiet"]


@pytest.mark.parametrize("words", [["zoo", "--json"], ["zoo"], ["--help"], PLAN, [*PLAN, "--json"]])
def test_a_full_disk_under_standard_output_is_a_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "meshwright", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == ExitCode.REFUSED
    line = "meshwright: error: standard output or a pipe: No space left on device\n"
    assert done.stderr == line


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/null 2>&-"])
def test_closed_streams_are_no_fault(closed: str) -> None:
    shell = f"{' '.join(ZOO)} {closed}; echo $? >&3"
    done = subprocess.run(["bash", "-c", f"exec 3>&1; {shell}"], capture_output=True)
    assert done.stdout.endswith(b"0\n")
    assert done.stderr == b""


def test_standard_error_that_is_closed_does_not_end_up_in_the_output() -> None:
    command = [sys.executable, "-m", "meshwright", "cluster", "show", "nothing"]
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(command)} 2>&-"], stdout=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stdout) == (ExitCode.BAD_INPUT, b"")


def test_a_pipe_given_as_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for words in (
        ["plan", tmp_path / "pipe", "--cluster", "cpu-x1"],
        ["plan", "mlp", "--cluster", tmp_path / "pipe"],
        ["simulate", "mlp", "--cluster", "cpu-x1", "--plan", tmp_path / "pipe"],
        ["cluster", "show", tmp_path / "pipe"],
        ["capture", "alexnet-32", "-o", tmp_path / "graph", "--profile", tmp_path / "pipe"],
    ):
        assert "must be a regular file, but is a pipe" in refusal(*words)


def test_a_file_redirected_to_standard_input_is_read(tmp_path: Path) -> None:
    find_cluster("dgx1-x4").save(tmp_path / "cluster.json")
    command = [sys.executable, "-m", "meshwright", "cluster", "save", "/dev/stdin"]
    with (tmp_path / "cluster.json").open("rb") as stream:
        done = subprocess.run([*command, tmp_path / "same.json"], stdin=stream, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "same.json").read_bytes() == (tmp_path / "cluster.json").read_bytes()
