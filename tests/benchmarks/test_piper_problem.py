"""Piper's formula worked out by hand, and what a file must not be."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from meshwright.errors import InputError
from solver.piper.problem import (
    Problem,
    Stage,
    find_fault,
    microbatches_in_flight,
    plan_seconds,
    stage_bytes,
    stage_seconds,
)
from solver.piper.read import read_problem


def way(name: str, time: float, **sync: dict[str, float]) -> dict[str, Any]:
    return {
        "id": name,
        "timePerSample": time,
        "parameterSize": 600.0,
        "memoryUsageA": 10.0,
        "memoryUsageB": 7.0,
        "syncTimeFw": sync.get("fw", {}),
        "syncTimeBw": sync.get("bw", {}),
    }


DOCUMENT: dict[str, Any] = {
    "maxDevices": 8,
    "maxMemoryPerDevice": 100.0,
    "bandwidth": 50.0,
    "mbsInBatch": 12,
    "nodes": [
        # The second node comes first in the file.
        {"id": 7, "TMPCs": {"1": [way("plain", 6.0, fw={"3": 4.0})], "4": []}},
        {
            "id": 3,
            "TMPCs": {
                "1": [way("plain", 3.0, bw={"7": 0.0})],
                "2": [way("plain", 2.0, bw={"7": 5.0}), way("again", 2.5, bw={"7": 15.0})],
            },
        },
    ],
    "edges": [{"sourceId": 3, "destId": 7, "communicationCost": 20.0}],
}


def read(document: dict[str, Any], **resources: Any) -> Problem:
    return read_problem(json.dumps(document).encode(), "a.json", **resources)


def two_stages(problem: Problem) -> list[Stage]:
    """Node 3 on two replicas of two devices in its second way, node 7 on three replicas of one."""
    first = Stage(nodes=(0,), num_replicas=2, width=2, ways=(problem.nodes[0].ways[2][1],))
    return [
        first,
        Stage(nodes=(1,), num_replicas=3, width=1, ways=(problem.nodes[1].ways[1][0],)),
    ]


def test_the_formula_gives_what_is_worked_out_by_hand() -> None:
    problem = read(DOCUMENT)
    first, second = two_stages(problem)
    # 2.5 / 2 + (2 (20 + 15) / 2 + 4 x 1 x 600 / (2 x 12)) / 50 = 1.25 + (35 + 100) / 50
    assert stage_seconds(problem, first) == pytest.approx(3.95)
    # 6 / 3 + (2 (20 + 4) / 3 + 4 x 2 x 600 / (3 x 12)) / 50 = 2 + (16 + 133.33) / 50
    assert stage_seconds(problem, second) == pytest.approx(2 + (16 + 400 / 3) / 50)
    assert plan_seconds(problem, [first, second]) == pytest.approx(2 + (16 + 400 / 3) / 50)
    # Replicas of this and the later stages: 5 and 3; ceil(5 / 2) = 3 and ceil(3 / 3) = 1.
    assert microbatches_in_flight([first, second]) == [3, 1]
    assert stage_bytes(first, 3) == 37.0
    assert find_fault(problem, [first, second]) == ""


def test_an_edge_inside_a_stage_costs_nothing() -> None:
    problem = read(DOCUMENT)
    whole = Stage(
        nodes=(0, 1),
        num_replicas=1,
        width=1,
        ways=(problem.nodes[0].ways[1][0], problem.nodes[1].ways[1][0]),
    )
    assert stage_seconds(problem, whole) == 9.0


def test_what_is_no_plan_is_told() -> None:
    problem = read(DOCUMENT)
    first, second = two_stages(problem)
    assert find_fault(problem, [first]) == "some node is in no stage or in two"
    assert find_fault(problem, [second, first]) == "an edge leads back to an earlier stage"
    assert find_fault(problem, [replace(first, width=1), second]) == (
        "a node has no such way of width 1"
    )
    assert find_fault(problem, [replace(first, num_replicas=5), second]) == (
        "5 replicas do not divide the microbatches"
    )
    assert find_fault(read(DOCUMENT, num_devices=6), [first, second]) == "there are too few devices"
    assert find_fault(read(DOCUMENT, memory_bytes=36.0), [first, second]) == (
        "there is too little memory"
    )
    few = replace(first, num_replicas=1)
    last = replace(second, num_replicas=2)
    assert find_fault(read(DOCUMENT, num_microbatches=2), [few, last]) == (
        "there are more replicas than microbatches"
    )


def test_given_resources_replace_those_of_the_file() -> None:
    resources = read(DOCUMENT, num_devices=2, bytes_per_second=9.0).resources
    assert (resources.num_devices, resources.memory_bytes) == (2, 100.0)
    assert (resources.num_microbatches, resources.bytes_per_second) == (12, 9.0)


def test_replicas_divide_the_microbatches() -> None:
    assert read(DOCUMENT).replica_counts == [1, 2, 3, 4, 6]
    assert read(DOCUMENT, num_microbatches=3).replica_counts == [1, 3]
    assert read(DOCUMENT).widths == [1, 2]
    assert read(DOCUMENT, num_devices=1).widths == [1]


def broken(change: str) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    edges, node = document["edges"], document["nodes"][1]
    if change == "cycle":
        edges.append({"sourceId": 7, "destId": 3, "communicationCost": 1.0})
    elif change == "twice":
        edges.append(edges[0])
    elif change == "stranger":
        edges[0]["destId"] = 9
    elif change == "sync":
        node["TMPCs"]["2"][0]["syncTimeBw"] = {}
    elif change == "width":
        node["TMPCs"]["two"] = []
    elif change == "time":
        node["TMPCs"]["1"][0]["timePerSample"] = -1.0
    elif change == "bytes":
        edges[0]["communicationCost"] = -2.0
    elif change == "devices":
        document["maxDevices"] = 2.5
    elif change == "batch":
        document["mbsInBatch"] = 0
    elif change == "bandwidth":
        del document["bandwidth"]
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cycle", "a.json: the graph must have no cycle, has"),
        ("twice", "a.json: an edge must stand once, 3 -> 7 stands 2 times"),
        ("stranger", "a.json: edge 3 -> 9 must join nodes of the file, 9 is none"),
        ("sync", "way 'plain': syncTimeBw must name all its edges, 7 is missing"),
        ("width", "a.json: node '3': TMPCs must be by number of devices, got 'two'"),
        ("time", "timePerSample must be finite and not negative, got -1.0"),
        ("bytes", "communicationCost must be finite and not negative, got -2.0"),
        ("devices", "a.json: maxDevices must be a whole number, got 2.5"),
        ("batch", "piper: num_microbatches must be at least 1, got 0"),
        ("bandwidth", "a.json: bandwidth must be given, in the file or otherwise"),
    ],
)
def test_a_file_that_is_wrong_is_refused(change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(broken(change))
    assert message in str(caught.value)
