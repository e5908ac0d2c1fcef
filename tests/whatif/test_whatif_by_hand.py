"""What `whatif` answers is what one gets who edits the cluster's file and asks again.

The files are edited here as documents, by code that shares nothing with `meshwright.change`.
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from counted import counted_clock
from meshwright.change.read import read_changes
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.file import read_cluster
from meshwright.graph.graph import Graph
from meshwright.plan.request import Request
from meshwright.search.portfolio import find_plan
from meshwright.simulate.simulate import simulate
from meshwright.source import load_graph
from meshwright.whatif.outcome import Question, find_outcome
from quick import few

Document = dict[str, Any]
SHAPE = "gpt:hidden=64,heads=4,layers=2,sequence=16,vocabulary=64,batch=8"
CLUSTERS = ("dgx1-x2", "tag-testbed", "hierarchical-2x2x2", "multi-rail-2x2x2", "titan-v-2x2")
METHODS = ("data", "placement", "heft", "hybrid")
BUDGET_SECONDS = 0.1
"""By the counted clock: some hundred looks."""


def edit_links(document: Document, names: set[str], field: str, times: float) -> None:
    for link in document["links"]:
        if link["source"] in names or link["target"] in names:
            link[field] = link.get(field, 0.0) * times


def edit_switch(document: Document, draw: random.Random) -> dict[str, str]:
    switch = draw.choice(document["switches"])
    edit_links(document, {switch}, "bytes_per_second", 4.0)
    return {"link": f"{switch}=4x"}


def edit_pair(document: Document, draw: random.Random) -> dict[str, str]:
    link = draw.choice(document["links"])
    ends = {link["source"], link["target"]}
    for each in document["links"]:
        if {each["source"], each["target"]} == ends:
            each["bytes_per_second"] = "100 Gb/s"
    return {"link": f"{link['source']}-{link['target']}=100Gb/s"}


def edit_latency(document: Document, draw: random.Random) -> dict[str, str]:
    text = draw.choice(["100us", "2us"])
    for link in document["links"]:
        link["latency_seconds"] = text
    return {"latency": text}


def edit_memory(document: Document, draw: random.Random) -> dict[str, str]:
    kind = draw.choice(sorted(document["types"]))
    document["types"][kind]["memory_bytes"] = 20e9
    for device in document["devices"]:
        if device["type"] == kind:
            device["memory_bytes"] = 20e9
    return {"memory": f"{kind}=20GB"}


def edit_speed(document: Document, draw: random.Random) -> dict[str, str]:
    kind = draw.choice(sorted(document["types"]))
    rates = document["types"][kind]["flops_per_second"]
    document["types"][kind]["flops_per_second"] = {name: 4 * rates[name] for name in rates}
    return {"speed": f"{kind}=4x"}


def edit_memory_rate(document: Document, draw: random.Random) -> dict[str, str]:
    kind = draw.choice(sorted(document["types"]))
    document["types"][kind]["memory_bytes_per_second"] = 2e12
    return {"memory_rate": f"{kind}=2TB/s"}


def drop_host(document: Document, draw: random.Random) -> dict[str, str]:
    hosts = sorted({device["host"] for device in document["devices"]})
    gone = draw.choice(hosts[1:])
    names = {each["name"] for each in document["devices"] if each["host"] == gone} | {gone}
    document["devices"] = [each for each in document["devices"] if each["host"] != gone]
    document["links"] = [
        each for each in document["links"] if not {each["source"], each["target"]} & names
    ]
    used = {device["type"] for device in document["devices"]}
    document["types"] = {name: each for name, each in document["types"].items() if name in used}
    return {"without": gone}


def copy_host(document: Document, draw: random.Random) -> dict[str, str]:
    """Another host, named as the program would: the next number after those with its stem."""
    hosts = list(dict.fromkeys(device["host"] for device in document["devices"]))
    stem = draw.choice(hosts).rstrip("0123456789")
    like = [host for host in hosts if host.startswith(stem)]
    model, new = like[-1], f"{stem}{len(like)}"
    for device in [each for each in document["devices"] if each["host"] == model]:
        name = device["name"].replace(model, new)
        document["devices"].append({**device, "name": name, "host": new})
    for link in list(document["links"]):
        ends = [link["source"], link["target"]]
        if any(end == model or end.startswith(f"{model}.") for end in ends):
            source, target = (end.replace(model, new) for end in ends)
            document["links"].append({**link, "source": source, "target": target})
    # A copy of a named host: without the name the catalogue's cluster of that size would be built.
    return {"hosts": f"{model}=+1"}


EDITS: tuple[Callable[[Document, random.Random], dict[str, str]], ...] = (
    edit_switch, edit_pair, edit_latency, edit_memory, edit_speed, edit_memory_rate, drop_host,
    copy_host,
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(SHAPE)


@pytest.mark.parametrize("seed", few(range(40), *range(8)))
def test_a_question_is_answered_as_by_hand(seed: int, graph: Graph, tmp_path: Path) -> None:
    draw = random.Random(seed)
    cluster = find_cluster(CLUSTERS[seed % len(CLUSTERS)])
    method = METHODS[seed % len(METHODS)]
    request = Request(
        graph=graph, cluster=cluster, method=method, seed=seed, budget_seconds=BUDGET_SECONDS
    )
    plan = search(request).plan
    cluster.save(tmp_path / "cluster.yaml")
    document = yaml.safe_load((tmp_path / "cluster.yaml").read_text())

    # Hosts first, as the program has it; of every field one edit.
    edits = [EDITS[seed % len(EDITS)], *draw.sample(EDITS[:6], draw.randint(0, 2))]
    asked: dict[str, str] = {}
    for edit in sorted(dict.fromkeys(edits), key=lambda each: -EDITS.index(each)):
        edited = copy.deepcopy(document)
        given = edit(edited, draw)
        if not given.keys() & asked.keys():
            document, asked = edited, asked | given
    batch = draw.choice([None, 16, 4])
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(document))
    by_hand = Request(
        graph=graph if batch is None else graph.at_batch(batch),
        cluster=read_cluster(path), method=method, seed=seed, budget_seconds=BUDGET_SECONDS,
    )  # fmt: skip
    if batch is not None:
        asked["batch"] = str(batch)

    question = Question(name="asked", changes=tuple(read_changes(asked)))
    with counted_clock():
        found = find_outcome(request, plan, question)
    expected = search(by_hand)
    assert found.planned.seconds == expected.step_seconds
    assert found.bound_seconds == expected.bound_seconds
    assert found.stop is expected.stop
    assert found.num_devices == by_hand.cluster.num_devices
    assert found.batch == by_hand.graph.batch
    assert found.kept is not None
    names = {device.name for device in by_hand.cluster.devices}
    assert plan is not None
    if {name for part in plan.parts for name in part.devices} <= names:
        timeline = simulate(by_hand.graph, by_hand.cluster, plan)
        assert found.kept.seconds == timeline.step_seconds
    else:
        assert f"is not in cluster {cluster.name}" in found.kept.obstacle


def search(request: Request) -> Any:
    with counted_clock():
        return find_plan(
            request.graph, request.cluster, method=request.method, seed=request.seed,
            budget_seconds=request.budget_seconds,
        )  # fmt: skip
