"""Small files that ask for much memory: refused within seconds, in less than two gigabytes."""

import os
import re
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

MAX_BYTES = 2e9
MEASURE = """
import resource, sys
from meshwright.cli import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
sys.exit(code)
"""
GRAPH = b'{"format":"meshwright.graph","version":1,"name":"a","batch":1,'
HEAD = b'{"format":"meshwright.cluster","version":1,'
CLUSTER = HEAD + b'"name":"c",'
TENSORS = b'""]},"tensors":{"source":[],"readers":[]}}'
DEVICES = b'"devices":[{"name":"a","type":"h100","host":"h"}],'


def write_packed(path: Path, *parts: tuple[bytes, int]) -> None:
    """Write pieces, each so many times, as gzip; never all of them in memory."""
    packer = zlib.compressobj(1, wbits=31)
    with path.open("wb") as file:
        for piece, count in parts:
            block = max(1, (1 << 20) // len(piece))
            for _ in range(count // block):
                file.write(packer.compress(piece * block))
            file.write(packer.compress(piece * (count % block)))
        file.write(packer.flush())


def refuse(*words: object) -> str:
    """The line with which a command refuses; its memory is measured by itself."""
    command = [sys.executable, "-c", MEASURE, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done
    assert float(done.stdout) < MAX_BYTES
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_list_of_millions_of_empties_is_refused(tmp_path: Path) -> None:
    # 350 million, in a megabyte of gzip, took 24 GB.
    write_packed(tmp_path / "file", (b"[", 1), (b"{},", 200_000_000), (b"{}]", 1))
    assert os.path.getsize(tmp_path / "file") < 4e6
    assert "larger than" in refuse("cluster", "show", tmp_path / "file")


def test_a_format_of_nested_lists_is_refused(tmp_path: Path) -> None:
    write_packed(tmp_path / "file", (b'{"format":[', 1), (b"[],", 50_000_000), (b"[]]}", 1))
    assert "not a graph" in refuse("plan", tmp_path / "file", "--cluster", "cpu-x1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("piece", "count", "before", "after", "message"),
    [
        (b"{},", 80_000_000, b"[", b"{}]", "not a cluster file"),
        (b"[],", 80_000_000, b'{"format":[', b"[]]}", "not a cluster file"),
        (b"9", 200_000_000, HEAD + b'"build":', b"}", "build: "),
        (b"\xf0\x9f\x98\x80", 60_000_000, HEAD + DEVICES + b'"name":"', b'"}', "name: Expected"),
        (b"a ", 120_000_000, CLUSTER + DEVICES + b'"', b'":1}', "unknown field"),
        (b'"",', 4_000_000, CLUSTER + DEVICES + b'"switches":[', b'""]}', "length"),
        (b"0,", 100_000_000, CLUSTER + DEVICES + b'"hop_bytes_per_second":[', b"0]}", "values"),
        (b'{"a":', 20_000_000, CLUSTER + b'"devices":', b"", "nested too deeply"),
        (b"- 1\n", 4_000_000, b"", b"", "too much data for YAML"),
        (b"[],", 5_000_000, b"x: [", b"]", "too much data for YAML"),
        (b"*a,", 2_000_000, b"x: &a " + b"a" * 100_000 + b"\ny: [", b"]", "too much data"),
    ],
)
def test_clusters_that_ask_for_memory_are_refused(
    piece: bytes, count: int, before: bytes, after: bytes, message: str, tmp_path: Path
) -> None:
    parts = [(before, 1), (piece, count), (after, 1)]
    write_packed(tmp_path / "file", *[each for each in parts if each[0]])
    assert message in refuse("cluster", "show", tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("piece", "count", "before", "after", "message"),
    [
        (b'"",', 80_000_000, GRAPH + b'"ops":{"names":[', TENSORS, "values"),
        (b"0,", 120_000_000, GRAPH + b'"ops":{"names":["a"],"flops":[', b"0" + TENSORS[2:],
         "values"),
        (b"[],", 80_000_000, GRAPH + b'"ops":{"names":["a"]},"tensors":{"source":[0],"readers":[',
         b"[]]}}", "values"),
        (b'{"id":1},', 20_000_000, b'{"directed":true,"edges":[],"nodes":[', b"{}]}", "values"),
        (b"\n", 400_000_000, b"node1 -- x", b"", "line 1"),
        (b"a", 400_000_000, b"node1 -- ", b"", "line 1"),
        (b" a -- b\n", 30_000_000, b"node1 -- L -- forward_compute_time=1, backward_compute_time=1,"
         b" activation_size=1, parameter_size=1\n", b"", "edges"),
    ],
)  # fmt: skip
def test_graphs_that_ask_for_memory_are_refused(
    piece: bytes, count: int, before: bytes, after: bytes, message: str, tmp_path: Path
) -> None:
    parts = [(before, 1), (piece, count), (after, 1)]
    write_packed(tmp_path / "file", *[each for each in parts if each[0]])
    assert message in refuse("plan", tmp_path / "file", "--cluster", "cpu-x1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "build: spine_leaf\narguments: {num_spines: 1024, num_leaves: 16384, hosts_per_leaf: 1, "
        "devices_per_host: 1}",
        "build: multi_rail\narguments: {num_hosts: 16384, num_rails: 1024, devices_per_host: 1}",
        "build: fully_connected\narguments: {num_devices: 16384, device_type: h100, "
        "bytes_per_second: 1}",
    ],
)
def test_a_builder_that_asks_for_millions_of_links_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f"format: meshwright.cluster\nversion: 1\n{text}\n")
    message = refuse("cluster", "show", tmp_path / "file")
    assert re.search(r"must be at most (2097152|2048), got (16777216|16384)", message)


@pytest.mark.slow
def test_times_on_a_million_types_of_devices_are_refused(tmp_path: Path) -> None:
    names = ",".join(f'"{number}"' for number in range(500_000))
    times = ",".join(f'"{number}":0' for number in range(500_000))
    text = f'"ops":{{"names":[{names}],"seconds":{{{times}}}}},'
    text += '"tensors":{"source":[],"readers":[]}}'
    (tmp_path / "file").write_bytes(GRAPH + text.encode())
    message = refuse("plan", tmp_path / "file", "--cluster", "cpu-x1")
    assert "must be on at most 67 types of devices, got 500,000" in message


def test_this_process_did_not_need_the_memory_itself() -> None:
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MAX_BYTES
