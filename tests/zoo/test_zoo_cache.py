"""The cache of captured graphs: found by all that decides them, never stale, never in the way."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from formula import mlp
from meshwright.graph.graph import Graph
from meshwright.zoo.cache import GraphCache, cache_folder, digest_files, open_cache
from meshwright.zoo.find import capture_once, find_origin
from meshwright.zoo.model import Choice, choose
from meshwright.zoo.table import find_model

OWN = choose(find_model("vit-l"))
THEIRS = choose(find_model("bert-base"))
VERSIONS = {"meshwright": "1", "torch": "2", "transformers": "3"}


@pytest.fixture
def folder(tmp_path: Path) -> GraphCache:
    return GraphCache(folder=tmp_path / "deep" / "cache", code="c", versions=VERSIONS)


class Tracer:
    """Stands in for the capture of a model, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.graph = mlp("made", 2, (3, 4, 5))

    def __call__(self, _choice: Choice) -> Graph:
        self.calls += 1
        return self.graph


def test_a_step_is_captured_once(folder: GraphCache) -> None:
    tracer, lines = Tracer(), list[str]()
    first = capture_once(OWN, capture=tracer, cache=folder, say=lines.append)
    again = capture_once(OWN, capture=tracer, cache=folder, say=lines.append)
    assert tracer.calls == 1
    assert again.op_names == first.op_names
    assert lines == [
        "vit-l: capturing with PyTorch",
        f"vit-l: captured before, read from {folder.path(OWN)}",
    ]
    capture_once(OWN, capture=tracer, cache=None, say=lines.append)
    assert tracer.calls == 2


def test_everything_that_decides_a_graph_is_in_its_key(folder: GraphCache) -> None:
    caches = [
        folder,
        replace(folder, code="d"),
        replace(folder, versions={**VERSIONS, "torch": "2.1"}),
        replace(folder, versions={**VERSIONS, "meshwright": "2"}),
        replace(folder, versions={**VERSIONS, "transformers": "4"}),
    ]
    choices = [
        THEIRS,
        replace(THEIRS, model=find_model("bert-large")),
        replace(THEIRS, batch=3),
        replace(THEIRS, sequence=64),
        replace(THEIRS, precision="bf16"),
        replace(THEIRS, optimizer="sgd"),
        replace(THEIRS, autocast="bf16"),
    ]
    paths = {cache.path(choice) for cache in caches for choice in choices}
    assert len(paths) == len(caches) * len(choices)


def test_the_version_of_transformers_counts_only_where_it_is_used(folder: GraphCache) -> None:
    other = replace(folder, versions={**VERSIONS, "transformers": "4"})
    assert other.path(OWN) == folder.path(OWN)


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"\x1f\x8b broken",
        lambda _: b"{}",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-9] + b"\0" + content[-8:],
    ],
)
def test_a_damaged_file_is_said_and_written_again(
    folder: GraphCache, damage: Callable[[bytes], bytes]
) -> None:
    tracer, lines = Tracer(), list[str]()
    capture_once(OWN, capture=tracer, cache=folder, say=lines.append)
    path = folder.path(OWN)
    path.write_bytes(damage(path.read_bytes()))
    capture_once(OWN, capture=tracer, cache=folder, say=lines.append)
    assert tracer.calls == 2
    assert f"vit-l: what was captured before is damaged: {path}: " in lines[1]
    kept = folder.read(OWN)
    assert kept is not None
    assert kept.op_names == tracer.graph.op_names


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 5000])
def test_a_folder_that_cannot_be_costs_a_line_and_nothing_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    tracer, lines = Tracer(), list[str]()
    cache = GraphCache(folder=tmp_path / name, code="c", versions=VERSIONS)
    assert capture_once(OWN, capture=tracer, cache=cache, say=lines.append) is tracer.graph
    assert "cannot be kept for the next time" in lines[-1]
    assert not cache.has(OWN)
    assert find_origin(choose(find_model("alexnet")), can_capture=True, cache=cache) == "torch"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_whoever_writes_last_leaves_a_whole_file(folder: GraphCache) -> None:
    graphs = [mlp(f"made{k}", 2, (3, 4, 5)) for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda graph: folder.write(OWN, graph), graphs))
    kept = folder.read(OWN)
    assert kept is not None
    assert kept.name in {graph.name for graph in graphs}
    assert list(folder.folder.iterdir()) == [folder.path(OWN)]


def test_a_change_of_any_source_is_another_digest(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    digests = set()
    for one, other in (("x", "y"), ("xy", ""), ("", "xy"), ("y", "x")):
        first.write_text(one)
        second.write_text(other)
        digests.add(digest_files(tmp_path, [first, second]))
    second.rename(tmp_path / "c.py")
    digests.add(digest_files(tmp_path, [first, tmp_path / "c.py"]))
    assert len(digests) == 5


def test_the_code_of_the_capture_is_digested(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    assert len(cache.code) == 64
    assert cache.versions["meshwright"]
    assert cache == open_cache(tmp_path)


def test_the_folder_is_the_users() -> None:
    everything = {"MESHWRIGHT_CACHE": "here", "XDG_CACHE_HOME": "/xdg", "HOME": "/home/me"}
    assert cache_folder(everything) == Path("here")
    assert cache_folder({**everything, "MESHWRIGHT_CACHE": ""}) == Path("/xdg/meshwright")
    assert cache_folder({"XDG_CACHE_HOME": "xdg", "HOME": "/me"}) == Path("/me/.cache/meshwright")
    assert cache_folder({}) is None
