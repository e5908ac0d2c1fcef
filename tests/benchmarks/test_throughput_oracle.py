"""The benchmark of Tarnawski et al. against their dynamic programme, written again from its
description: plain sets and dictionaries over the file's own nodes and edges, none of our problems.
"""

import importlib.util
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "dnn_partitioning.py"
MOST_DOWNSETS = 150
Classes = frozenset[Any]


def load_benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dnn_partitioning", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_benchmark()


@st.composite
def documents(draw: st.DrawFn, least: int = 6, most: int = 14) -> dict[str, Any]:
    """Files of the authors' format. All numbers are eighths, so that sums are exact."""
    random = draw(st.randoms(use_true_random=False))
    is_training = draw(st.booleans())
    zeros = draw(st.sampled_from([0.0, 0.3, 0.7]))
    scale = draw(st.sampled_from([0.25, 1.0, 4.0]))
    count = draw(st.integers(least, most))
    reach = draw(st.sampled_from([1, 2, 4]))
    edges: set[tuple[int, int]] = set()
    for v in range(1, count):
        for _ in range(random.choice([0, 1, 1, 1, 2])):
            edges.add((max(0, v - random.randint(1, reach)), v))
    colour: dict[int, Any] = {v: v for v in range(count)}
    for v in range(1, count):
        if random.random() < 0.08:
            colour[v] = colour[random.randrange(v)]
    is_backward = dict.fromkeys(range(count), False)
    if is_training:
        edges |= add_backward(random, count, edges, colour, is_backward)
    number = list(range(len(colour)))
    random.shuffle(number)
    costs = {v: random.choice([0, 1, 2, 4, 8, 20]) / 8 * scale for v in colour}
    nodes = [
        {
            "id": 1000 + number[v],
            "supportedOnFpga": int(random.random() < 0.93),
            "cpuLatency": random.choice([0, 1, 4, 10, 40]) / 4,
            "fpgaLatency": 0.0 if random.random() < zeros else random.choice([1, 2, 5, 9]) / 2,
            "isBackwardNode": int(is_backward[v]),
            "colorClass": colour[v],
            "size": random.choice([0, 0, 1, 2, 7]) / 2,
        }
        for v in colour
    ]
    held = sum(node["size"] for node in nodes)
    rows = [
        {"sourceId": 1000 + number[u], "destId": 1000 + number[v], "cost": costs[u]}
        for u, v in edges
    ]
    rows += random.sample(rows, min(len(rows), random.choice([0, 0, 2])))  # twice is as once
    random.shuffle(rows)
    random.shuffle(nodes)
    return {
        "maxFPGAs": draw(st.integers(0, 3)),
        "maxCPUs": draw(st.integers(0, 2)),
        "maxSizePerFPGA": draw(st.sampled_from([1e9, held / 2, held / 3, held])),
        "nodes": nodes,
        "edges": rows,
    }


def add_backward(
    random: Any,
    count: int,
    edges: set[tuple[int, int]],
    colour: dict[int, Any],
    is_backward: dict[int, bool],
) -> set[tuple[int, int]]:
    """Mirror images of most nodes, some of a class of their own, some links from the forward."""
    mirror = {}
    for v in range(count):
        if random.random() < 0.9:
            mirror[v] = len(colour)
            colour[mirror[v]] = colour[v] if random.random() < 0.85 else f"backward {v}"
            is_backward[mirror[v]] = True
    added = {(mirror[v], mirror[u]) for u, v in edges if u in mirror and v in mirror}
    return added | {(v, mirror[v]) for v in mirror if random.random() < 0.5}


@dataclass(frozen=True)
class Raw:
    """A file as it stands."""

    document: dict[str, Any]

    @cached_property
    def nodes(self) -> dict[int, dict[str, Any]]:
        return {node["id"]: node for node in self.document["nodes"]}

    @cached_property
    def readers(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for edge in self.document["edges"]:
            found.setdefault(edge["sourceId"], set()).add(edge["destId"])
        return found

    @cached_property
    def cost(self) -> dict[int, float]:
        return {edge["sourceId"]: edge["cost"] for edge in self.document["edges"]}

    @cached_property
    def members(self) -> dict[Any, set[int]]:
        found: dict[Any, set[int]] = {}
        for each, node in self.nodes.items():
            found.setdefault(node["colorClass"], set()).add(each)
        return found

    @cached_property
    def before(self) -> dict[Any, set[Any]]:
        """Classes that must be there before a class is."""
        has_forward = {n["colorClass"] for n in self.nodes.values() if not n["isBackwardNode"]}
        found: dict[Any, set[Any]] = {each: set() for each in self.members}
        for edge in self.document["edges"]:
            u, v = self.nodes[edge["sourceId"]], self.nodes[edge["destId"]]
            first, second = u["colorClass"], v["colorClass"]
            if not u["isBackwardNode"] and not v["isBackwardNode"]:
                found[second].add(first)
            elif u["isBackwardNode"] and not (first in has_forward and second in has_forward):
                found[first].add(second)
        return found

    def accelerator_load(self, ids: set[int]) -> float:
        """Infinity where it cannot run them or has no memory for them."""
        if not all(self.nodes[each]["supportedOnFpga"] for each in ids):
            return math.inf
        if sum(self.nodes[each]["size"] for each in ids) > self.document["maxSizePerFPGA"]:
            return math.inf
        load: float = sum(self.nodes[each]["fpgaLatency"] for each in ids)
        for source, readers in self.readers.items():
            if (source in ids and readers - ids) or (source not in ids and readers & ids):
                load += self.cost[source]
        return load

    def cpu_load(self, ids: set[int]) -> float:
        load: float = sum(self.nodes[each]["cpuLatency"] for each in ids)
        return load

    def downsets(self) -> list[Classes] | None:
        """All sets of classes closed under `before`, none where they are too many."""
        found = {frozenset[Any]()}
        fresh = list(found)
        while fresh:
            here = fresh.pop()
            for each in self.members.keys() - here:
                larger = here | self.closure(each)
                if larger not in found:
                    found.add(larger)
                    fresh.append(larger)
            if len(found) > MOST_DOWNSETS:
                return None
        return sorted(found, key=len)

    def closure(self, each: Any) -> Classes:
        """A class and all that must be there with it."""
        found, fresh = {each}, [each]
        while fresh:
            for other in self.before[fresh.pop()] - found:
                found.add(other)
                fresh.append(other)
        return frozenset(found)

    def ids(self, classes: Iterable[Any]) -> set[int]:
        return set().union(*(self.members[each] for each in classes))


def best_pipeline(raw: Raw, downsets: list[Classes]) -> float:
    """The authors' programme: over downsets, accelerators and CPUs that were used."""
    accelerators, cpus = raw.document["maxFPGAs"], raw.document["maxCPUs"]
    counts = list(itertools.product(range(accelerators + 1), range(cpus + 1)))
    best = {(downsets[0], *each): 0.0 for each in counts}
    loads: dict[Classes, tuple[float, float]] = {}
    for there in downsets[1:]:
        for each in counts:
            best[there, *each] = math.inf
        for here in downsets:
            if not here < there:
                continue
            stage = there - here
            if stage not in loads:
                ids = raw.ids(stage)
                loads[stage] = raw.accelerator_load(ids), raw.cpu_load(ids)
            for a, c in counts:
                for before, load in (((a - 1, c), loads[stage][0]), ((a, c - 1), loads[stage][1])):
                    if min(before) >= 0:
                        value = max(best[here, *before], load)
                        best[there, a, c] = min(best[there, a, c], value)
    return best[downsets[-1], accelerators, cpus]


def best_assignment(raw: Raw) -> float:
    """All assignments of classes to devices."""
    accelerators, cpus = raw.document["maxFPGAs"], raw.document["maxCPUs"]
    best = math.inf
    classes = list(raw.members)
    for split in itertools.product(range(accelerators + cpus), repeat=len(classes)):
        largest = 0.0
        for device in set(split):
            held = (each for each, at in zip(classes, split, strict=True) if at == device)
            load = raw.accelerator_load if device < accelerators else raw.cpu_load
            largest = max(largest, load(raw.ids(held)))
            if largest >= best:
                break
        best = min(best, largest)
    return best


def printed_stages(raw: Raw, record: dict[str, Any]) -> dict[int, set[int]]:
    """The nodes of every device that a record names, after the checks that any split must pass."""
    assert sorted(each["id"] for each in record["split"]) == sorted(raw.nodes)
    held: dict[int, set[int]] = {}
    for each in record["split"]:
        held.setdefault(each["device"], set()).add(each["id"])
    for device in held:
        assert -raw.document["maxCPUs"] <= device < raw.document["maxFPGAs"]
    for ids in raw.members.values():
        assert sum(bool(ids & inside) for inside in held.values()) == 1, "a colour class is apart"
    return held


def printed_objective(raw: Raw, held: dict[int, set[int]]) -> float:
    return max(
        raw.accelerator_load(ids) if device >= 0 else raw.cpu_load(ids)
        for device, ids in held.items()
    )


def check_pipeline(raw: Raw, record: dict[str, Any]) -> None:
    """Its stages add up to downsets, one device a stage."""
    held = printed_stages(raw, record)
    stage_of = {each["id"]: each["stage"] for each in record["split"]}
    device_of = {each["stage"]: each["device"] for each in record["split"]}
    assert len(set(device_of.values())) == len(device_of)
    for each, inside in raw.members.items():
        for other in raw.before[each]:
            for u, v in itertools.product(raw.members[other], inside):
                assert stage_of[u] <= stage_of[v]
    assert printed_objective(raw, held) == pytest.approx(record["objective"], rel=1e-12)


def written(document: dict[str, Any], folder: Path) -> str:
    path = folder / "file.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


@given(documents())
@settings(max_examples=150, deadline=None)
def test_pipelines_are_those_of_the_authors_programme(
    benchmark: ModuleType, folder: Path, document: dict[str, Any]
) -> None:
    raw = Raw(document)
    downsets = raw.downsets()
    assume(downsets is not None)
    assert downsets is not None
    best = best_pipeline(raw, downsets)
    record = benchmark.measure_contiguous(written(document, folder), 60.0, 0)
    if math.isinf(best):
        assert (record["stop"], record["objective"], record["split"]) == ("INFEASIBLE", None, [])
        assert record["reason"]
        return
    assert record["stop"] == "PROVED"
    assert record["objective"] == pytest.approx(best, rel=1e-9)
    assert record["bound"] == pytest.approx(best, rel=1e-9)
    check_pipeline(raw, record)


@given(documents(least=2, most=5))
@settings(max_examples=40, deadline=None)
def test_assignments_are_the_best_of_all(
    benchmark: ModuleType, folder: Path, document: dict[str, Any]
) -> None:
    raw = Raw(document)
    devices = document["maxFPGAs"] + document["maxCPUs"]
    assume(devices ** len(raw.members) <= 5000)
    best = best_assignment(raw) if devices else math.inf
    record = benchmark.measure_free(written(document, folder), 1.0, 0)
    if math.isinf(best):
        assert (record["stop"], record["objective"], record["split"]) == ("INFEASIBLE", None, [])
        assert record["reason"]
        return
    assert record["stop"] == "PROVED"
    assert record["objective"] == pytest.approx(best, rel=1e-9)
    assert record["bound"] <= best * (1 + 1e-9)
    held = printed_stages(raw, record)
    assert printed_objective(raw, held) == pytest.approx(record["objective"], rel=1e-12)


@given(documents())
@settings(max_examples=15, deadline=None)
def test_assignments_are_never_above_the_best_pipeline(
    benchmark: ModuleType, folder: Path, document: dict[str, Any]
) -> None:
    raw = Raw(document)
    path = written(document, folder)
    pipeline = benchmark.measure_contiguous(path, 60.0, 0)
    record = benchmark.measure_free(path, 0.5, 0)
    if pipeline["objective"] is not None:
        assert record["objective"] <= pipeline["objective"] * (1 + 1e-12)
    if record["objective"] is not None:
        assert record["bound"] <= record["objective"]
        held = printed_stages(raw, record)
        assert printed_objective(raw, held) == pytest.approx(record["objective"], rel=1e-12)
