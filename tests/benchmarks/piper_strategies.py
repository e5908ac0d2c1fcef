"""Random files of Piper's format and what is best for them, by trying everything."""

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from solver.piper.problem import Problem
from solver.piper.read import read_problem

Document = dict[str, Any]


@st.composite
def documents(draw: st.DrawFn, most_nodes: int = 5, most_devices: int = 6) -> Document:
    """Small ones with ties, nodes of no cost, missing widths and any number of ways."""
    random = draw(st.randoms(use_true_random=False))
    count = draw(st.integers(1, most_nodes))
    density = draw(st.sampled_from([0.2, 0.5, 0.9]))
    scale = draw(st.sampled_from([0.0, 0.25, 2.0]))
    ids = random.sample(range(100), count)
    edges = [
        {"sourceId": u, "destId": v, "communicationCost": scale * random.randint(0, 6)}
        for u, v in itertools.combinations(ids, 2)
        if random.random() < density
    ]
    nodes = []
    for v in ids:
        before = [str(e["sourceId"]) for e in edges if e["destId"] == v]
        after = [str(e["destId"]) for e in edges if e["sourceId"] == v]
        widths = [t for t in (1, 2, 3) if random.random() < 0.85] or [1]
        time, size = random.choice([0, 1, 4, 9]), random.choice([0, 2, 5])
        ways = {
            str(t): [
                {
                    "id": f"way {number}",
                    "timePerSample": (time + 2 * number) / t + random.randint(0, 2) / 4,
                    "parameterSize": float(random.choice([0, 4, 8])),
                    "memoryUsageA": float(max(0, size - number) + random.randint(0, 1)),
                    "memoryUsageB": float(random.randint(0, 3)),
                    "syncTimeFw": {u: scale * random.randint(0, 2) * (t - 1) for u in before},
                    "syncTimeBw": {u: scale * random.randint(0, 2) * (t - 1) for u in after},
                }
                for number in range(random.choice([1, 2, 2, 3]))
            ]
            for t in widths
        }
        nodes.append({"id": v, "TMPCs": ways})
    random.shuffle(nodes)
    return {
        "maxDevices": draw(st.integers(1, most_devices)),
        "maxMemoryPerDevice": float(draw(st.integers(1, 40))),
        "bandwidth": draw(st.sampled_from([1.0, 4.0, 100.0])),
        "mbsInBatch": draw(st.sampled_from([1, 2, 4, 6, 12])),
        "nodes": nodes,
        "edges": edges,
    }


def as_problem(document: Document) -> Problem:
    """Read from its text, as from a file."""
    return read_problem(json.dumps(document).encode(), "file.json")


def least_time(document: Document) -> float:
    """Over all plans, from the document alone; infinity where none fits."""
    nodes = {node["id"]: node["TMPCs"] for node in document["nodes"]}
    return _least(document, nodes, frozenset(), document["maxDevices"], 0)


def _least(
    document: Document, nodes: dict[int, Any], later: frozenset[int], devices: int, replicas: int
) -> float:
    """Of the stages before those that hold the nodes `later` and have so many replicas."""
    if len(later) == len(nodes):
        return 0.0
    best = math.inf
    for stage in _stages(document, nodes, later):
        for t, d in itertools.product((1, 2, 3), range(1, devices + 1)):
            if document["mbsInBatch"] % d or replicas + d > document["mbsInBatch"]:
                continue
            if d * t > devices or any(str(t) not in nodes[v] for v in stage):
                continue
            own = _least_stage(document, nodes, stage, d, str(t), math.ceil((replicas + d) / d))
            if own < best:
                rest = _least(document, nodes, later | stage, devices - d * t, replicas + d)
                best = min(best, max(own, rest))
    return best


def _stages(
    document: Document, nodes: dict[int, Any], later: frozenset[int]
) -> Iterator[frozenset[int]]:
    left = sorted(set(nodes) - later)
    for size in range(1, len(left) + 1):
        for chosen in itertools.combinations(left, size):
            done = later | set(chosen)
            if all(e["destId"] in done for e in document["edges"] if e["sourceId"] in done):
                yield frozenset(chosen)


def _least_stage(
    document: Document, nodes: dict[int, Any], stage: frozenset[int], d: int, t: str, y: int
) -> float:
    best = math.inf
    order = sorted(stage)
    for ways in itertools.product(*(nodes[v][t] for v in order)):
        held = sum(way["memoryUsageA"] * y + way["memoryUsageB"] for way in ways)
        if held > document["maxMemoryPerDevice"]:
            continue
        sent = 0.0
        for v, way in zip(order, ways, strict=True):
            for edge in document["edges"]:
                u, w, cost = edge["sourceId"], edge["destId"], edge["communicationCost"]
                if w == v and u not in stage:
                    sent += 2 * (cost + way["syncTimeFw"][str(u)])
                if u == v and w not in stage:
                    sent += 2 * (cost + way["syncTimeBw"][str(w)])
        weights = sum(way["parameterSize"] for way in ways)
        sent = sent / d + 4 * (d - 1) * weights / (d * document["mbsInBatch"])
        compute = sum(way["timePerSample"] for way in ways)
        best = min(best, compute / d + sent / document["bandwidth"])
    return best
